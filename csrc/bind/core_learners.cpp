// The learners one by one, for analysis and for the tests that hold them against plain Python.
#include "bind/core_arrays.h"
#include "core/chooser.h"
#include "core/draft_gate.h"
#include "core/gains.h"
#include "core/head_estimate.h"
#include "core/rate.h"
#include "core/sample_bank.h"
#include "core/width_table.h"

#include <string>

#include <pybind11/stl.h>

namespace adaspark::bind {

using namespace adaspark::core;

namespace {

struct CostLaw {
    ContextLaw law;
    SampleBank bank;
};

void bind_cost(py::module_ & m) {
    py::class_<CostLaw>(m, "CostLaw", "One verify time as a function of context (Eq. 4), with its sample bank.")
        .def(py::init<>())
        .def(
            "add",
            [](CostLaw & c, uint32_t context, double time) {
                require(time > 0.0, "time must be positive");
                c.law.train(context, time);
                c.bank.add(context, time);
            },
            py::arg("context"), py::arg("time"))
        .def(
            "price",
            [](const CostLaw & c, uint32_t context) {
                require(c.law.trained(), "a law needs three samples");
                return c.law.price(ContextBasis(context));
            },
            py::arg("context"))
        .def("refit", [](CostLaw & c) { return refit(c.law, c.bank) == Refit::adopted; })
        .def_property_readonly("trained", [](const CostLaw & c) { return c.law.trained(); })
        .def_property_readonly("samples", [](const CostLaw & c) { return c.law.samples; })
        .def_property_readonly("scale", [](const CostLaw & c) { return c.law.scale; })
        .def_property_readonly("floor", [](const CostLaw & c) { return c.law.floor; })
        .def_property_readonly("banked", [](const CostLaw & c) { return c.bank.size(); })
        .def_property_readonly("weights", [](const CostLaw & c) { return to_array(c.law.lanes.weight, kBasis); })
        .def_property_readonly("squared_gradients", [](const CostLaw & c) { return to_array(c.law.lanes.n, kBasis); });

    py::class_<WidthTable>(m, "WidthTable", "Learned widths and their prices (Eq. 5). Times in microseconds.")
        .def(py::init([](int32_t max_rows, bool law) {
                 require(max_rows >= 1 && max_rows <= kMaxRows, "max_rows must be in [1, 64]");
                 auto t = std::make_unique<WidthTable>();
                 t->reset(max_rows, law);
                 return t;
             }),
             py::arg("max_rows") = kMaxRows, py::arg("law") = true)
        .def(
            "offer",
            [](WidthTable & t, uint32_t context, int32_t max_rows) {
                Offer o;
                t.offer(context, max_rows, o);
                return py::make_tuple(to_array(o.rows, o.count), to_array(o.price, o.count), o.draft);
            },
            py::arg("context"), py::arg("max_rows") = kMaxRows)
        .def(
            "unmeasured", [](const WidthTable & t, int32_t max_rows) { return t.unmeasured(max_rows); },
            py::arg("max_rows") = kMaxRows)
        .def(
            "idle", [](const WidthTable & t, int32_t max_rows) { return t.idle(max_rows); },
            py::arg("max_rows") = kMaxRows)
        .def("price_at_least", &WidthTable::price_at_least, py::arg("rows"))
        .def(
            "record",
            [](WidthTable & t, int32_t rows, uint32_t context, double verify, double draft) {
                t.record_draft(context, draft);
                t.record_verify(rows, context, verify);
                t.tick();
            },
            py::arg("rows"), py::arg("context"), py::arg("verify"), py::arg("draft") = 0.0)
        .def("came_out_short", &WidthTable::came_out_short, py::arg("asked"), py::arg("built"))
        .def("split", &WidthTable::split, py::arg("rows"))
        .def("refit", &WidthTable::refit_all)
        .def_property_readonly("clock", &WidthTable::clock)
        .def_property_readonly("markup", &WidthTable::markup)
        .def_property_readonly("classes", [](const WidthTable & t) {
            py::list out;
            for (int32_t i = 0; i < t.size(); ++i) {
                const WidthClass & c = t.at(i);
                out.append(py::make_tuple(c.low, c.high, c.timed.count, c.unreachable != 0));
            }
            return out;
        });
}

Objective make_objective(double rate, double fixed, double margin, const std::array<double, 4> & gains) {
    Objective o;
    o.rate = rate;
    o.fixed = fixed;
    o.margin = margin;
    o.gains = {gains[0], gains[1], gains[2], gains[3]};
    return o;
}

void bind_choice(py::module_ & m) {
    m.def(
        "choose_width",
        [](const Array<int32_t> & rows, const Array<double> & price, const Array<double> & draft,
           const Array<double> & text, double draft_reference, double text_reference, double rate, double fixed,
           int32_t incumbent, double margin, const std::array<double, 4> & gains) {
            const py::ssize_t n = rows.size();
            require(n <= kMaxWidths && price.size() == n && draft.size() == n && text.size() == n,
                    "rows, price, draft and text must have the same length, at most 24");
            Offer offer;
            Expected e;
            offer.count = static_cast<int32_t>(n);
            std::copy_n(rows.data(), n, offer.rows);
            std::copy_n(price.data(), n, offer.price);
            std::copy_n(draft.data(), n, e.draft);
            std::copy_n(text.data(), n, e.text);
            e.draft_reference = draft_reference;
            e.text_reference = text_reference;
            const Choice c = choose_width(offer, e, make_objective(rate, fixed, margin, gains), incumbent);
            return py::make_tuple(c.rows, c.tokens, c.value);
        },
        py::arg("rows").noconvert(), py::arg("price").noconvert(), py::arg("draft").noconvert(),
        py::arg("text").noconvert(), py::arg("draft_reference"), py::arg("text_reference"), py::arg("rate"),
        py::arg("fixed"), py::arg("incumbent") = 0, py::arg("margin") = kMargin,
        py::arg("gains") = std::array<double, 4>{1.0, 1.0, 1.0, 1.0},
        "(rows, tokens, value) of Eq. (7) over the offered widths. gains: draft above, text above, draft below, text "
        "below.");
    m.def(
        "split_point",
        [](const Array<int32_t> & tops, const Array<double> & price, const Array<double> & tokens, int32_t held,
           double rate, double fixed) {
            require(tops.size() == price.size() && tokens.size() == kMaxRows + 1, "tokens must have 65 entries");
            const double * t = tokens.data();
            return split_point(view(tops), view(price), held, t[std::clamp(held, 0, kMaxRows)],
                               make_objective(rate, fixed, kMargin, {1.0, 1.0, 1.0, 1.0}),
                               [t](int32_t rows) { return t[rows]; });
        },
        py::arg("tops").noconvert(), py::arg("price").noconvert(), py::arg("tokens").noconvert(), py::arg("held"),
        py::arg("rate"), py::arg("fixed"), "Width to split a class at, or 0. tokens: expected, by rows (0..64).");
}

} // namespace

void init_learners(py::module_ & m) {
    bind_cost(m);
    bind_choice(m);
    py::class_<LongRunRate>(m, "LongRunRate", "Decode rate of a context band's positions by text bin.")
        .def(py::init<>())
        .def("add", &LongRunRate::add, py::arg("context"), py::arg("bin"), py::arg("committed"),
             py::arg("microseconds"))
        .def("rate", &LongRunRate::rate, py::arg("context"), py::arg("bin"), "Tokens per microsecond; 0 = unknown.");
    py::class_<GainFit>(m, "GainFit", "Realised over predicted marginal tokens, a line in context.")
        .def(py::init<>())
        .def("observe", &GainFit::observe, py::arg("predicted"), py::arg("realised"), py::arg("context"))
        .def("at", &GainFit::at, py::arg("context"));
    py::class_<HeadEstimate>(m, "HeadOffset", "Per-request logit offset of the head-based estimate.")
        .def(py::init<>())
        .def("learn", &HeadEstimate::learn, py::arg("gradient"), py::arg("squared"))
        .def(
            "shift", [](const HeadEstimate & h, double q) { return shift_odds(q, h.odds_factor()); }, py::arg("q"))
        .def_property_readonly("value", [](const HeadEstimate & h) { return h.offset.value; });
    py::class_<GateInput>(m, "GateInput", "A round as known before the drafter runs.")
        .def(py::init([](double tokens, double time, double rate, double optimistic, int32_t bin) {
                 if (bin < 0 || bin >= kTextBins) {
                     throw py::value_error("bin is a text bin, 0 to " + std::to_string(kTextBins - 1));
                 }
                 return GateInput{tokens, time, rate, optimistic, bin};
             }),
             py::arg("tokens"), py::arg("time"), py::arg("rate"), py::arg("optimistic") = 1.0, py::arg("bin") = 0);
    py::class_<DraftGate>(m, "DraftGate", "Whether to run the drafter.")
        .def(py::init<>())
        .def("begin_request", &DraftGate::begin_request)
        .def("decide", &DraftGate::decide, py::arg("input"))
        .def("drafted", &DraftGate::drafted, py::arg("input"), py::arg("tokens"), py::arg("time"))
        .def("outcome", &DraftGate::outcome, py::arg("predicted"), py::arg("realised"))
        .def("pay", &DraftGate::pay, py::arg("tokens"))
        .def_property_readonly("credit", &DraftGate::credit)
        .def_property_readonly("probing", &DraftGate::probing);
    m.def(
        "gated_steps",
        [](const Array<double> & gradients) {
            FtrlCoordinate c;
            double w = 0.0;
            for (const double g : view(gradients)) {
                w = ftrl_gated_step(c, g, w, kBucketRule);
            }
            return py::make_tuple(w, c.z, c.n);
        },
        py::arg("gradients").noconvert(), "(weight, z, n) of a bucket of the acceptance model after these gradients.");
    m.def(
        "prior_steps",
        [](const Array<double> & gradients, double prior) {
            FtrlCoordinate c;
            double w = prior;
            for (const double g : view(gradients)) {
                w = ftrl_step(c, g, w, prior, FtrlRule{.alpha = kAcceptAlpha});
            }
            return py::make_tuple(w, c.z, c.n);
        },
        py::arg("gradients").noconvert(), py::arg("prior"),
        "(weight, z, n) of a shared coefficient of the acceptance model after these gradients.");
}

} // namespace adaspark::bind
