#include "bind/engine_common.h"
#include "engine/backend.h"
#include "engine/gguf_file.h"
#include "engine/quantize.h"

#include <gguf.h>
#include <llama.h>

namespace adaspark::bind {

namespace {

// Arrays (vocabularies) may hold a hundred thousand entries; a summary shows the short ones.
constexpr std::size_t kArrayMax = 64;

py::object scalar(gguf_type type, const void * data) {
    switch (type) {
    case GGUF_TYPE_UINT8:
        return py::int_(*static_cast<const uint8_t *>(data));
    case GGUF_TYPE_INT8:
        return py::int_(*static_cast<const int8_t *>(data));
    case GGUF_TYPE_UINT16:
        return py::int_(*static_cast<const uint16_t *>(data));
    case GGUF_TYPE_INT16:
        return py::int_(*static_cast<const int16_t *>(data));
    case GGUF_TYPE_UINT32:
        return py::int_(*static_cast<const uint32_t *>(data));
    case GGUF_TYPE_INT32:
        return py::int_(*static_cast<const int32_t *>(data));
    case GGUF_TYPE_UINT64:
        return py::int_(*static_cast<const uint64_t *>(data));
    case GGUF_TYPE_INT64:
        return py::int_(*static_cast<const int64_t *>(data));
    case GGUF_TYPE_FLOAT32:
        return py::float_(*static_cast<const float *>(data));
    case GGUF_TYPE_FLOAT64:
        return py::float_(*static_cast<const double *>(data));
    case GGUF_TYPE_BOOL:
        return py::bool_(*static_cast<const bool *>(data));
    default:
        return py::none();
    }
}

std::size_t scalar_size(gguf_type type) {
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return 8;
    default:
        return 4;
    }
}

py::object metadata_value(const gguf_context * ctx, int64_t id) {
    const gguf_type type = gguf_get_kv_type(ctx, id);
    if (type == GGUF_TYPE_STRING) {
        return text(gguf_get_val_str(ctx, id));
    }
    if (type != GGUF_TYPE_ARRAY) {
        return scalar(type, gguf_get_val_data(ctx, id));
    }
    const std::size_t n = gguf_get_arr_n(ctx, id);
    if (n > kArrayMax) {
        return py::none();
    }
    const gguf_type item = gguf_get_arr_type(ctx, id);
    py::list out;
    for (std::size_t i = 0; i < n; ++i) {
        out.append(item == GGUF_TYPE_STRING
                       ? py::object(text(gguf_get_arr_str(ctx, id, i)))
                       : scalar(item, static_cast<const char *>(gguf_get_arr_data(ctx, id)) + i * scalar_size(item)));
    }
    return out;
}

py::dict read_gguf(const std::string & path) {
    const GgufFile file(path);
    py::dict metadata;
    for (int64_t id = 0; id < gguf_get_n_kv(file.context()); ++id) {
        py::object value = metadata_value(file.context(), id);
        if (!value.is_none()) {
            metadata[text(gguf_get_key(file.context(), id))] = value;
        }
    }
    py::dict out;
    out["path"] = path;
    out["file_size"] = file.file_size();
    out["architecture"] = file.architecture();
    out["name"] = metadata.contains("general.name") ? py::object(metadata["general.name"]) : py::str("");
    out["n_tensors"] = gguf_get_n_tensors(file.context());
    out["chat_template"] =
        metadata.contains("tokenizer.chat_template") ? py::object(metadata["tokenizer.chat_template"]) : py::none();
    out["metadata"] = metadata;
    return out;
}

py::dict backend_info() {
    py::list list;
    for (const Device & d : devices()) {
        py::dict item;
        item["name"] = d.name;
        item["description"] = d.description;
        item["type"] = d.type;
        item["memory_free"] = d.memory_free;
        item["memory_total"] = d.memory_total;
        list.append(item);
    }
    py::dict out;
    out["llama_version"] = std::string(llama_source_version());
    out["system_info"] = std::string(llama_print_system_info());
    out["devices"] = list;
    out["gpu_offload"] = llama_supports_gpu_offload();
    return out;
}

void set_log_callback(const py::object & callback) {
    if (callback.is_none()) {
        const py::gil_scoped_release release; // the sink's lock may be held by a thread that waits for the GIL
        log_sink_set({});
        return;
    }
    // Shared: the sink is copied under a lock without the GIL, a Python object must not be.
    auto held = std::shared_ptr<py::object>(new py::object(callback), [](py::object * object) {
        const py::gil_scoped_acquire gil;
        delete object;
    });
    const py::gil_scoped_release release;
    log_sink_set([held](int level, const std::string & line) {
        const py::gil_scoped_acquire gil;
        try {
            (*held)(level, py::reinterpret_steal<py::str>(
                               PyUnicode_DecodeUTF8(line.data(), static_cast<py::ssize_t>(line.size()), "replace")));
        } catch (py::error_already_set & error) {
            error.discard_as_unraisable("adaspark log callback");
        }
    });
}

} // namespace

void init_backend(py::module_ & m) {
    auto & base = py::register_exception<AdaSparkError>(m, "AdaSparkError");
    auto & model = py::register_exception<ModelError>(m, "ModelError", base);
    py::register_exception<DrafterError>(m, "DrafterError", model);
    py::register_exception<ContextFullError>(m, "ContextFullError", base);
    py::register_exception<OutOfMemoryError>(m, "OutOfMemoryError", base);
    py::register_exception<BackendError>(m, "BackendError", base);

    m.attr("llama_version") = llama_source_version();
    m.def("backend_info", &backend_info);
    m.def("set_log_callback", &set_log_callback, py::arg("callback"));
    m.def("read_gguf", &read_gguf, py::arg("path"));
    m.def(
        "quantize",
        [](const std::string & source, const std::string & destination, const std::string & file_type,
           const std::optional<std::string> & token_embedding_type, int32_t n_threads) {
            const py::gil_scoped_release release;
            quantize_file(source, destination, file_type, token_embedding_type.value_or(""), n_threads);
        },
        py::arg("source"), py::arg("destination"), py::arg("file_type"), py::arg("token_embedding_type"),
        py::arg("n_threads"));
    // Python must not be called into after it has shut down.
    py::module_::import("atexit").attr("register")(py::cpp_function([] { set_log_callback(py::none()); }));
}

} // namespace adaspark::bind
