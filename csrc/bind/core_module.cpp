// The scheduler for Python, without an engine: imports without llama.cpp. The contract is adaspark/_core.pyi.
#include "bind/core_arrays.h"

PYBIND11_MODULE(_core, m) {
    m.doc() = "The AdaSpark scheduler: tree order, online cost and acceptance models, text candidates, width chooser.";
    adaspark::bind::init_tree(m);
    adaspark::bind::init_learners(m);
    adaspark::bind::init_text(m);
    adaspark::bind::init_scheduler(m);
}
