#include "bind/core_arrays.h"
#include "core/scheduler.h"

#include <memory>

namespace adaspark::bind {

using namespace adaspark::core;

namespace {

py::dict tree_dict(const Tree & t) {
    py::dict d;
    d["tokens"] = to_array(t.token, t.rows);
    d["parents"] = to_array(t.parent, t.rows);
    d["depths"] = to_array(t.depth, t.rows);
    d["candidates"] = to_array(t.candidate, t.rows);
    d["ranks"] = to_array(t.rank, t.rows);
    d["ancestors"] = to_array(t.ancestors, t.rows);
    return d;
}

py::dict report_dict(const Scheduler & s) {
    static constexpr const char * kinds[] = {"plain", "text", "draft"};
    static constexpr const char * reasons[] = {"chosen", "measuring", "pinned"};
    const RoundReport & r = s.report();
    py::dict d;
    d["kind"] = kinds[static_cast<int>(r.kind)];
    d["reason"] = reasons[static_cast<int>(r.reason)];
    d["fitted"] = r.fitted;
    d["explored"] = r.explored;
    d["asked_rows"] = r.asked_rows;
    d["candidates"] = r.candidates;
    d["text_nodes"] = r.text_nodes;
    d["tokens"] = r.tokens;
    d["verify_us"] = r.verify_price;
    d["draft_us"] = r.draft_price;
    d["fitted_loss"] = r.fitted_loss;
    d["head_loss"] = r.head_loss;
    d["labelled"] = r.labelled;
    return d;
}

// Everything the last plan was made of.
py::dict candidates_dict(const Scheduler & s) {
    const CandidateSet & c = s.candidates();
    const RoundPrices & p = s.prices();
    const int32_t n = c.total;
    Array<float> q(n);
    Array<int32_t> slot(n), run(n), lane_state(n);
    for (int32_t i = 0; i < n; ++i) {
        const int32_t t = i - c.text_base();
        if (t >= 0) {
            q.mutable_data()[i] = static_cast<float>(p.text[t]);
            slot.mutable_data()[i] = c.text_slot[t];
            run.mutable_data()[i] = c.text_run[t];
            lane_state.mutable_data()[i] = 3;
            continue;
        }
        const GroupText & g = c.group[i / kTopK];
        q.mutable_data()[i] = static_cast<float>(p.block[i / kTopK][i % kTopK]);
        slot.mutable_data()[i] = g.slot;
        run.mutable_data()[i] = g.run;
        lane_state.mutable_data()[i] = g.slot < 0 ? 0 : g.agreed == i % kTopK ? 1 : 2;
    }
    py::dict d;
    d["tokens"] = to_array(c.token, n);
    d["parents"] = to_array(c.parent, n);
    d["q"] = q;
    d["path_q"] = to_array(s.order().path_q, n);
    d["slots"] = slot;
    d["runs"] = run;
    d["evidence"] = lane_state;
    d["order"] = to_array(s.order().index, s.order().count);
    d["positions"] = c.positions;
    return d;
}

py::dict acceptance_dict(const Scheduler & s) {
    const AcceptanceModel & a = s.acceptance();
    double n[kBucketWeights];
    std::transform(std::begin(a.bucket), std::end(a.bucket), n, [](const FtrlCoordinate & c) { return c.n; });
    py::dict d;
    d["weights"] = to_array(a.dense.weight, kDense);
    d["squared_gradients"] = to_array(a.dense.n, kDense);
    d["bucket_weights"] = to_array(a.bucket_weight, kBucketWeights);
    d["bucket_squared_gradients"] = to_array(n, kBucketWeights);
    d["bucket_labels"] = to_array(a.bucket_labels, kBucketWeights);
    d["intercept"] = a.intercept.value;
    d["text_intercept"] = a.text_intercept.value;
    d["guard_fitted"] = s.guard().fitted;
    d["guard_head"] = s.guard().head;
    d["offset"] = s.head_estimate().offset.value;
    return d;
}

py::list widths_list(const Scheduler & s) {
    py::list out;
    for (int32_t i = 0; i < s.widths().size(); ++i) {
        const WidthClass & c = s.widths().at(i);
        py::dict d;
        d["low"] = c.low;
        d["high"] = c.high;
        d["samples"] = c.timed.count;
        d["us"] = s.widths().price_of(c.high);
        out.append(d);
    }
    return out;
}

// The cost model at any context, leaving the scheduler's own prices alone.
py::dict prices_at(const Scheduler & s, int32_t context) {
    if (context < 0) {
        throw py::value_error("a context is 0 tokens or more");
    }
    WidthTable table = s.widths();
    Offer offer;
    table.offer(static_cast<uint32_t>(context), s.config().max_rows, offer);
    py::list rows;
    py::list us;
    py::list samples;
    for (int32_t i = 0; i < table.size(); ++i) {
        const WidthClass & c = table.at(i);
        rows.append(c.high);
        us.append(table.measured(c.high) ? py::object(py::float_(table.price_of(c.high))) : py::none());
        samples.append(c.timed.count);
    }
    py::dict d;
    d["rows"] = rows;
    d["us"] = us;
    d["samples"] = samples;
    d["draft_us"] = offer.draft_known ? py::object(py::float_(offer.draft)) : py::none();
    d["commit_us"] = py::make_tuple(s.commit_time(false), s.commit_time(true));
    return d;
}

} // namespace

void init_scheduler(py::module_ & m) {
    py::class_<SchedulerConfig>(m, "SchedulerConfig")
        .def(py::init<>())
        .def_readwrite("block", &SchedulerConfig::block)
        .def_readwrite("top_k", &SchedulerConfig::top_k)
        .def_readwrite("max_rows", &SchedulerConfig::max_rows)
        .def_readwrite("pinned_rows", &SchedulerConfig::pinned_rows)
        .def_readwrite("gating", &SchedulerConfig::gating)
        .def_readwrite("text", &SchedulerConfig::text)
        .def_readwrite("acceptance", &SchedulerConfig::acceptance)
        .def_readwrite("offset", &SchedulerConfig::offset)
        .def_readwrite("exploration", &SchedulerConfig::exploration)
        .def_readwrite("law", &SchedulerConfig::law)
        .def_readwrite("rate", &SchedulerConfig::rate)
        .def_readwrite("gains", &SchedulerConfig::gains)
        .def_readwrite("margin", &SchedulerConfig::margin)
        .def_readwrite("siblings", &SchedulerConfig::siblings);

    py::class_<Scheduler>(m, "Scheduler")
        .def(py::init([](const SchedulerConfig & config, const Array<int32_t> & stop_tokens) {
                 return std::make_unique<Scheduler>(config, view(stop_tokens));
             }),
             py::arg("config"), py::arg("stop_tokens").noconvert())
        .def(
            "begin_request",
            [](Scheduler & s, const Array<int32_t> & prompt, int32_t first_token, int32_t reply_tokens) {
                s.begin_request(view(prompt), first_token, reply_tokens);
            },
            py::arg("prompt").noconvert(), py::arg("first_token"), py::arg("reply_tokens"))
        .def(
            "decide",
            [](Scheduler & s, int32_t max_rows) {
                const Decision d = s.decide(max_rows);
                return py::make_tuple(d.draft, d.probing, d.value_text, d.enough);
            },
            py::arg("max_rows"))
        .def("plan", [](Scheduler & s) { return tree_dict(s.plan(nullptr)); })
        .def(
            "plan_block",
            [](Scheduler & s, const Array<int32_t> & tokens, const Array<float> & logits,
               const Array<float> & confidence) {
                const DraftBlock b{view(tokens), view(logits), view(confidence)};
                return tree_dict(s.plan(&b));
            },
            py::arg("tokens").noconvert(), py::arg("logits").noconvert(), py::arg("confidence").noconvert())
        .def(
            "observe",
            [](Scheduler & s, const Array<int32_t> & path, int32_t next_token, double draft_us, double verify_us,
               double commit_us,
               bool last) { s.observe({view(path), next_token, last}, {draft_us, verify_us, commit_us}); },
            py::arg("path").noconvert(), py::arg("next_token"), py::arg("draft_us"), py::arg("verify_us"),
            py::arg("commit_us"), py::arg("last"))
        .def("end_request", &Scheduler::end_request)
        .def_static("state_version", &Scheduler::state_version)
        .def("save",
             [](const Scheduler & s) {
                 const std::vector<uint8_t> bytes = s.save();
                 return py::bytes(reinterpret_cast<const char *>(bytes.data()), bytes.size());
             })
        .def(
            "load",
            [](Scheduler & s, const py::bytes & bytes) {
                const std::string_view v = bytes;
                return s.load({reinterpret_cast<const uint8_t *>(v.data()), v.size()});
            },
            py::arg("bytes"))
        .def_property_readonly("sum_q", &Scheduler::sum_q)
        .def_property_readonly("report", &report_dict)
        .def_property_readonly("candidates", &candidates_dict)
        .def_property_readonly("acceptance", &acceptance_dict)
        .def_property_readonly("widths", &widths_list)
        .def("prices_at", &prices_at, py::arg("context"))
        .def_property_readonly("incumbent", &Scheduler::incumbent)
        .def_property_readonly("context", &Scheduler::context)
        .def_property_readonly("rate", &Scheduler::rate)
        .def_property_readonly("precision",
                               [](const Scheduler & s) {
                                   double p[kSlots];
                                   for (int32_t i = 0; i < kSlots; ++i) {
                                       p[i] = s.index().precision(i);
                                   }
                                   return to_array(p, kSlots);
                               })
        .def_property_readonly("gains", [](const Scheduler & s) {
            const Gains g = s.gains();
            return py::make_tuple(g.draft_above, g.text_above, g.draft_below, g.text_below);
        });
}

} // namespace adaspark::bind
