// Whole rounds under abuse: no allocation, no bad access (run under the sanitizers), invariants after every plan.
#include "check.h"

#include "core/scheduler.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

using namespace adaspark::core;

namespace {

struct Fuzz {
    std::mt19937 random;
    SchedulerConfig config;
    std::unique_ptr<Scheduler> scheduler;
    int32_t tokens[kMaxBlock * kTopK];
    float logits[kMaxBlock * kTopK];
    float confidence[kMaxBlock];
    int32_t path[kMaxRows];
    int32_t vocabulary = 12;

    explicit Fuzz(uint32_t seed) : random(seed) {
        config.block = static_cast<int32_t>(random() % 33);
        config.top_k = 1 + static_cast<int32_t>(random() % 8);
        config.max_rows = random() % 3 == 0 ? 1 + static_cast<int32_t>(random() % 64) : 64;
        config.pinned_rows = random() % 3 == 0 ? 1 + static_cast<int32_t>(random() % 64) : 0;
        for (bool * flag : {&config.gating, &config.text, &config.acceptance, &config.offset, &config.exploration,
                            &config.law, &config.rate, &config.gains, &config.margin, &config.siblings}) {
            *flag = random() % 6 != 0;
        }
        const int32_t stop[] = {3, 11};
        scheduler = std::make_unique<Scheduler>(config, std::span<const int32_t>(stop, random() % 3));
        vocabulary = random() % 2 == 0 ? 9 : 500;
    }

    float uniform() { return static_cast<float>(random() % 10001) / 10000.0F; }

    void begin() {
        std::vector<int32_t> prompt(random() % 300);
        for (int32_t & t : prompt) {
            t = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
        }
        scheduler->begin_request(prompt, 1, static_cast<int32_t>(random() % 400));
    }

    void round(bool last) {
        const Decision d = scheduler->decide(random() % 4 == 0 ? 1 + static_cast<int32_t>(random() % 64) : 0);
        DraftBlock block;
        if (d.draft) {
            const size_t n = 1 + random() % static_cast<uint32_t>(config.block);
            const size_t k = static_cast<size_t>(config.top_k);
            for (size_t i = 0; i < n; ++i) {
                confidence[i] = uniform();
                for (size_t l = 0; l < k; ++l) {
                    tokens[i * k + l] = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary + 1)) - 1;
                    logits[i * k + l] = 20.0F * uniform() - 10.0F;
                }
                std::sort(logits + i * k, logits + i * k + k, std::greater<>());
            }
            block = {{tokens, n * k}, {logits, n * k}, {confidence, n}};
        }
        const Tree & tree = scheduler->plan(d.draft ? &block : nullptr);
        CHECK(tree.rows >= 1 && tree.rows <= config.max_rows);
        for (int32_t r = 1; r < tree.rows; ++r) {
            CHECK(tree.parent[r] >= 0 && tree.parent[r] < r && tree.token[r] >= 0);
            CHECK(tree.ancestors[r] == (tree.ancestors[tree.parent[r]] | uint64_t{1} << r));
            CHECK(tree.depth[r] == tree.depth[tree.parent[r]] + 1);
        }
        size_t length = 1;
        path[0] = 0;
        for (int32_t r = 1; r < tree.rows; ++r) { // depth-first: the first child is the next row
            if (tree.parent[r] == path[length - 1] && random() % 3 != 0) {
                path[length++] = r;
            }
        }
        Outcome outcome;
        outcome.path = {path, length};
        outcome.next_token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
        outcome.last = last;
        const double verify =
            random() % 50 == 0 ? 0.0 : 1000.0 + 100.0 * tree.rows + static_cast<double>(random() % 300);
        scheduler->observe(outcome, {d.draft ? 500.0 + static_cast<double>(random() % 100) : 0.0, verify, 10.0});
    }
};

} // namespace

TEST(rounds_hold_their_invariants_and_do_not_allocate) {
    for (uint32_t seed = 0; seed < 120; ++seed) {
        Fuzz fuzz(seed);
        for (int request = 0; request < 4; ++request) {
            fuzz.begin();
            const int64_t before = check::allocations();
            const int rounds = 1 + static_cast<int>(fuzz.random() % 120);
            for (int i = 0; i < rounds; ++i) {
                fuzz.round(i + 1 == rounds);
            }
            fuzz.scheduler->end_request();
            CHECK(check::allocations() == before);
        }
    }
}

TEST(the_allocation_counter_counts) {
    const int64_t before = check::allocations();
    std::vector<int> v(100);
    CHECK(v.size() == 100 && check::allocations() == before + 1);
}

TEST(restored_schedulers_go_on_alike) {
    for (uint32_t seed = 0; seed < 30; ++seed) {
        Fuzz a(seed);
        a.begin();
        for (int i = 0; i < 80; ++i) {
            a.round(i == 79);
        }
        a.scheduler->end_request();
        Fuzz b(seed);
        CHECK(b.scheduler->load(a.scheduler->save()));
        b.random = a.random;
        a.begin();
        b.begin();
        for (int i = 0; i < 80; ++i) {
            a.round(false);
            b.round(false);
        }
        CHECK(a.scheduler->save() == b.scheduler->save());
    }
}

TEST(any_bytes_may_be_loaded) {
    Fuzz fuzz(1);
    fuzz.begin();
    for (int i = 0; i < 30; ++i) {
        fuzz.round(false);
    }
    const std::vector<uint8_t> good = fuzz.scheduler->save();
    std::mt19937 random(9);
    for (int i = 0; i < 300; ++i) {
        std::vector<uint8_t> bad = good;
        bad.resize(random() % (good.size() + 1));
        CHECK(!fuzz.scheduler->load(bad) || bad.size() == good.size());
        bad = good;
        bad[random() % bad.size()] ^= static_cast<uint8_t>(1 + random() % 255);
        CHECK(!fuzz.scheduler->load(bad));
    }
    CHECK(fuzz.scheduler->save() == good);
}

TEST(a_request_longer_than_announced_still_decodes) {
    Fuzz fuzz(3);
    fuzz.scheduler->begin_request({}, 1, 0);
    for (int i = 0; i < 300; ++i) {
        fuzz.round(false);
    }
    CHECK(fuzz.scheduler->index().tokens().size() <= 64);
}
