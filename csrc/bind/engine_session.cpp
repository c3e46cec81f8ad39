#include "bind/engine_slots.h"
#include "engine/session.h"

#include <algorithm>

namespace adaspark::bind {

namespace {

struct PySession {
    std::shared_ptr<Slot> slot;
    Target * target = nullptr;
    Drafter * drafter = nullptr;
    std::unique_ptr<Session> session;

    // The session refers to the slot's objects: they must still be those it was made on.
    Session & get() const {
        if (&slot->get() != target || (drafter != nullptr && slot->drafter.get() != drafter)) {
            throw BackendError("this session's model or drafter is closed. Load them again");
        }
        return *session;
    }
};

Arm arm_of(const std::string & name) {
    if (name == "plain") {
        return Arm::plain;
    }
    if (name == "chain") {
        return Arm::chain;
    }
    if (name == "tree") {
        return Arm::tree;
    }
    if (name == "adaspark") {
        return Arm::adaspark;
    }
    throw std::invalid_argument("arm is 'plain', 'chain', 'tree' or 'adaspark', not '" + name + "'");
}

const char * arm_name(Arm arm) {
    static constexpr const char * kNames[] = {"plain", "chain", "tree", "adaspark"};
    return kNames[static_cast<std::size_t>(arm)];
}

std::unique_ptr<PySession> make(const PyTarget & target, const PyDrafter * drafter) {
    auto out = std::make_unique<PySession>();
    out->slot = target.slot;
    out->target = &target.get();
    if (drafter != nullptr) {
        out->drafter = &drafter->get();
        if (drafter->slot != target.slot) {
            throw std::invalid_argument("the drafter was loaded for another target");
        }
    }
    out->session = std::make_unique<Session>(*out->target, out->drafter);
    return out;
}

void begin(const PySession & self, const py::object & prompt, const Request & request, const py::object & progress) {
    const Ints ids = as_ints(prompt);
    const Lease lease(*self.slot);
    Session & session = self.get();
    Callbacks callbacks;
    {
        const py::gil_scoped_release release;
        session.begin(view(ids), request, prefill_progress(callbacks, progress));
    }
    callbacks.rethrow();
}

py::object last_round(const PySession & self) {
    const auto & report = self.get().last_round();
    if (!report) {
        return py::none();
    }
    py::dict out;
    out["tokens"] = report->tokens;
    out["rows"] = report->rows;
    out["drafted"] = report->drafted;
    out["accepted"] = report->accepted;
    out["draft_us"] = report->draft_us;
    out["verify_us"] = report->verify_us;
    out["commit_us"] = report->commit_us;
    return out;
}

// A count by depth, up to the deepest that is not zero.
template <class Counts> py::list by_depth(const Counts & counts) {
    const auto last = std::find_if(counts.rbegin(), counts.rend(), [](int32_t n) { return n != 0; });
    py::list out;
    for (auto it = counts.begin(); it != last.base(); ++it) {
        out.append(*it);
    }
    return out;
}

py::dict depth_counts(const DepthCounts & counts) {
    py::dict out;
    out["drafted_by_depth"] = by_depth(counts.drafted);
    out["accepted_by_depth"] = by_depth(counts.accepted);
    return out;
}

py::object median(std::vector<float> values) {
    if (values.empty()) {
        return py::none();
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return py::float_(*middle);
}

py::dict statistics(const PySession & self) {
    const Statistics & s = self.get().statistics();
    py::dict out;
    out["arm"] = arm_name(self.get().request().arm);
    out["prompt_tokens"] = s.prompt_tokens;
    out["reused_tokens"] = s.reused_tokens;
    out["completion_tokens"] = s.completion_tokens;
    out["rounds"] = s.rounds;
    out["rows"] = s.rows;
    out["drafted"] = s.drafted;
    out["accepted"] = s.accepted;
    DepthCounts all;
    py::dict sources;
    static constexpr const char * kNames[kSources] = {"drafter", "text", "agreed"};
    for (std::size_t source = 0; source < kSources; ++source) {
        for (std::size_t depth = 0; depth < core::kMaxRows; ++depth) {
            all.drafted[depth] += s.sources[source].drafted[depth];
            all.accepted[depth] += s.sources[source].accepted[depth];
        }
        sources[kNames[source]] = depth_counts(s.sources[source]);
    }
    out["drafted_by_depth"] = by_depth(all.drafted);
    out["accepted_by_depth"] = by_depth(all.accepted);
    out["sources"] = sources;
    py::dict widths;
    for (std::size_t rows = 0; rows < s.width_rounds.size(); ++rows) {
        if (s.width_rounds[rows] > 0) {
            widths[py::int_(rows)] = s.width_rounds[rows];
        }
    }
    out["width_rounds"] = widths;
    out["rounds_plain"] = s.rounds_plain;
    out["rounds_text"] = s.rounds_text;
    out["rounds_draft"] = s.rounds_draft;
    out["expected_accepted"] = s.expected_accepted;
    out["realised_accepted"] = s.realised_accepted;
    out["fitted_loss"] = s.fitted_loss;
    out["head_loss"] = s.head_loss;
    out["labelled"] = s.labelled;
    out["priced_rounds"] = s.price_errors.size();
    out["price_error"] = median(s.price_errors);
    out["prefill_us"] = s.prefill_us;
    out["inject_us"] = s.inject_us;
    out["draft_us"] = s.draft_us;
    out["plan_us"] = s.plan_us;
    out["verify_us"] = s.verify_us;
    out["walk_us"] = s.walk_us;
    out["commit_us"] = s.commit_us;
    out["decode_us"] = s.decode_us;
    return out;
}

py::object learned(const PySession & self, const Request & request) {
    const Lease lease(*self.slot);
    const std::vector<uint8_t> bytes = self.get().learned_save(request);
    if (bytes.empty()) {
        return py::none();
    }
    return py::bytes(reinterpret_cast<const char *>(bytes.data()), bytes.size());
}

bool restore(const PySession & self, const Request & request, const py::bytes & state) {
    const std::string_view bytes = state;
    const Lease lease(*self.slot);
    return self.get().learned_load(request, {reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size()});
}

void set_proposer(const PySession & self, const py::object & proposer) {
    if (proposer.is_none()) {
        self.get().proposer_set({});
        return;
    }
    self.get().proposer_set([proposer](std::span<const int32_t> committed) {
        const py::gil_scoped_acquire gil;
        const auto result =
            py::cast<py::tuple>(proposer(copy_array<int32_t>(committed, {static_cast<py::ssize_t>(committed.size())})));
        return Proposal{py::cast<std::vector<int32_t>>(result[0]), py::cast<std::vector<int32_t>>(result[1])};
    });
}

} // namespace

void init_session(py::module_ & m) {
    py::class_<Request>(m, "Request", py::is_final(), py::module_local())
        .def(py::init<>())
        .def_readwrite("n_predict", &Request::n_predict)
        .def_readwrite("temperature", &Request::temperature)
        .def_readwrite("top_k", &Request::top_k)
        .def_readwrite("top_p", &Request::top_p)
        .def_readwrite("min_p", &Request::min_p)
        .def_readwrite("seed", &Request::seed)
        .def_readwrite("stop", &Request::stop)
        .def_readwrite("ignore_eos", &Request::ignore_eos)
        .def_property(
            "arm", [](const Request & r) { return arm_name(r.arm); },
            [](Request & r, const std::string & name) { r.arm = arm_of(name); })
        .def_readwrite("arm_n", &Request::arm_n)
        .def_readwrite("text", &Request::text)
        .def_readwrite("acceptance", &Request::acceptance)
        .def_readwrite("gating", &Request::gating)
        .def_readwrite("draft_only", &Request::draft_only);

    py::class_<PySession>(m, "Session", py::is_final(), py::module_local())
        .def(py::init(&make), py::arg("target"), py::arg("drafter") = py::none(), py::keep_alive<1, 2>(),
             py::keep_alive<1, 3>())
        .def("begin", &begin, py::arg("prompt"), py::arg("request"), py::arg("progress") = py::none())
        .def("step",
             [](const PySession & self) {
                 const Lease lease(*self.slot);
                 Session & session = self.get();
                 const py::gil_scoped_release release;
                 return session.step();
             })
        .def("cancel", [](const PySession & self) { self.session->cancel(); })
        .def_property_readonly("finished", [](const PySession & self) { return self.get().finished(); })
        .def_property_readonly("finish_reason",
                               [](const PySession & self) -> py::object {
                                   const std::string & reason = self.get().finish_reason();
                                   return reason.empty() ? py::object(py::none()) : py::object(py::str(reason));
                               })
        .def_property_readonly("token_ids",
                               [](const PySession & self) {
                                   const auto ids = self.get().reply();
                                   return std::vector<int32_t>(ids.begin(), ids.end());
                               })
        .def_property_readonly("committed", [](const PySession & self) { return self.get().committed(); })
        .def_property_readonly("last_round", &last_round)
        .def_property_readonly("warnings", [](const PySession & self) { return self.get().warnings(); })
        .def_property_readonly("statistics", &statistics)
        .def(
            "set_trace", [](const PySession & self, bool on) { self.get().trace_set(on); }, py::arg("on"))
        .def("trace",
             [](const PySession & self) {
                 const std::span<const uint8_t> bytes = self.get().trace();
                 return py::bytes(reinterpret_cast<const char *>(bytes.data()), bytes.size());
             })
        .def("learned", &learned, py::arg("request"))
        .def("restore", &restore, py::arg("request"), py::arg("state"))
        .def("set_proposer", &set_proposer, py::arg("proposer"));
}

} // namespace adaspark::bind
