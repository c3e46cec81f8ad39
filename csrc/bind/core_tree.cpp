#include "bind/core_arrays.h"
#include "core/block.h"
#include "core/tree.h"

#include <memory>
#include <vector>

namespace adaspark::bind {

using namespace adaspark::core;

namespace {

std::vector<Candidate> candidates(const Array<int32_t> & tokens, const Array<int32_t> & parents,
                                  const Array<float> & q) {
    require(tokens.size() == parents.size() && tokens.size() == q.size(), "tokens, parents and q differ in length");
    require(tokens.size() <= kMaxCandidates, "too many candidates");
    std::vector<Candidate> out(static_cast<size_t>(tokens.size()));
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] = {tokens.data()[i], parents.data()[i], q.data()[i]};
        require(out[i].parent >= kAnchor && out[i].parent < static_cast<int32_t>(i), "a parent must precede its child");
        require(out[i].q >= 0.0F && out[i].q <= 1.0F, "q must be in [0, 1]");
    }
    return out;
}

} // namespace

void init_tree(py::module_ & m) {
    m.attr("MAX_ROWS") = kMaxRows;
    m.attr("MAX_CANDIDATES") = kMaxCandidates;
    m.def(
        "block_candidates",
        [](const Array<int32_t> & tokens, const Array<float> & logits, const Array<float> & confidence) {
            const auto positions = static_cast<int32_t>(confidence.size());
            require(positions > 0 && tokens.size() % positions == 0 && logits.size() == tokens.size(),
                    "tokens and logits are (B * K,), confidence is (B,)");
            require(tokens.size() <= kMaxCandidates, "too many candidates");
            const auto k = static_cast<int32_t>(tokens.size() / positions);
            std::vector<Candidate> out(static_cast<size_t>(tokens.size()));
            candidates_from_block({positions, k, view(tokens), view(logits), view(confidence)}, out);
            Array<int32_t> parents(tokens.size());
            Array<float> q(tokens.size());
            for (size_t i = 0; i < out.size(); ++i) {
                parents.mutable_data()[i] = out[i].parent;
                q.mutable_data()[i] = out[i].q;
            }
            return py::make_tuple(parents, q);
        },
        py::arg("tokens").noconvert(), py::arg("logits").noconvert(), py::arg("confidence").noconvert(),
        "Parent and head-based q of a block's candidates: position * K + column.");
    m.def(
        "order_best_first",
        [](const Array<int32_t> & parents, const Array<float> & q, int32_t limit) {
            const auto c = candidates(parents, parents, q);
            const auto order = std::make_unique<Order>();
            order_best_first(c, limit, *order);
            return py::make_tuple(to_array(order->index, order->count),
                                  to_array(order->path_q, static_cast<int32_t>(c.size())));
        },
        py::arg("parents").noconvert(), py::arg("q").noconvert(), py::arg("limit"),
        "Candidate indices by decreasing Q (at most `limit`), and Q of every candidate.");
    m.def(
        "layout_depth_first",
        [](int32_t anchor, const Array<int32_t> & tokens, const Array<int32_t> & parents, const Array<float> & q,
           int32_t rows) {
            const auto c = candidates(tokens, parents, q);
            require(rows >= 1 && rows <= kMaxRows, "rows must be in [1, 64]");
            const auto order = std::make_unique<Order>();
            Tree tree;
            order_best_first(c, rows - 1, *order);
            layout_depth_first(anchor, c, *order, rows - 1, tree);
            py::dict d;
            d["tokens"] = to_array(tree.token, tree.rows);
            d["parents"] = to_array(tree.parent, tree.rows);
            d["depths"] = to_array(tree.depth, tree.rows);
            d["candidates"] = to_array(tree.candidate, tree.rows);
            d["ranks"] = to_array(tree.rank, tree.rows);
            d["ancestors"] = to_array(tree.ancestors, tree.rows);
            return d;
        },
        py::arg("anchor"), py::arg("tokens").noconvert(), py::arg("parents").noconvert(), py::arg("q").noconvert(),
        py::arg("rows"), "The best-first tree of at most `rows` rows, laid out depth-first.");
}

} // namespace adaspark::bind
