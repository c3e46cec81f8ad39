// What a scheduler round costs, and where it goes: nanoseconds a round over a stream of varied rounds, one core. The parts
// are timed on the candidate sets of that same stream, each part over all of them in turn, so no input repeats in a row.
#include "world.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace bench {

CostLaw cost_law(const std::string &) { // a GPU like the paper's dense targets: verifies of 8 to 16 rows, some wider
    CostLaw c;
    c.points = {{1, {22.4, 0.1}}, {8, {23.9, 0.13}}, {16, {25.8, 0.2}}, {32, {43.7, 0.43}}, {64, {60.0, 0.6}}};
    c.steps = true;
    c.draft = 9.6;
    return c;
}

// Ticks: the time stamp counter where there is one, because a steady_clock call costs as much as some parts.
inline uint64_t ticks() {
#if defined(__x86_64__)
    _mm_lfence();
    const uint64_t t = __rdtsc();
    _mm_lfence();
    return t;
#else
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double ticks_per_ns() {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t from = ticks();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(50)) {
    }
    const uint64_t to = ticks();
    return static_cast<double>(to - from) /
           std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

struct Series {
    std::vector<double> ns;
    void print(const char * name, bool first, double overhead) {
        std::sort(ns.begin(), ns.end());
        const auto at = [&](double share) {
            return std::max(0.0, ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))] - overhead);
        };
        std::printf("%s\"%s\":{\"median\":%.1f,\"p99\":%.1f,\"mean\":%.1f,\"n\":%zu}", first ? "" : ",", name, at(0.5),
                    at(0.99), std::accumulate(ns.begin(), ns.end(), 0.0) / static_cast<double>(ns.size()) - overhead,
                    ns.size());
    }
};

struct Stream {
    Series decide, plan, observe, round;
    double text_nodes = 0.0, rows = 0.0, candidates = 0.0, tokens = 0.0;
};

double timer_scale = 1.0;
volatile double sink = 0.0;

// One planned round, kept for the parts.
struct Kept {
    BlockDraw block;
    CandidateSet set;
    RoundFeatures features;
    RoundPrices prices;
    Order order;
};

Stream serve(const SchedulerConfig & config, double repeat, int32_t rounds, std::vector<Kept> * keep) {
    const CostLaw law = cost_law("");
    auto scheduler = std::make_unique<Scheduler>(config);
    Stream s;
    Random noise(5);
    BlockDraw block;
    std::vector<int32_t> path;
    int32_t done = 0;
    for (uint64_t q = 0; done < rounds; ++q) {
        Workload work = workload(q % 3 == 0 ? "prose" : q % 3 == 1 ? "code" : "copy");
        work.repeat *= repeat;
        const Request request(mix_seed(3, q), work, 800, 1500);
        scheduler->begin_request({request.text.data(), 800}, request.text[800], 1600);
        int32_t at = 800;
        const int32_t end = 800 + request.reply();
        while (at < end && done < rounds) {
            draw_block(request, at, config.block, TrueLaw{}, block);
            const DraftBlock b{{block.tokens, static_cast<size_t>(config.block * kTopK)},
                               {block.logits, static_cast<size_t>(config.block * kTopK)},
                               {block.confidence, static_cast<size_t>(config.block)}};
            const uint64_t t0 = ticks();
            const Decision d = scheduler->decide();
            const uint64_t t1 = ticks();
            const Tree & tree = scheduler->plan(d.draft ? &b : nullptr);
            const uint64_t t2 = ticks();
            RoundTimes times;
            const double jitter = 1.0 + 0.02 * noise.normal();
            times.draft = d.draft ? 1e3 * law.draft * jitter : 1.0;
            times.verify = law.verify(tree.rows, at) * jitter;
            times.commit = 50.0;
            walk(request, at, tree, end - at, path);
            Outcome o;
            o.path = path;
            o.next_token = request.text[static_cast<size_t>(at) + path.size()];
            const uint64_t t3 = ticks();
            scheduler->observe(o, times);
            const uint64_t t4 = ticks();
            at += static_cast<int32_t>(path.size());
            ++done;
            if (q < 4) {
                continue; // learning widths and the guard's first requests: not the steady state
            }
            s.decide.ns.push_back(static_cast<double>(t1 - t0) * timer_scale);
            s.plan.ns.push_back(static_cast<double>(t2 - t1) * timer_scale);
            s.observe.ns.push_back(static_cast<double>(t4 - t3) * timer_scale);
            s.round.ns.push_back(s.decide.ns.back() + s.plan.ns.back() + s.observe.ns.back());
            s.text_nodes += scheduler->report().text_nodes;
            s.candidates += scheduler->report().candidates;
            s.rows += tree.rows;
            s.tokens += static_cast<double>(path.size());
            if (keep != nullptr && d.draft && keep->size() < 2000) {
                Kept & k = keep->emplace_back();
                k.block = block;
                k.set = scheduler->candidates();
                k.order = scheduler->order();
            }
        }
        scheduler->end_request();
    }
    return s;
}

template <class Body> Series time_each(size_t n, int repeats, Body body) {
    Series s;
    for (int r = 0; r < repeats; ++r) {
        for (size_t i = 0; i < n; ++i) {
            const uint64_t t0 = ticks();
            body(i);
            const uint64_t t1 = ticks();
            if (r > 0) {
                s.ns.push_back(static_cast<double>(t1 - t0) * timer_scale);
            }
        }
    }
    return s;
}

void print_stream(const char * name, Stream & s, bool first, double overhead) {
    const double n = static_cast<double>(s.round.ns.size());
    std::printf("%s\"%s\":{\"text_nodes\":%.1f,\"candidates\":%.1f,\"rows\":%.1f,\"tokens\":%.2f,", first ? "" : ",",
                name, s.text_nodes / n, s.candidates / n, s.rows / n, s.tokens / n);
    s.decide.print("decide", true, overhead);
    s.plan.print("plan", false, overhead);
    s.observe.print("observe", false, overhead);
    s.round.print("round", false, 3 * overhead);
    std::printf("}");
}

} // namespace bench

int main(int argc, char ** argv) {
    using namespace bench;
    const int32_t rounds = argc > 1 ? std::atoi(argv[1]) : 40000;
    timer_scale = 1.0 / ticks_per_ns();
    Series empty = time_each(20000, 2, [](size_t) {});
    std::sort(empty.ns.begin(), empty.ns.end());
    const double overhead = empty.ns[empty.ns.size() / 2];

    std::printf("{\"kernels\":\"%s\",\"timer_ns\":%.1f,\"streams\":{", kernels().name, overhead);
    std::vector<Kept> kept;
    kept.reserve(2000);
    SchedulerConfig config;
    Stream typical = serve(config, 1.0, rounds, &kept);
    print_stream("text", typical, true, overhead);
    config.text = false;
    Stream drafter = serve(config, 1.0, rounds, nullptr);
    print_stream("drafter_only", drafter, false, overhead);
    config.text = true;
    Stream heavy = serve(config, 6.0, rounds, nullptr);
    print_stream("repetitive", heavy, false, overhead);
    std::printf("},\"parts\":{");

    // Pricing 24 widths.
    auto table = std::make_unique<WidthTable>();
    table->reset(64, true);
    for (const int32_t w : {3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 20, 24, 28, 36, 40, 48, 56}) {
        table->split(w);
    }
    Random r(1);
    for (int i = 0; i < 400; ++i) {
        for (int32_t k = 0; k < table->size(); ++k) {
            const int32_t w = table->at(k).high;
            const uint32_t c = static_cast<uint32_t>(200 + r.below(8000));
            table->record_draft(c, 8000.0 + c * 0.1 + 100.0 * r.uniform());
            table->record_verify(w, c, 1e4 + 300.0 * w + c * 0.2 + 200.0 * r.uniform());
            table->tick();
        }
    }
    Offer offer;
    Series s = time_each(4000, 6, [&](size_t i) {
        table->offer(static_cast<uint32_t>(200 + i), 64, offer);
        sink = sink + offer.price[0];
    });
    std::printf("\"widths_learned\":%d,\"offered\":%d,", table->size(), offer.count);
    s.print("price_24_widths", true, overhead);
    const size_t n = kept.size();
    s = time_each(n, 4, [&](size_t i) {
        const uint32_t c = static_cast<uint32_t>(200 + (i * 37) % 8000);
        table->record_verify(16, c, 15000.0 + static_cast<double>((i * 7919) % 300));
    });
    s.print("cost_training_step", false, overhead);

    // Candidate pricing, order, layout, on the kept rounds.
    auto model = std::make_unique<AcceptanceModel>();
    for (Kept & k : kept) {
        k.features = RoundFeatures{};
        for (int32_t slot = 0; slot < kSlots; ++slot) {
            k.features.text_base[slot] = 0.3 * slot;
            k.features.precision[slot] = 0.6;
        }
        k.features.context = 0.2;
    }
    s = time_each(n, 4, [&](size_t i) {
        Kept & k = kept[i];
        kernels().block_features(k.block.logits, k.block.confidence, 7, k.features.block);
        model->price(k.set, k.features, k.prices);
    });
    s.print("price_candidates", false, overhead);
    s = time_each(n, 4, [&](size_t i) { order_by_path_q(kept[i].set.total, 31, kept[i].order); });
    s.print("order_32_rows", false, overhead);
    s = time_each(n, 4, [&](size_t i) { order_by_path_q(kept[i].set.total, 63, kept[i].order); });
    s.print("order_64_rows", false, overhead);
    Tree tree;
    s = time_each(n, 4, [&](size_t i) {
        layout_depth_first(1, kept[i].set.token, kept[i].set.parent, kept[i].order, 15, tree);
        sink = sink + tree.rows;
    });
    s.print("layout_16_rows", false, overhead);

    // Choice over 24 widths.
    Expected e;
    for (int32_t i = 0; i < kMaxWidths; ++i) {
        e.draft[i] = 0.2 * i;
        e.text[i] = 0.05 * i;
    }
    Offer wide;
    wide.count = kMaxWidths;
    for (int32_t i = 0; i < kMaxWidths; ++i) {
        wide.rows[i] = i + 1;
        wide.price[i] = 1e4 + 300.0 * i;
    }
    Objective o;
    o.rate = 1e-4;
    o.fixed = 8000.0;
    s = time_each(n, 4, [&](size_t i) {
        e.draft[i % kMaxWidths] += 1e-6;
        sink = sink + choose_width(wide, e, o, 16).value;
    });
    s.print("choose_of_24", false, overhead);

    // Learning one labelled parent.
    s = time_each(n, 4, [&](size_t i) {
        const Kept & k = kept[i];
        model->learn(k.set, k.features, k.prices, 0, k.set.group[0].child, static_cast<int32_t>(i % 9) - 1);
    });
    s.print("learn_one_parent", false, overhead);

    // Text: one request's index; chains merged into each kept block; one token appended.
    Workload work = workload("copy");
    const Request request(77, work, 4000, 4000);
    SuffixIndex index;
    index.begin(9000);
    for (int32_t i = 0; i < 4000; ++i) {
        index.append(request.text[static_cast<size_t>(i)]);
    }
    ChainBuilder chains;
    AnchorChain chain;
    double nodes = 0.0;
    s = time_each(n, 2, [&](size_t i) {
        Kept & k = kept[i];
        chains.begin(index, request.text[4000 + i]);
        chains.anchor_chain(index, 32, chain);
        chains.take_block(k.block.tokens, 7, 8, k.set);
        chains.merge_text(index, chain, 32, k.set);
        nodes += k.set.text;
        index.append(request.text[4000 + i]); // untimed work is not possible inside: one append is part of this
    });
    std::printf(",\"text_nodes_per_round\":%.1f", nodes / (2.0 * static_cast<double>(n)));
    s.print("text_chains_and_one_append", false, overhead);
    SuffixIndex growing;
    growing.begin(9000);
    s = time_each(8000, 1, [](size_t) {});
    s.ns.clear();
    for (size_t i = 0; i < 7900; ++i) {
        const uint64_t t0 = ticks();
        growing.append(request.text[i % request.text.size()]);
        const uint64_t t1 = ticks();
        s.ns.push_back(static_cast<double>(t1 - t0) * timer_scale);
    }
    s.print("append", false, overhead);
    std::printf("}}\n");
    return 0;
}
