// Simulated serving: one policy over one sequence of requests on one cost law, printed as one line of JSON.
#include "world.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace bench {

// Milliseconds at 300 and at 2,000 tokens, by rows.
static std::vector<std::pair<int32_t, std::array<double, 2>>>
through(const std::vector<int32_t> & rows, const std::vector<double> & near, const std::vector<double> & far) {
    std::vector<std::pair<int32_t, std::array<double, 2>>> points;
    for (size_t i = 0; i < rows.size(); ++i) {
        const double slope = (far[i] - near[i]) / 1.7;
        points.push_back({rows[i], {near[i] - 0.3 * slope, slope}});
    }
    return points;
}

CostLaw cost_law(const std::string & name) {
    CostLaw c;
    if (name == "lfm-dense") { // Table 1 and section 3.2: flat to 16 rows, a step above, dearer at 40 than at 48
        c.points = {{1, {22.4, 0.10}},  {2, {23.2, 0.10}},  {8, {23.9, 0.13}},  {16, {25.8, 0.20}}, {20, {36.2, 0.30}},
                    {32, {43.7, 0.43}}, {40, {49.0, 0.50}}, {48, {46.9, 0.50}}, {64, {60.0, 0.60}}};
        c.steps = true;
        c.draft = 9.6;
    } else if (name == "lfm-routed") { // rises with every row
        c.points = {{1, {9.4, 0.01}},   {2, {14.3, 0.02}},  {4, {18.2, 0.02}},  {6, {21.0, 0.02}},
                    {8, {23.5, 0.03}},  {12, {27.5, 0.06}}, {16, {31.0, 0.11}}, {24, {43.0, 0.2}},
                    {32, {54.3, 0.35}}, {48, {66.0, 0.4}},  {64, {80.0, 0.5}}};
        c.draft = 7.1;
        c.jitter = 0.04;            // the experts its rows touch
    } else if (name == "qwen-4b") { // fragments of 8 rows
        c.points = {{1, {23.0, 1.1}},  {4, {24.0, 1.2}},  {8, {24.7, 1.28}},   {10, {35.9, 1.7}}, {16, {36.7, 2.35}},
                    {20, {76.0, 2.9}}, {24, {82.0, 3.2}}, {32, {100.5, 4.03}}, {64, {190.0, 8.0}}};
        c.steps = true;
        c.draft = 8.0;
    } else if (name == "qwen-8b") {
        c.points = {{1, {38.3, 1.0}},   {4, {40.4, 1.15}},  {8, {41.3, 1.2}},    {10, {62.0, 1.7}}, {16, {62.5, 2.27}},
                    {20, {133.0, 3.0}}, {24, {146.0, 3.4}}, {32, {175.6, 4.12}}, {64, {340.0, 8.0}}};
        c.steps = true;
        c.draft = 11.2;
    } else if (name == "cpu-2core") {
        c.points = through({1, 2, 3, 4, 6, 8, 12, 16, 32}, {4.8, 7.0, 10.0, 12.4, 17.8, 20.9, 29.9, 33.0, 64.0},
                           {9.0, 14.0, 18.5, 21.5, 28.4, 34.5, 49.0, 55.0, 113.0});
        c.draft = 7.0;
        c.jitter = 0.02;
        c.burst = 0.08;
    } else if (name == "amx-2core") { // our own kernels on two cores with AMX
        c.points = through({1, 2, 4, 6, 8, 12, 16, 24, 32}, {1.88, 2.05, 2.73, 3.44, 4.03, 5.49, 7.06, 11.99, 14.7},
                           {3.65, 4.18, 6.58, 7.94, 9.28, 13.72, 16.95, 25.26, 31.12});
        c.draft = 0.7;
        c.jitter = 0.03;
        c.burst = 0.08;
    } else if (name == "llama-2core") { // llama.cpp's kernels on two cores: rows cost nearly as much as the first
        c.points =
            through({1, 2, 3, 4, 6, 8, 12, 16, 24, 32}, {7.3, 12.4, 16.5, 20.5, 28.0, 36.0, 50.0, 62.0, 93.0, 122.0},
                    {25.3, 48.0, 73.0, 95.0, 131.0, 167.0, 252.0, 324.0, 484.0, 641.0});
        c.draft = 0.8;
        c.jitter = 0.03;
        c.burst = 0.08;
        c.change = 0.45;
    } else if (name == "gpu-flat") {
        c.points = {{1, {12.0, 0.1}}, {64, {13.2, 0.2}}};
        c.draft = 2.5;
    } else if (name == "never-pays") { // every row costs as much as the first, and the drafter as much as two
        c.points = {{1, {5.0, 0.2}}, {64, {320.0, 12.8}}};
        c.draft = 10.0;
    } else { // "inversion": 33 to 47 rows run a geometry dearer than the one of 48
        c.points = {{1, {20.0, 0.1}},  {8, {21.0, 0.1}},  {16, {22.0, 0.15}}, {24, {30.0, 0.2}},
                    {32, {34.0, 0.2}}, {40, {44.0, 0.3}}, {48, {27.0, 0.2}},  {64, {47.0, 0.4}}};
        c.steps = true;
        c.draft = 4.0;
    }
    return c;
}

static double median(std::vector<double> values) {
    if (values.empty()) {
        return 0.0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

struct Plan {
    std::string law = "cpu-2core";
    std::string arm = "adaspark";
    std::string work = "mixed";
    uint64_t seed = 0;
    int32_t requests = 8;
    int32_t switch_at = -1; // request whose reply changes to `to` at its middle
    std::string to = "code";
    int64_t slow_at = -1; // token (of all replies) from which the machine is 50% slower: the same text for every arm
    int32_t busy_from = 0, busy_to = 0; // rounds of the first request that take twice as long
    double cold = 1.0; // what one row takes right after a prompt, times: weights and keys have left the shared cache
    int32_t prompts[2] = {0, 0}; // > 0: the requests' prompts, in turns; short replies
    int32_t first_reply = 1024;
    bool trace = false;
};

} // namespace bench

int main(int argc, char ** argv) {
    using namespace bench;
    Plan plan;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const auto value = [&](const char * key) -> const char * {
            const size_t n = std::strlen(key);
            return a.compare(0, n, key) == 0 ? a.c_str() + n : nullptr;
        };
        if (const char * v = value("--law=")) {
            plan.law = v;
        } else if (const char * w = value("--arm=")) {
            plan.arm = w;
        } else if (const char * k = value("--workload=")) {
            plan.work = k;
        } else if (const char * t = value("--to=")) {
            plan.to = t;
        } else if (const char * s = value("--seed=")) {
            plan.seed = std::strtoull(s, nullptr, 10);
        } else if (const char * n = value("--requests=")) {
            plan.requests = std::atoi(n);
        } else if (const char * x = value("--switch-at=")) {
            plan.switch_at = std::atoi(x);
        } else if (const char * y = value("--slow-at=")) {
            plan.slow_at = std::atoll(y);
        } else if (const char * b = value("--busy=")) {
            std::sscanf(b, "%d:%d", &plan.busy_from, &plan.busy_to);
        } else if (const char * p = value("--prompts=")) {
            std::sscanf(p, "%d:%d", &plan.prompts[0], &plan.prompts[1]);
        } else if (const char * f = value("--first-reply=")) {
            plan.first_reply = std::atoi(f);
        } else if (const char * c = value("--cold=")) {
            plan.cold = std::atof(c);
        } else if (a == "--trace") {
            plan.trace = true;
        } else {
            std::fprintf(stderr, "unknown argument: %s\n", a.c_str());
            return 2;
        }
    }
    const CostLaw law = cost_law(plan.law);
    SchedulerConfig config;
    if (plan.arm == "text") {
        config.block = 0;
    } else if (plan.arm == "always") {
        config.gating = false;
    } else if (plan.arm != "adaspark") {
        config.pinned_rows = std::atoi(plan.arm.c_str());
    }
    auto scheduler = std::make_unique<Scheduler>(config);
    const TrueLaw truth;
    const char * kinds[] = {"prose", "code", "copy", "hard"};
    std::vector<int32_t> path;
    BlockDraw block;
    Random noise(mix_seed(plan.seed, 77));
    double drift = 0.0;
    int64_t replied = 0; // tokens of the replies before this one
    int32_t rows_before = 1;
    std::printf("{\"law\":\"%s\",\"arm\":\"%s\",\"seed\":%llu,\"requests\":[", plan.law.c_str(), plan.arm.c_str(),
                static_cast<unsigned long long>(plan.seed));
    for (int32_t q = 0; q < plan.requests; ++q) {
        const uint64_t seed = mix_seed(plan.seed * 1000003ULL + 17, static_cast<uint64_t>(q));
        Random r(seed ^ 0x5EEDULL);
        const std::string kind = plan.work == "mixed" ? kinds[r.below(4)] : plan.work;
        const int32_t drawn = 150 + static_cast<int32_t>(1850 * r.uniform() * r.uniform());
        const int32_t prompt = plan.prompts[q % 2] > 0 ? plan.prompts[q % 2] : drawn;
        const int32_t reply = plan.prompts[0] > 0 ? 200 + r.below(100)
                              : q == 0            ? plan.first_reply
                                                  : 400 + r.below(1200);
        const bool switched = q == plan.switch_at;
        Request request(seed, workload(kind), prompt, reply);
        Request after(seed, workload(switched ? plan.to : kind), prompt, reply);
        scheduler->begin_request({request.text.data(), static_cast<size_t>(prompt)},
                                 request.text[static_cast<size_t>(prompt)], reply + 64);
        int32_t at = prompt; // index of the anchor
        const int32_t end = prompt + request.reply();
        double time = 0.0;
        double measuring = 0.0;
        int32_t rounds = 0, drafted = 0, text_rounds = 0, probes = 0, measured = 0;
        int64_t rows = 0;
        std::vector<double> priced; // price / time of the verifies whose chosen width was filled
        std::string curve;
        double part_time = 0.0;
        int32_t part_from = at;
        while (at < end) {
            const Request & now = switched && at - prompt >= reply / 2 ? after : request;
            const Decision d = scheduler->decide();
            const Tree * tree;
            if (d.draft) {
                draw_block(now, at, config.block, truth, block);
                const DraftBlock b{{block.tokens, static_cast<size_t>(config.block * kTopK)},
                                   {block.logits, static_cast<size_t>(config.block * kTopK)},
                                   {block.confidence, static_cast<size_t>(config.block)}};
                tree = &scheduler->plan(&b);
            } else {
                tree = &scheduler->plan(nullptr);
            }
            const RoundReport & report = scheduler->report();
            drift = 0.995 * drift + 0.002 * noise.normal();
            double factor = std::exp(drift) * (1.0 + law.jitter * noise.normal());
            // As measured: over by half after 4 rounds at 300 tokens, after 11 at 2,000. What computes longer waits
            // less.
            const double waits = (plan.cold - 1.0) * std::exp(-rounds / (3.0 + prompt / 150.0));
            const double one = law.verify(1, at);
            const double waiting = waits * one * one / law.verify(tree->rows, at);
            const double cold = rounds == 0 ? 1.08 : 1.0;
            factor *= noise.uniform() < law.burst ? 1.1 + 0.6 * noise.uniform() : 1.0;
            factor *= plan.slow_at >= 0 && replied + (at - prompt) >= plan.slow_at ? 1.5 : 1.0;
            factor *= q == 0 && rounds >= plan.busy_from && rounds < plan.busy_to ? 2.0 : 1.0;
            RoundTimes t;
            t.draft = d.draft ? 1e3 * law.draft * factor * cold * (1.0 + 0.4 * waits) : 1.0;
            const double change = tree->rows != rows_before ? 1e3 * law.change : 0.0;
            rows_before = tree->rows;
            t.verify = (law.verify(tree->rows, at) + waiting + change) * factor * cold;
            t.commit = (d.draft ? 60.0 : 20.0) * factor;
            if (rounds > 0 && report.verify_price > 0.0 && report.asked_rows == tree->rows) {
                priced.push_back(report.verify_price / t.verify);
            }
            walk(now, at, *tree, end - at, path);
            Outcome o;
            o.path = path;
            o.next_token = now.text[static_cast<size_t>(at) + path.size()];
            o.last = at + static_cast<int32_t>(path.size()) >= end;
            scheduler->observe(o, t);
            at += static_cast<int32_t>(path.size());
            const double spent = t.draft + t.verify + t.commit;
            time += spent;
            part_time += spent;
            measuring += report.reason == WidthReason::measuring ? spent : 0.0;
            measured += report.reason == WidthReason::measuring;
            probes += d.probing;
            drafted += report.kind == RoundKind::draft;
            text_rounds += report.kind == RoundKind::text;
            rows += tree->rows;
            ++rounds;
            if (plan.trace) {
                std::fprintf(
                    stderr,
                    "q=%d r=%d ctx=%d kind=%d reason=%d rows=%d asked=%d acc=%zu exp=%.2f price=%.0f t=%.0f d=%.0f "
                    "probe=%d rate=%.3f fitted=%d inc=%d\n",
                    q, rounds, at, static_cast<int>(report.kind), static_cast<int>(report.reason), tree->rows,
                    report.asked_rows, path.size(), report.tokens, report.verify_price, t.verify, t.draft, d.probing,
                    1e3 * scheduler->rate(), report.fitted, scheduler->incumbent());
            }
            if (rounds % 50 == 0) { // tokens per second of each 50 rounds, for recovery curves
                char text[48];
                std::snprintf(text, sizeof text, "%s%.2f", curve.empty() ? "" : ",",
                              1e6 * (at - part_from) / part_time);
                curve += text;
                part_time = 0.0;
                part_from = at;
            }
        }
        scheduler->end_request();
        replied += at - prompt;
        // How far off the measured widths' prices are by now, at the other request's context and at this one's.
        WidthTable table = scheduler->widths();
        double off = 0.0, dear = 0.0;
        int32_t prices = 0;
        for (const int32_t context :
             {plan.prompts[0] > 0 ? plan.prompts[0] : prompt, plan.prompts[1] > 0 ? plan.prompts[1] : at}) {
            Offer offer;
            table.offer(static_cast<uint32_t>(context), kMaxRows, offer);
            for (int32_t i = 0; i < table.size(); ++i) {
                const int32_t width = table.at(i).high;
                if (table.measured(width)) {
                    const double ratio = table.price_of(width) / (law.verify(width, context) * std::exp(drift));
                    dear = std::max(dear, ratio);
                    off += std::abs(ratio - 1.0);
                    ++prices;
                }
            }
        }
        const double over = median(priced);
        for (double & ratio : priced) {
            ratio = std::abs(ratio - 1.0);
        }
        std::printf("%s{\"workload\":\"%s\",\"tokens\":%d,\"us\":%.0f,\"rounds\":%d,\"drafted\":%d,\"text\":%d,"
                    "\"probes\":%d,\"measured\":%d,\"measuring_us\":%.0f,\"rows\":%lld,\"dear\":%.3f,\"off\":%.3f,"
                    "\"price\":%.4f,\"price_error\":%.4f,\"curve\":[%s]}",
                    q == 0 ? "" : ",", kind.c_str(), at - prompt, time, rounds, drafted, text_rounds, probes, measured,
                    measuring, static_cast<long long>(rows), dear, off / std::max(prices, 1), over, median(priced),
                    curve.c_str());
    }
    std::printf("],\"widths\":[");
    for (int32_t i = 0; i < scheduler->widths().size(); ++i) {
        const WidthClass & c = scheduler->widths().at(i);
        std::printf("%s[%d,%u]", i == 0 ? "" : ",", c.high, c.timed.count);
    }
    std::printf("]}\n");
    return 0;
}
