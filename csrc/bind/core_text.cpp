#include "bind/core_arrays.h"
#include "core/candidates.h"
#include "core/suffix_index.h"

namespace adaspark::bind {

using namespace adaspark::core;

void init_text(py::module_ & m) {
    py::class_<SuffixIndex>(m, "SuffixIndex", "A request's own text, indexed by suffix.")
        .def(py::init([](int32_t capacity) {
                 auto index = std::make_unique<SuffixIndex>();
                 index->begin(capacity);
                 return index;
             }),
             py::arg("capacity"))
        .def("begin", &SuffixIndex::begin, py::arg("capacity"))
        .def(
            "extend", [](SuffixIndex & index, const Array<int32_t> & tokens) { index.append(view(tokens)); },
            py::arg("tokens").noconvert())
        .def(
            "propose",
            [](const SuffixIndex & index, const Array<int32_t> & context) {
                const auto c = view(context);
                const Proposal p = index.propose(c.data() + c.size(), static_cast<int32_t>(c.size()));
                return py::make_tuple(p.token, p.slot, p.length);
            },
            py::arg("context").noconvert(), "(token, evidence slot, copy length); slot -1 = nothing to propose.")
        .def(
            "chain",
            [](const SuffixIndex & index, int32_t anchor, int32_t depth) {
                require(depth >= 1 && depth <= kChainDepth, "depth must be in [1, 32]");
                ChainBuilder b;
                TextChain chain;
                b.begin(index, anchor);
                b.anchor_chain(index, depth, chain);
                return py::make_tuple(to_array(chain.token, chain.count), to_array(chain.slot, chain.count));
            },
            py::arg("anchor"), py::arg("depth") = kChainDepth, "(tokens, evidence slots) of the chain from the anchor.")
        .def("precision",
             [](const SuffixIndex & index) {
                 double p[kSlots];
                 for (int32_t s = 0; s < kSlots; ++s) {
                     p[s] = index.precision(s);
                 }
                 return to_array(p, kSlots);
             })
        .def("__len__", [](const SuffixIndex & index) { return index.tokens().size(); });
}

} // namespace adaspark::bind
