#include "bind/engine_slots.h"
#include "engine/session.h"

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
    out["drafted_by_depth"] = s.drafted_by_depth;
    out["accepted_by_depth"] = s.accepted_by_depth;
    out["width_rounds"] = s.width_rounds;
    out["rounds_plain"] = s.rounds_plain;
    out["rounds_text"] = s.rounds_text;
    out["rounds_draft"] = s.rounds_draft;
    out["text_drafted"] = s.text_drafted;
    out["text_accepted"] = s.text_accepted;
    out["agreed_accepted"] = s.agreed_accepted;
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
    py::class_<Request>(m, "Request", py::is_final())
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
        .def_readwrite("arm_n", &Request::arm_n);

    py::class_<PySession>(m, "Session", py::is_final())
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
        .def("set_proposer", &set_proposer, py::arg("proposer"));
}

} // namespace adaspark::bind
