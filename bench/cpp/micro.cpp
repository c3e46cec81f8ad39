// What a scheduler round costs, and where it goes: nanoseconds a round over a stream of varied rounds, one core. The
// parts are timed on the candidate sets of that same stream, each part over all of them in turn, so no input repeats in
// a row.
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

// A quantile of sorted times. The counter may advance in steps as long as a part takes (10 ns), so many times are
// equal: they are taken to be spread evenly over their step, as for grouped data.
double quantile(const std::vector<double> & sorted, double share) {
    constexpr double rounding = 0.01; // nanoseconds: closer times are equal
    const double rank = share * static_cast<double>(sorted.size());
    const double value = sorted[std::min(static_cast<size_t>(rank), sorted.size() - 1)];
    const auto [from, to] =
        std::equal_range(sorted.begin(), sorted.end(), value, [](double a, double b) { return a < b - rounding; });
    double step = 0.0; // least distance of two times
    for (size_t i = 1; i < sorted.size(); ++i) {
        const double apart = sorted[i] - sorted[i - 1];
        step = apart > rounding && (step == 0.0 || apart < step) ? apart : step;
    }
    const double within = (rank - static_cast<double>(from - sorted.begin())) / static_cast<double>(to - from);
    return value + (within - 0.5) * step;
}

struct Series {
    std::vector<double> ns;
    void print(const char * name, bool first, double overhead) {
        std::sort(ns.begin(), ns.end());
        const auto at = [&](double share) { return std::max(0.0, quantile(ns, share) - overhead); };
        std::printf("%s\"%s\":{\"median\":%.1f,\"p99\":%.1f,\"mean\":%.1f,\"n\":%zu}", first ? "" : ",", name, at(0.5),
                    at(0.99), std::accumulate(ns.begin(), ns.end(), 0.0) / static_cast<double>(ns.size()) - overhead,
                    ns.size());
    }
};

constexpr double kTypicalRepeat = 2.15; // times the workloads' own share of copied text

struct Stream {
    Series decide, plan, observe, round, quiet;
    Series full; // rounds with all the text nodes there may be
    double text_nodes = 0.0, rows = 0.0, candidates = 0.0, tokens = 0.0;
};

double timer_scale = 1.0;
volatile double sink = 0.0;

// What is kept of a planned round: its inputs. The parts copy them to one working set before the clock starts, as a
// round finds its buffers warm.
struct Kept {
    int32_t tokens[7 * kTopK];
    float logits[7 * kTopK];
    float confidence[8];
    int32_t text = 0;
    int32_t proposals = 0;
    int32_t parent[kMaxText];
    int8_t slot[kMaxText];
    int8_t run[kMaxText];
    GroupText group[8];
    float path_q[7 * kTopK + kMaxText];
};

struct Working {
    CandidateSet set;
    RoundFeatures features;
    RoundPrices prices;
    Order order;

    void take(const Kept & k) {
        set.positions = 7;
        set.top_k = kTopK;
        set.text = k.text;
        set.proposals = k.proposals;
        set.total = 7 * kTopK + k.text;
        std::copy_n(k.tokens, 7 * kTopK, set.token);
        std::copy_n(k.group, 8, set.group);
        std::copy_n(k.slot, k.text, set.text_slot);
        std::copy_n(k.run, k.text, set.text_run);
        for (int32_t i = 0; i < 7 * kTopK; ++i) {
            set.parent[i] = i < kTopK ? kAnchor : (i / kTopK - 1) * kTopK;
        }
        std::copy_n(k.parent, k.text, set.parent + 7 * kTopK);
        std::copy_n(k.path_q, set.total, order.path_q);
    }
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
            if (scheduler->report().text_nodes == kMaxText) {
                s.full.ns.push_back(s.round.ns.back());
            }
            s.text_nodes += scheduler->report().text_nodes;
            s.candidates += scheduler->report().candidates;
            s.rows += tree.rows;
            s.tokens += static_cast<double>(path.size());
            if (keep != nullptr && d.draft && keep->size() < 2000) {
                Kept & k = keep->emplace_back();
                const CandidateSet & set = scheduler->candidates();
                std::copy_n(block.tokens, 7 * kTopK, k.tokens);
                std::copy_n(block.logits, 7 * kTopK, k.logits);
                std::copy_n(block.confidence, 7, k.confidence);
                k.text = set.text;
                k.proposals = set.proposals;
                std::copy_n(set.parent + 7 * kTopK, set.text, k.parent);
                std::copy_n(set.text_slot, set.text, k.slot);
                std::copy_n(set.text_run, set.text, k.run);
                std::copy_n(set.group, 8, k.group);
                std::copy_n(scheduler->order().path_q, set.total, k.path_q);
            }
        }
        scheduler->end_request();
    }
    return s;
}

template <class Setup, class Body> Series time_each(size_t n, int repeats, Setup setup, Body body) {
    Series s;
    for (int r = 0; r < repeats; ++r) {
        for (size_t i = 0; i < n; ++i) {
            setup(i);
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
    // The quietest window: others on the machine only ever add.
    constexpr size_t window = 1000;
    double least = 1e300;
    for (size_t at = 0; at + window <= s.round.ns.size(); at += window / 2) {
        std::vector<double> part(s.round.ns.begin() + static_cast<std::ptrdiff_t>(at),
                                 s.round.ns.begin() + static_cast<std::ptrdiff_t>(at + window));
        std::nth_element(part.begin(), part.begin() + window / 2, part.end());
        if (part[window / 2] < least) {
            least = part[window / 2];
            s.quiet.ns = part;
        }
    }
    std::printf("%s\"%s\":{\"text_nodes\":%.1f,\"candidates\":%.1f,\"rows\":%.1f,\"tokens\":%.2f,", first ? "" : ",",
                name, s.text_nodes / n, s.candidates / n, s.rows / n, s.tokens / n);
    s.decide.print("decide", true, overhead);
    s.plan.print("plan", false, overhead);
    s.observe.print("observe", false, overhead);
    s.quiet.print("quiet_round", false, 3 * overhead);
    s.round.print("round", false, 3 * overhead);
    if (!s.full.ns.empty()) {
        s.full.print("round_of_63_text_nodes", false, 3 * overhead);
    }
    std::printf("}");
}

} // namespace bench

int main(int argc, char ** argv) {
    using namespace bench;
    const int32_t rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 40000, 8000); // the first requests do not count
    timer_scale = 1.0 / ticks_per_ns();
    const auto nothing = [](size_t) {};
    Series empty = time_each(20000, 2, nothing, nothing);
    std::sort(empty.ns.begin(), empty.ns.end());
    const double overhead = quantile(empty.ns, 0.5);

    std::printf("{\"kernels\":\"%s\",\"timer_ns\":%.1f,\"streams\":{", kernels().name, overhead);
    std::vector<Kept> kept;
    kept.reserve(2000);
    SchedulerConfig config;
    Stream typical = serve(config, kTypicalRepeat, rounds, &kept); // 8 text nodes a round on average
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
    Series s = time_each(4000, 6, nothing, [&](size_t i) {
        table->offer(static_cast<uint32_t>(200 + i), 64, offer);
        sink = sink + offer.price[0];
    });
    std::printf("\"widths_learned\":%d,\"offered\":%d,", table->size(), offer.count);
    s.print("price_24_widths", true, overhead);
    const size_t n = kept.size();
    s = time_each(n, 4, nothing, [&](size_t i) {
        const uint32_t c = static_cast<uint32_t>(200 + (i * 37) % 8000);
        table->record_verify(16, c, 15000.0 + static_cast<double>((i * 7919) % 300));
    });
    s.print("cost_training_step", false, overhead);

    // Candidate pricing, order, layout, on the kept rounds.
    auto model = std::make_unique<AcceptanceModel>();
    auto work = std::make_unique<Working>();
    work->features = RoundFeatures{};
    for (int32_t slot = 0; slot < kSlots; ++slot) {
        work->features.text_base[slot] = 0.3 * slot;
        work->features.precision[slot] = 0.6;
    }
    work->features.context = 0.2;
    const auto take = [&](size_t i) { work->take(kept[i]); };
    s = time_each(n, 4, take, [&](size_t i) {
        kernels().block_features(kept[i].logits, kept[i].confidence, 7, work->features.block);
        model->price(work->set, work->features, work->prices);
    });
    s.print("price_candidates", false, overhead);
    s = time_each(n, 4, take, [&](size_t) { order_by_path_q(work->set.total, 63, work->order); });
    s.print("order_64_rows", false, overhead);
    s = time_each(n, 4, take, [&](size_t) { order_by_path_q(work->set.total, 15, work->order); });
    s.print("order_16_rows", false, overhead);
    Tree tree;
    s = time_each(
        n, 4,
        [&](size_t i) {
            work->take(kept[i]);
            order_by_path_q(work->set.total, 63, work->order);
        },
        [&](size_t) {
            layout_depth_first(1, work->set.token, work->set.parent, work->order, 15, tree);
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
    s = time_each(n, 4, nothing, [&](size_t i) {
        e.draft[i % kMaxWidths] += 1e-6;
        sink = sink + choose_width(wide, e, o, 16).value;
    });
    s.print("choose_of_24", false, overhead);

    // Learning one labelled parent.
    s = time_each(
        n, 4,
        [&](size_t i) {
            work->take(kept[i]);
            kernels().block_features(kept[i].logits, kept[i].confidence, 7, work->features.block);
            model->price(work->set, work->features, work->prices);
        },
        [&](size_t i) {
            Labels label;
            label.count = label.groups = 1;
            label.hit[0] = static_cast<int32_t>(i % 9) - 1;
            label.text[0] = work->set.group[0].child;
            model->learn(work->set, work->features, work->prices, label);
        });
    s.print("learn_one_parent", false, overhead);

    // Text: chains merged into each kept block, over a growing index; and appending one token.
    const auto chains_over = [&](double repeat, double & nodes) {
        Workload w = workload("copy");
        w.repeat = repeat;
        const Request request(77, w, 2000, static_cast<int32_t>(n) + 100);
        SuffixIndex index;
        index.begin(2100 + static_cast<int32_t>(n));
        for (int32_t i = 0; i < 2000; ++i) {
            index.append(request.text[static_cast<size_t>(i)]);
        }
        ChainBuilder chains;
        TextChain chain;
        nodes = 0.0;
        Series series;
        for (size_t i = 0; i < n; ++i) {
            BlockDraw block;
            draw_block(request, 2000 + static_cast<int32_t>(i), 7, TrueLaw{}, block);
            const uint64_t t0 = ticks();
            chains.begin(index, request.text[2000 + i]);
            chains.anchor_chain(index, 32, chain);
            chains.take_block(block.tokens, 7, kTopK, work->set);
            chains.merge_text(index, chain, 32, work->set);
            const uint64_t t1 = ticks();
            series.ns.push_back(static_cast<double>(t1 - t0) * timer_scale);
            nodes += work->set.text / static_cast<double>(n);
            index.append(request.text[2000 + i]);
        }
        return series;
    };
    double nodes = 0.0;
    s = chains_over(0.02, nodes);
    std::printf(",\"text_chains_nodes\":%.1f", nodes);
    s.print("text_chains", false, overhead);
    s = chains_over(0.5, nodes);
    std::printf(",\"text_chains_full_nodes\":%.1f", nodes);
    s.print("text_chains_full", false, overhead);
    const Request request(78, workload("copy"), 4000, 4000);
    SuffixIndex growing;
    growing.begin(9000);
    Series append;
    for (size_t i = 0; i < 7900; ++i) {
        const uint64_t t0 = ticks();
        growing.append(request.text[i]);
        const uint64_t t1 = ticks();
        append.ns.push_back(static_cast<double>(t1 - t0) * timer_scale);
    }
    append.print("append", false, overhead);
    std::printf("}}\n");
    return 0;
}
