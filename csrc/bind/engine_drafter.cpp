#include "bind/engine_slots.h"

#include "engine/gguf_file.h"
#include "engine/graph/spec.h"

namespace adaspark::bind {

namespace {

std::unique_ptr<PyDrafter> load(const std::string & path, const PyTarget & target, const DrafterOptions & options,
                                const py::object & progress) {
    const Lease lease(*target.slot);
    Target & on = target.get();
    Callbacks callbacks;
    std::unique_ptr<Drafter> drafter;
    try {
        const py::gil_scoped_release release;
        drafter = std::make_unique<Drafter>(path, on, options, load_progress(callbacks, progress));
    } catch (const AdaSparkError &) {
        callbacks.rethrow();
        throw;
    }
    auto out = std::make_unique<PyDrafter>();
    out->slot = target.slot;
    out->drafter = drafter.get();
    target.slot->drafter = std::move(drafter);
    return out;
}

py::tuple draft(const PyDrafter & self, int32_t anchor, int32_t n_draft, float enough) {
    const Lease lease(*self.slot);
    Drafter & drafter = self.get();
    const Block * block = nullptr;
    {
        const py::gil_scoped_release release;
        block = &drafter.draft(anchor, n_draft, enough);
    }
    const py::ssize_t n = block->positions;
    return py::make_tuple(copy_array<int32_t>(block->ids, {n, Block::kTopK}),
                          copy_array<float>(block->values, {n, Block::kTopK}),
                          copy_array<float>(block->confidence, {n}));
}

} // namespace

void init_drafter(py::module_ & m) {
    m.def(
        "drafter_refusal",
        [](const std::string & path, const TargetOptions & options) {
            const std::string kernels = kernels_wanted(options);
            graph::ModelSpec spec;
            return kernels == "llama"
                       ? std::string()
                       : graph::read_spec(GgufFile(path), spec,
                                          kernels == "own" ? graph::Executor::own : graph::Executor::ggml);
        },
        py::arg("path"), py::arg("options"));

    py::class_<DrafterOptions>(m, "DrafterOptions", py::is_final(), py::module_local())
        .def(py::init<>())
        .def_readwrite("n_ctx", &DrafterOptions::n_ctx)
        .def_readwrite("n_threads", &DrafterOptions::n_threads)
        .def_readwrite("n_gpu_layers", &DrafterOptions::n_gpu_layers)
        .def_readwrite("kernels", &DrafterOptions::kernels);

    py::class_<PyDrafter>(m, "Drafter", py::is_final(), py::module_local())
        .def(py::init(&load), py::arg("path"), py::arg("target"), py::arg("options"), py::arg("progress") = py::none(),
             py::keep_alive<1, 3>())
        .def_property_readonly("path", [](const PyDrafter & d) { return d.get().path(); })
        .def_property_readonly("kernels", [](const PyDrafter & d) { return d.get().kernels(); })
        .def_property_readonly("block_size", [](const PyDrafter & d) { return d.get().info().block_size; })
        .def_property_readonly("n_draft", [](const PyDrafter & d) { return d.get().info().n_draft; })
        .def_property_readonly("top_k", [](const PyDrafter &) { return static_cast<int32_t>(Block::kTopK); })
        .def_property_readonly("sample_from_anchor",
                               [](const PyDrafter & d) { return d.get().info().sample_from_anchor; })
        .def_property_readonly("has_confidence", [](const PyDrafter & d) { return d.get().info().has_confidence; })
        .def_property_readonly("target_layers", [](const PyDrafter & d) { return d.get().info().target_layers; })
        .def_property_readonly("mask_token", [](const PyDrafter & d) { return d.get().info().mask_token; })
        .def_property_readonly("warnings", [](const PyDrafter & d) { return d.get().info().warnings; })
        .def_property_readonly("n_past", [](const PyDrafter & d) { return d.get().n_past(); })
        .def("close",
             [](const PyDrafter & d) {
                 const Lease lease(*d.slot);
                 if (d.slot->drafter.get() == d.drafter) {
                     d.slot->drafter.reset();
                 }
             })
        .def("draft", &draft, py::arg("anchor"), py::arg("n_draft"), py::arg("enough") = 0.0F);
}

} // namespace adaspark::bind
