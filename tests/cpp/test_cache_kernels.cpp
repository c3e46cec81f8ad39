// csrc/kernels: attention over every kind of cache against double, and equal bits on every instruction set.
#include "check.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

using namespace adaspark::kernels;

namespace {

constexpr Cache kCaches[] = {Cache::f32, Cache::f16, Cache::q8_0};
constexpr int32_t kHeldSlots = kTile; // slots of the cache in these tests
constexpr int32_t kGroup = 3;         // queries of a tree's row

std::vector<const Kernels *> tables() {
    std::vector<const Kernels *> out;
    for (const char * name : {"portable", "avx2", "avxvnni", "avx512vnni", "neon", "dotprod", "i8mm"}) {
        if (const Kernels * table = kernels_named(name)) {
            out.push_back(table);
        }
    }
    return out;
}

// What a cache keeps of 32 numbers.
void rounded(Cache cache, const float * x, double * out) {
    const float largest =
        std::fabs(*std::max_element(x, x + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    const double d = static_cast<double>(half_to_float(float_to_half(largest / 127.0F)));
    for (int32_t i = 0; i < kBlock; ++i) {
        out[i] = cache == Cache::f32   ? static_cast<double>(x[i])
                 : cache == Cache::f16 ? static_cast<double>(half_to_float(float_to_half(x[i])))
                                       : d * std::nearbyint(largest > 0.0F ? x[i] * (127.0F / largest) : 0.0F);
    }
}

struct Case {
    Cache cache;
    int32_t dim;
    std::vector<float> k, v;                // [slot][dim]
    std::vector<float> q;                   // [query][dim]
    std::vector<int32_t> slots;             // of the last query; the others see a part of it
    std::vector<int32_t> n_slots;           // per query
    std::vector<std::vector<int32_t>> rows; // the slots of each kGroup queries, where they are a tree's

    Case(Cache c, int32_t d, int32_t queries, int32_t count, std::mt19937 & rng) : cache(c), dim(d) {
        std::normal_distribution<float> normal;
        for (std::vector<float> * x : {&k, &v, &q}) {
            x->resize(static_cast<std::size_t>((x == &q ? queries : kHeldSlots) * dim));
            std::generate(x->begin(), x->end(), [&] { return normal(rng); });
        }
        std::fill_n(k.begin(), kBlock, 0.0F); // a block of zeros
        slots.resize(kHeldSlots);
        std::iota(slots.begin(), slots.end(), 0);
        std::shuffle(slots.begin(), slots.end(), rng);
        slots.resize(static_cast<std::size_t>(count));
        for (int32_t i = 0; i < queries; ++i) {
            n_slots.push_back(std::max(1, count - 3 * (queries - 1 - i)));
        }
    }

    // Each kGroup queries are a row of a tree: `shared` slots that all rows see, then up to three of their own. The
    // shared ones lie anywhere, or from `first_slot` on one after the other.
    void as_tree(int32_t shared, std::mt19937 & rng, int32_t first_slot = -1) {
        std::vector<int32_t> any(kHeldSlots);
        std::iota(any.begin(), any.end(), 0);
        if (first_slot < 0) {
            std::shuffle(any.begin(), any.end(), rng);
        } else {
            std::rotate(any.begin(), any.begin() + first_slot, any.end());
            std::shuffle(any.begin() + shared, any.end(), rng);
        }
        for (int32_t first = 0; first < queries(); first += kGroup) {
            const int32_t row = first / kGroup;
            std::vector<int32_t> seen(any.begin(), any.begin() + shared);
            for (int32_t i = 0; i < row % 4; ++i) {
                seen.push_back(any[static_cast<std::size_t>(shared + 4 * row + i)]);
            }
            for (int32_t i = first; i < std::min(queries(), first + kGroup); ++i) {
                n_slots[static_cast<std::size_t>(i)] = static_cast<int32_t>(seen.size());
            }
            rows.push_back(std::move(seen));
        }
    }

    int32_t queries() const { return static_cast<int32_t>(n_slots.size()); }
};

// Partial results [query][kPartial + dim] of queries [first, first + count).
std::vector<float> attended(const Kernels & kernels, const Case & c, int32_t first, int32_t count, int32_t common = 0) {
    const std::size_t bytes = static_cast<std::size_t>(kHeldSlots / kSlots) * group_bytes(c.cache, c.dim);
    std::vector<uint8_t> k(bytes), v(bytes);
    for (int32_t s = 0; s < kHeldSlots; ++s) {
        kernels.store_key(c.k.data() + s * c.dim, c.dim, c.cache, k.data(), s);
        kernels.store_value(c.v.data() + s * c.dim, c.dim, c.cache, v.data(), s);
    }
    std::vector<float> out(static_cast<std::size_t>(count * (kPartial + c.dim)));
    std::vector<float> scratch(static_cast<std::size_t>(count * kQueryScratch));
    std::vector<const float *> q;
    std::vector<float *> to;
    std::vector<const int32_t *> slots;
    for (int32_t i = 0; i < count; ++i) {
        slots.push_back(c.rows.empty() ? c.slots.data()
                                       : c.rows[static_cast<std::size_t>((first + i) / kGroup)].data());
        q.push_back(c.q.data() + (first + i) * c.dim);
        to.push_back(out.data() + i * (kPartial + c.dim));
    }
    Attend t;
    t.cache = c.cache;
    t.k = k.data();
    t.v = v.data();
    t.head_dim = c.dim;
    t.slot_end = kHeldSlots;
    t.q = q.data();
    t.n_queries = count;
    t.slots = slots.data();
    t.n_slots = c.n_slots.data() + first;
    t.common = common;
    t.out = to.data();
    t.scratch = scratch.data();
    kernels.attend(t);
    return out;
}

} // namespace

TEST(attention_equals_double_alone_together_and_on_every_instruction_set) {
    std::mt19937 rng(3);
    for (const Cache cache : kCaches) {
        for (const int32_t dim : {32, 64, 96, 128}) {
            for (const int32_t queries : {1, 2, 5, 13}) {
                const Case c(cache, dim, queries, std::min(kChunk, 30 + 9 * queries), rng);
                const std::vector<float> expected = attended(*kernels_named("portable"), c, queries - 1, 1);
                for (const Kernels * table : tables()) {
                    const std::vector<float> alone = attended(*table, c, queries - 1, 1);
                    CHECK(std::memcmp(alone.data(), expected.data(), 2 * sizeof(float)) == 0);
                    CHECK(std::memcmp(alone.data() + kPartial, expected.data() + kPartial,
                                      static_cast<std::size_t>(dim) * sizeof(float)) == 0);
                }
                std::vector<double> value(static_cast<std::size_t>(dim)), key(static_cast<std::size_t>(dim));
                std::vector<double> sum(static_cast<std::size_t>(dim));
                double total = 0.0;
                for (const int32_t slot : c.slots) {
                    double dot = 0.0;
                    for (int32_t i = 0; i < dim; i += kBlock) {
                        rounded(cache, c.k.data() + slot * dim + i, key.data() + i);
                        rounded(cache, c.v.data() + slot * dim + i, value.data() + i);
                    }
                    for (std::size_t i = 0; i < key.size(); ++i) {
                        dot += key[i] * static_cast<double>(c.q[c.q.size() - key.size() + i]);
                    }
                    const double weight = std::exp(dot - static_cast<double>(expected[0]));
                    total += weight;
                    for (std::size_t i = 0; i < sum.size(); ++i) {
                        sum[i] += weight * value[i];
                    }
                }
                CHECK(std::fabs(total - static_cast<double>(expected[1])) < 1e-4 * total);
                for (std::size_t i = 0; i < sum.size(); ++i) {
                    CHECK(std::fabs(sum[i] - static_cast<double>(expected[kPartial + i])) < 1e-4 * total);
                }
            }
        }
    }
}

TEST(a_query_attends_alike_alone_and_in_company) {
    std::mt19937 rng(4);
    for (const Cache cache : kCaches) {
        for (const int32_t queries : {2, 3, 7, 12, 25}) {
            Case c(cache, 64, queries, 60, rng);
            std::fill(c.n_slots.begin(), c.n_slots.end(), 60); // the same slots: summed together
            for (const Kernels * table : tables()) {
                const std::vector<float> all = attended(*table, c, 0, queries);
                for (int32_t i = 0; i < queries; ++i) {
                    const std::vector<float> alone = attended(*table, c, i, 1);
                    const float * mine = all.data() + i * (kPartial + c.dim);
                    CHECK(std::memcmp(mine, alone.data(), 2 * sizeof(float)) == 0);
                    CHECK(std::memcmp(mine + kPartial, alone.data() + kPartial, 64 * sizeof(float)) == 0);
                }
            }
        }
    }
}

TEST(rows_of_a_tree_attend_alike_alone_and_in_company) {
    std::mt19937 rng(6);
    for (const Cache cache : kCaches) {
        for (const int32_t dim : {cache == Cache::q8_0 ? 32 : 16, cache == Cache::q8_0 ? 96 : 80, kHeadDim}) {
            for (const int32_t shared : {0, 37, 100}) {
                Case c(cache, dim, 29, 60, rng);
                c.as_tree(shared, rng);
                for (const Kernels * table : tables()) {
                    const std::vector<float> all = attended(*table, c, 0, c.queries());
                    for (int32_t i = 0; i < c.queries(); ++i) {
                        const std::vector<float> alone = attended(*kernels_named("portable"), c, i, 1);
                        const float * mine = all.data() + i * (kPartial + dim);
                        CHECK(std::memcmp(mine, alone.data(), 2 * sizeof(float)) == 0);
                        CHECK(std::memcmp(mine + kPartial, alone.data() + kPartial,
                                          static_cast<std::size_t>(dim) * sizeof(float)) == 0);
                    }
                }
            }
        }
    }
}

TEST(committed_slots_in_order_attend_as_those_that_lie_anywhere) {
    std::mt19937 rng(7);
    for (const Cache cache : kCaches) {
        for (const int32_t shared : {1, 15, 16, 37, 100}) {
            for (const int32_t first : {0, 5}) {
                Case c(cache, 64, 29, 60, rng);
                c.as_tree(shared, rng, first);
                for (const Kernels * table : tables()) {
                    const std::vector<float> known = attended(*table, c, 0, c.queries(), shared);
                    const std::vector<float> unknown = attended(*table, c, 0, c.queries());
                    for (int32_t i = 0; i < c.queries(); ++i) {
                        const std::ptrdiff_t at = i * (kPartial + c.dim);
                        CHECK(std::memcmp(known.data() + at, unknown.data() + at, 2 * sizeof(float)) == 0);
                        CHECK(std::memcmp(known.data() + at + kPartial, unknown.data() + at + kPartial,
                                          64 * sizeof(float)) == 0);
                    }
                }
            }
        }
    }
}

TEST(a_nan_in_the_cache_reaches_those_who_see_it) {
    std::mt19937 rng(5);
    for (const Cache cache : kCaches) {
        Case c(cache, 32, 2, 40, rng);
        const int32_t last = c.slots.back(); // the second query alone sees it
        c.v[static_cast<std::size_t>(last * 32 + 7)] = NAN;
        for (const Kernels * table : tables()) {
            CHECK(std::isfinite(attended(*table, c, 0, 1)[kPartial + 7]));
            CHECK(std::isnan(attended(*table, c, 1, 1)[kPartial + 7]));
        }
    }
}

TEST(experts_are_mixed_and_taps_summed_in_order) {
    std::mt19937 rng(6);
    std::normal_distribution<float> normal;
    constexpr int32_t kWidth = 48;
    for (const int32_t count : {1, 2, 8}) {
        std::vector<float> in(static_cast<std::size_t>(count * kWidth)), weight(in.size()), x(kWidth);
        for (std::vector<float> * v : {&in, &weight, &x}) {
            std::generate(v->begin(), v->end(), [&] { return normal(rng); });
        }
        std::vector<const float *> rows;
        for (int32_t j = 0; j < count; ++j) {
            rows.push_back(in.data() + j * kWidth);
        }
        for (const Kernels * table : tables()) {
            std::vector<float> mixed = x, taps(kWidth);
            table->mix(rows.data(), weight.data(), count, kWidth, mixed.data());
            table->short_conv(rows.data(), weight.data(), kWidth, count, x.data(), kWidth, taps.data());
            for (int32_t i = 0; i < kWidth; ++i) {
                float mix = 0.0F;
                float tap = 0.0F;
                for (int32_t j = 0; j < count; ++j) {
                    mix = std::fma(rows[static_cast<std::size_t>(j)][i], weight[static_cast<std::size_t>(j)], mix);
                    tap = std::fma(rows[static_cast<std::size_t>(j)][i],
                                   weight[static_cast<std::size_t>(j * kWidth + i)], tap);
                }
                CHECK(mixed[static_cast<std::size_t>(i)] == x[static_cast<std::size_t>(i)] + mix);
                CHECK(taps[static_cast<std::size_t>(i)] == x[static_cast<std::size_t>(i)] * tap);
            }
        }
    }
}
