#include "check.h"

#include "core/acceptance.h"
#include "core/kernels.h"
#include "core/tree.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

using namespace adaspark::core;

namespace {

std::vector<const Kernels *> runnable() {
    const Kernels * out[kKernelVariants];
    const int32_t n = runnable_kernels(out);
    return {out, out + n};
}

const std::vector<const Kernels *> variants = runnable();

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b)); }

} // namespace

TEST(rank_descending_sorts_with_ties_to_the_lower_index) {
    std::mt19937 random(1);
    for (int round = 0; round < 4000; ++round) {
        const int n = static_cast<int>(random() % 320);
        const int limit = static_cast<int>(random() % 80);
        std::vector<float> key(336, 0.0F);
        for (int i = 0; i < n; ++i) {
            const float coarse = static_cast<float>(random() % 5) / 4.0F;
            key[static_cast<size_t>(i)] = round % 2 == 0 ? coarse
                                                         : std::ldexp(static_cast<float>(random() % 1000) / 999.0F,
                                                                      -static_cast<int>(random() % 140));
        }
        std::vector<int> want;
        for (int i = 0; i < n; ++i) {
            if (key[static_cast<size_t>(i)] > 0.0F) {
                want.push_back(i);
            }
        }
        std::stable_sort(want.begin(), want.end(),
                         [&](int a, int b) { return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)]; });
        want.resize(std::min<size_t>(want.size(), static_cast<size_t>(limit)));
        for (const Kernels * k : variants) {
            int32_t index[336];
            for (const float guess : {1e-30F, 1e-3F, 0.3F, 1.0F}) { // right, too low, too high: the same order
                const int32_t count = k->rank_descending(key.data(), n, std::min(limit, n), guess, index);
                CHECK(std::equal(want.begin(), want.end(), index, index + count));
            }
        }
    }
}

TEST(sigmoid_and_log_match_the_standard_library) {
    for (const Kernels * k : variants) {
        for (double x = -79.0; x < 79.0; x += 0.037) {
            const float given = static_cast<float>(x);
            alignas(32) float v[8] = {given, -given, 0.0F, 200.0F, -200.0F, 1.0F, -1.0F, 0.5F};
            k->sigmoid(v, 8);
            const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(given)));
            const double other = 1.0 / (1.0 + std::exp(static_cast<double>(given)));
            CHECK(std::abs(v[0] - want) <= 4e-7 * want && std::abs(v[1] - other) <= 4e-7 * other);
            CHECK(v[2] == 0.5F && v[3] == 1.0F && v[4] >= 0.0F && v[4] < 1e-30F);
        }
        for (double x = -699.0; x < 699.0; x += 0.37) {
            alignas(32) double l[4] = {std::exp(x), 1.0, 2.0, 1e-300};
            k->log(l, 4);
            CHECK(near(l[0], std::log(std::exp(x)), 1e-14));
            CHECK(l[1] == 0.0);
            CHECK(near(l[2], std::log(2.0), 1e-15) && near(l[3], std::log(1e-300), 1e-15));
        }
    }
}

TEST(block_features_survive_extremes) {
    for (const Kernels * k : variants) {
        float logits[4 * kTopK];
        const float infinity = std::numeric_limits<float>::infinity();
        std::fill_n(logits, kTopK, 0.0F);              // all equal
        std::fill_n(logits + kTopK, kTopK, -infinity); // one candidate only
        logits[kTopK] = 3.0F;
        for (int i = 0; i < kTopK; ++i) {
            logits[2 * kTopK + i] = -100.0F * static_cast<float>(i); // one that dwarfs the rest
            logits[3 * kTopK + i] = 1e4F - static_cast<float>(i);
        }
        const float head[4] = {0.0F, 1.0F, 0.5F, std::numeric_limits<float>::quiet_NaN()};
        auto f = std::make_unique<BlockFeatures>();
        k->block_features(logits, head, 4, *f);
        for (int i = 0; i < 4; ++i) {
            double total = 0.0;
            for (int l = 0; l < kTopK; ++l) {
                CHECK(std::isfinite(f->log_r[i][l]) && f->log_r[i][l] <= 0.0F && f->log_r[i][l] >= -30.0);
                CHECK(f->share[i][l] >= 0.0 && f->share[i][l] <= 1.0);
                total += f->share[i][l];
            }
            CHECK(near(total, 1.0, 1e-6));
            CHECK(std::abs(f->logit_head[i]) <= 16.1181 && std::abs(f->logit_share[i]) <= 16.1181);
        }
        CHECK(near(f->log_r[0][3], -std::log(7.0), 1e-6));
        CHECK(f->logit_head[3] < -16.0);
    }
}

TEST(a_group_and_none_sum_to_one) {
    // The same kernels the scheduler calls, with the complement added back: P(NONE) = 1 / (1 + sum of exp s).
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    auto set = std::make_unique<CandidateSet>();
    auto features = std::make_unique<RoundFeatures>();
    auto prices = std::make_unique<RoundPrices>();
    *features = RoundFeatures{};
    const auto model = std::make_unique<AcceptanceModel>();
    for (int round = 0; round < 200; ++round) {
        float logits[7 * kTopK];
        float head[7];
        for (int i = 0; i < 7; ++i) {
            for (int l = 0; l < kTopK; ++l) {
                logits[i * kTopK + l] = 2.0F * normal(random);
            }
            std::sort(logits + i * kTopK, logits + (i + 1) * kTopK, std::greater<>());
            head[i] = 0.5F + 0.49F * std::sin(normal(random));
        }
        set->positions = 7;
        set->top_k = kTopK;
        set->text = 0;
        set->total = 56;
        set->proposals = 0;
        for (auto & g : set->group) {
            g = GroupText{};
        }
        kernels().block_features(logits, head, 7, features->block);
        model->price(*set, *features, *prices);
        for (int i = 0; i < 7; ++i) {
            // Under the prior the pick's odds against everything else are the head's, so NONE has half of the rest.
            const double sum = std::accumulate(prices->block[i], prices->block[i] + kTopK, 0.0);
            CHECK(near(prices->block[i][0], head[i], 1e-6));
            CHECK(near(sum + (1.0 - static_cast<double>(head[i])) / 2.0, 1.0, 2e-6));
            CHECK(sum < 1.0);
        }
    }
}

TEST(ftrl_lanes_match_one_coordinate_at_a_time) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (const Kernels * k : variants) {
        alignas(32) FtrlLanes lanes{};
        FtrlCoordinate single[kDenseLanes];
        double weight[kDenseLanes];
        for (int i = 0; i < kDenseLanes; ++i) {
            lanes.prior[i] = lanes.weight[i] = weight[i] = 0.25 * i;
        }
        const FtrlRule rule{.alpha = kAcceptAlpha};
        for (int step = 0; step < 3000; ++step) {
            alignas(32) double gradient[1][kGradients];
            double slope[1] = {};
            for (int i = 0; i < kDense; ++i) {
                double & g = i < kGradients ? gradient[0][i] : slope[0];
                g = (step + i) % 3 == 0 ? 0.0 : 0.2 * normal(random) + 0.05 * (i % 2);
                if (g != 0.0) {
                    weight[i] = ftrl_step(single[i], g, weight[i], lanes.prior[i], rule);
                }
            }
            k->ftrl_steps(lanes, gradient, 1, slope, 1);
        }
        for (int i = 0; i < kDenseLanes; ++i) {
            CHECK(near(lanes.weight[i], weight[i], 1e-10));
            CHECK(near(lanes.n[i], single[i].n, 1e-12));
        }
    }
}

TEST(widths_are_priced_as_the_law_says) {
    std::mt19937 random(6);
    for (const Kernels * k : variants) {
        alignas(32) static WidthLanes lanes;
        for (int i = 0; i < kMaxWidths; ++i) {
            for (auto & w : lanes.weight) {
                w[i] = static_cast<double>(random() % 1000) / 1000.0;
            }
            lanes.low[i] = 0.5;
            lanes.high[i] = 3.0;
            lanes.scale[i] = 100.0 + i;
        }
        const double phi[kBasis] = {1.0, 0.5, 0.25, 0.7, 0.4};
        k->price_widths(lanes, phi, 1.25, kMaxWidths);
        for (int i = 0; i < kMaxWidths; ++i) {
            double law = 0.0;
            for (int j = 0; j < kBasis; ++j) {
                law += lanes.weight[j][i] * phi[j];
            }
            CHECK(near(lanes.price[i], std::clamp(law, 0.5, 3.0) * lanes.scale[i] * 1.25, 1e-12));
        }
    }
}

TEST(context_basis_is_that_of_equation_4) {
    for (const Kernels * k : variants) {
        for (const double u : {0.0, 0.125, 1.0, 5.5}) {
            alignas(32) double phi[kBasisLanes];
            std::fill_n(phi, kBasisLanes, 9.0); // lanes past the basis are zeroed, not left
            k->context_basis(u, std::log(1.0 + u), phi);
            const double wanted[kBasisLanes] = {1.0, u, u * u, std::sqrt(u), std::log(1.0 + u)};
            CHECK(std::equal(phi, phi + kBasisLanes, wanted));
        }
    }
}

TEST(x86_variants_give_the_same_bits) {
    CHECK(&kernels() == variants.back());
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    std::vector<std::vector<unsigned char>> results; // of every variant but the baseline, which does not fuse
    struct State {
        BlockFeatures features;
        alignas(32) float p[kMaxBlock][kTopK], head[kMaxBlock][kTopK], text_p[kMaxBlock + 8], path_q[kMaxBlock * kTopK];
        alignas(32) double gradient[kMaxBlock][kGradients], all[kMaxBlock], likelihood[kMaxBlock];
        LawLanes law;
        FtrlLanes dense;
        WidthLanes widths;
        int32_t index[kCandidateSlots + 1];
    };
    for (size_t v = 1; v < variants.size(); ++v) {
        const Kernels & k = *variants[v];
        random.seed(8);
        normal.reset();
        auto s = std::make_unique<State>();
        std::vector<unsigned char> bytes;
        for (int round = 0; round < 200; ++round) {
            const int n = 1 + static_cast<int>(random() % kMaxBlock);
            alignas(32) float logits[kMaxBlock * kTopK], head[kMaxBlock];
            TextEvidence evidence;
            int32_t hit[kMaxBlock];
            uint8_t dead[kMaxBlock];
            for (int i = 0; i < kMaxBlock; ++i) {
                for (int l = 0; l < kTopK; ++l) {
                    logits[i * kTopK + l] = 3.0F * normal(random);
                }
                std::sort(logits + i * kTopK, logits + (i + 1) * kTopK, std::greater<>());
                head[i] = 0.5F + 0.49F * std::sin(normal(random));
                evidence.pick[i] = normal(random);
                evidence.sibling[i] = normal(random);
                evidence.agreed[i] = normal(random);
                evidence.lane[i] = static_cast<int32_t>(random() % 9) - 1;
                evidence.text[i] = random() % 2 == 0 ? kScoreNone : normal(random);
                hit[i] = static_cast<int32_t>(random() % 9) - 1;
                dead[i] = random() % 4 == 0 ? static_cast<uint8_t>(random()) : uint8_t{0};
            }
            double weight[kDense], phi[kBasisLanes] = {1.0, 0.3, 0.09, 0.5477, 0.2624};
            std::generate_n(weight, kDense, [&] { return static_cast<double>(normal(random)); });
            k.block_features(logits, head, n, s->features);
            k.block_softmax(s->features, {weight, 0.1, -0.05, kTopK}, &evidence, n, s->p, s->text_p);
            k.head_estimate(s->features, 1.3F, n, s->head);
            std::fill_n(s->likelihood, kMaxBlock, 1.0); // whole vectors of positive numbers
            k.block_likelihood(s->p, kTopK, hit, n, s->likelihood);
            k.log(s->likelihood, n);
            k.block_gradients(s->features, s->p, hit, n, s->gradient, s->all);
            std::fill(s->all + n, s->all + kMaxBlock, 0.0);
            k.ftrl_steps(s->dense, s->gradient, n, s->all, n);
            k.law_step(s->law, phi, n % 3 == 0 ? 0.85 : -0.15);
            std::copy_n(s->dense.weight, kDenseLanes, s->widths.weight[round % kBasis]);
            std::fill_n(s->widths.high, kMaxWidths, 2.0);
            std::fill_n(s->widths.scale, kMaxWidths, 3.1);
            k.price_widths(s->widths, phi, 1.1, kMaxWidths);
            k.block_path_q(s->p, dead, n, s->path_q);
            k.rank_descending(s->path_q, n * kTopK, std::min(n * kTopK, 20), 0.01F, s->index);
            s->index[std::min(n * kTopK, 20)] = 0; // the spare entry says nothing
            k.sigmoid(s->text_p, kMaxBlock);
            const auto * raw = reinterpret_cast<const unsigned char *>(s.get());
            bytes.insert(bytes.end(), raw, raw + sizeof *s);
        }
        results.push_back(std::move(bytes));
    }
    for (size_t v = 1; v < results.size(); ++v) {
        CHECK(results[v] == results[0]);
    }
}

TEST(gradients_are_those_of_the_scores) {
    std::mt19937 random(9);
    for (const Kernels * k : variants) {
        auto f = std::make_unique<BlockFeatures>();
        alignas(32) float p[kMaxBlock][kTopK];
        alignas(32) double gradient[kMaxBlock][kGradients], all[kMaxBlock];
        int32_t hit[kMaxBlock];
        const auto uniform = [&] { return static_cast<float>(random() % 1000) / 1000.0F; };
        for (int i = 0; i < kMaxBlock; ++i) {
            f->logit_head[i] = uniform() - 0.5F;
            f->logit_share[i] = uniform() - 0.5F;
            hit[i] = static_cast<int32_t>(random() % 9) - 1;
            for (int l = 0; l < kTopK; ++l) {
                p[i][l] = uniform() / 8.0F;
                f->log_r[i][l] = l == 0 ? 0.0F : -uniform();
            }
        }
        k->block_gradients(*f, p, hit, kMaxBlock, gradient, all);
        for (int i = 0; i < kMaxBlock; ++i) {
            double want[kDense] = {};
            for (int l = 0; l < kTopK; ++l) {
                const double e = p[i][l] - (hit[i] == l ? 1.0 : 0.0);
                const double factor[4] = {1.0, l == 0 ? 0.0 : f->log_r[i][l], f->logit_head[i], f->logit_share[i]};
                if (l == 0) {
                    want[0] += e;
                    want[1] += e * factor[2];
                    want[2] += e * factor[3];
                } else {
                    for (int j = 0; j < 4; ++j) {
                        want[3 + j] += e * factor[j];
                    }
                }
                want[7] += e * i;
                want[8] += e;
            }
            for (int j = 0; j < kGradients; ++j) {
                CHECK(near(gradient[i][j], want[j], 1e-13));
            }
            CHECK(near(all[i], want[8], 1e-13));
        }
    }
}
