#include "bind/engine_slots.h"
#include "engine/topk.h"

#include <llama.h>

namespace adaspark::bind {

namespace {

std::unique_ptr<PyTarget> load(const std::string & path, const TargetOptions & options, const py::object & progress) {
    auto out = std::make_unique<PyTarget>();
    out->slot = std::make_shared<Slot>();
    Callbacks callbacks;
    try {
        const py::gil_scoped_release release;
        out->slot->target = std::make_unique<Target>(path, options, load_progress(callbacks, progress));
    } catch (const AdaSparkError &) {
        callbacks.rethrow(); // the callback's own error says more than "was stopped"
        throw;
    }
    return out;
}

py::object prefill(const PyTarget & self, const py::object & tokens, const py::object & progress) {
    const Ints ints = as_ints(tokens);
    const Lease lease(*self.slot);
    Target & target = self.get();
    Callbacks callbacks;
    std::span<float> logits;
    {
        const py::gil_scoped_release release;
        logits = target.prefill(view(ints), prefill_progress(callbacks, progress));
    }
    callbacks.rethrow();
    return copy_array<float>(logits, {static_cast<py::ssize_t>(logits.size())});
}

py::tuple verify(const PyTarget & self, const py::object & tokens, const py::object & parents, bool want_logits,
                 bool want_picks) {
    const Ints token = as_ints(tokens);
    const Ints parent = as_ints(parents);
    const Lease lease(*self.slot);
    Target & target = self.get();
    const auto n = token.size();
    {
        const py::gil_scoped_release release;
        target.verify(view(token), view(parent));
    }
    py::array_t<int32_t> best(want_picks ? n : 0);
    py::object logits = py::none();
    if (want_logits) {
        logits = py::array_t<float>({n, static_cast<py::ssize_t>(target.n_vocab())});
    }
    for (py::ssize_t i = 0; i < n; ++i) {
        const auto r = static_cast<int32_t>(i);
        if (want_picks) {
            const int32_t pick = target.row_pick(r);
            best.mutable_at(i) = pick > 0 ? pick : argmax(target.row_logits(r));
        }
        if (want_logits) {
            const std::span<float> row = target.row_logits(r);
            auto array = py::reinterpret_borrow<py::array_t<float>>(logits);
            std::copy(row.begin(), row.end(), array.mutable_data(i, 0));
        }
    }
    return py::make_tuple(best, logits);
}

py::object chat_template(const PyTarget & self) {
    const char * source = llama_model_chat_template(self.get().model(), nullptr);
    return source == nullptr ? py::object(py::none()) : py::object(text(source));
}

} // namespace

void init_target(py::module_ & m) {
    py::class_<TargetOptions>(m, "TargetOptions", py::is_final(), py::module_local())
        .def(py::init<>())
        .def_readwrite("n_ctx", &TargetOptions::n_ctx)
        .def_readwrite("n_batch", &TargetOptions::n_batch)
        .def_readwrite("n_threads", &TargetOptions::n_threads)
        .def_readwrite("n_threads_batch", &TargetOptions::n_threads_batch)
        .def_readwrite("n_gpu_layers", &TargetOptions::n_gpu_layers)
        .def_readwrite("flash_attention", &TargetOptions::flash_attention)
        .def_readwrite("cache_type_k", &TargetOptions::cache_type_k)
        .def_readwrite("cache_type_v", &TargetOptions::cache_type_v)
        .def_readwrite("use_mmap", &TargetOptions::use_mmap)
        .def_readwrite("max_rows", &TargetOptions::max_rows)
        .def_readwrite("kernels", &TargetOptions::kernels);

    py::class_<PyTarget>(m, "Target", py::is_final(), py::module_local())
        .def(py::init(&load), py::arg("path"), py::arg("options"), py::arg("progress") = py::none())
        .def_property_readonly("path", [](const PyTarget & t) { return t.get().path(); })
        .def_property_readonly("architecture", [](const PyTarget & t) { return t.get().architecture(); })
        .def_property_readonly("description", [](const PyTarget & t) { return t.get().description(); })
        .def_property_readonly("kernels", [](const PyTarget & t) { return t.get().kernels(); })
        .def_property_readonly("kernels_reason", [](const PyTarget & t) { return t.get().kernels_reason(); })
        .def_property_readonly("n_ctx", [](const PyTarget & t) { return t.get().n_ctx(); })
        .def_property_readonly("n_vocab", [](const PyTarget & t) { return t.get().n_vocab(); })
        .def_property_readonly("n_embd", [](const PyTarget & t) { return t.get().n_embd(); })
        .def_property_readonly("n_layer", [](const PyTarget & t) { return t.get().n_layer(); })
        .def_property_readonly("n_threads", [](const PyTarget & t) { return t.get().n_threads(); })
        .def_property_readonly("max_rows", [](const PyTarget & t) { return t.get().max_rows(); })
        .def_property_readonly("supports_tree", [](const PyTarget & t) { return t.get().supports_tree(); })
        .def_property_readonly("max_chain", [](const PyTarget & t) { return t.get().max_chain(); })
        .def_property_readonly("chat_template", &chat_template)
        .def_property_readonly("bos_token", [](const PyTarget & t) { return llama_vocab_bos(t.get().vocab()); })
        .def_property_readonly("eos_token", [](const PyTarget & t) { return llama_vocab_eos(t.get().vocab()); })
        .def_property_readonly("add_bos", [](const PyTarget & t) { return llama_vocab_get_add_bos(t.get().vocab()); })
        .def_property_readonly("n_past", [](const PyTarget & t) { return t.get().n_past(); })
        .def_property_readonly("n_kv_cells",
                               [](const PyTarget & t) {
                                   const Lease lease(*t.slot);
                                   return t.get().n_kv_cells();
                               })
        .def_property_readonly("closed", [](const PyTarget & t) { return t.slot->target == nullptr; })
        .def("close",
             [](const PyTarget & t) {
                 const Lease lease(*t.slot);
                 t.slot->close();
             })
        .def("clear",
             [](const PyTarget & t) {
                 const Lease lease(*t.slot);
                 t.get().clear();
             })
        .def(
            "tokenize",
            [](const PyTarget & t, const std::string & text, bool add_special, bool parse_special) {
                return t.get().tokenize(text, add_special, parse_special);
            },
            py::arg("text"), py::arg("add_special") = false, py::arg("parse_special") = false)
        .def(
            "token_bytes",
            [](const PyTarget & t, int32_t token, bool special) {
                return py::bytes(t.get().token_bytes(token, special));
            },
            py::arg("token"), py::arg("special") = false)
        .def(
            "token_text",
            [](const PyTarget & t, int32_t token) {
                static_cast<void>(t.get().token_bytes(token, false)); // checks the range
                return text(llama_vocab_get_text(t.get().vocab(), token));
            },
            py::arg("token"))
        .def(
            "is_eog",
            [](const PyTarget & t, int32_t token) {
                return token >= 0 && token < t.get().n_vocab() && t.get().is_eog(token);
            },
            py::arg("token"))
        .def("prefill", &prefill, py::arg("tokens"), py::arg("progress") = py::none())
        .def("device_times",
             [](const PyTarget & t) -> py::object {
                 const DeviceTimes * times = t.get().device_times();
                 return times == nullptr
                            ? py::object(py::none())
                            : py::dict(py::arg("copy_us") = times->copy_us, py::arg("submit_us") = times->submit_us,
                                       py::arg("wait_us") = times->wait_us);
             })
        .def(
            "replay_us",
            [](const PyTarget & t, int32_t n) {
                const Lease lease(*t.slot);
                return t.get().replay_us(n);
            },
            py::arg("n"))
        .def("verify", &verify, py::arg("tokens"), py::arg("parents"), py::arg("logits") = false,
             py::arg("picks") = true)
        .def(
            "commit",
            [](const PyTarget & t, const py::object & path) {
                const Ints rows = as_ints(path);
                const Lease lease(*t.slot);
                t.get().commit(view(rows));
            },
            py::arg("path"))
        .def(
            "rollback",
            [](const PyTarget & t, int32_t n_past) {
                const Lease lease(*t.slot);
                if (!t.get().rollback(n_past)) {
                    throw std::invalid_argument("a " + t.get().architecture() +
                                                " target keeps recurrent state and cannot go back; clear() it");
                }
            },
            py::arg("n_past"));
}

} // namespace adaspark::bind
