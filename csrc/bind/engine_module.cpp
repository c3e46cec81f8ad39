// adaspark._engine: the engine ring for Python. The contract with its docstrings is adaspark/_engine.pyi.
#include "bind/engine_common.h"

PYBIND11_MODULE(_engine, m) {
    m.doc() = "The engine: GGUF target, DSpark drafter, tree verify and decode session on llama.cpp.";
    adaspark::bind::init_backend(m);
    adaspark::bind::init_target(m);
    adaspark::bind::init_drafter(m);
    adaspark::bind::init_session(m);
}
