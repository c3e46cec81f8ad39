// The only place that sees ggml's own description of a graph.
#include "engine/ggml_graph/program.h"

#include <ggml-impl.h>

namespace adaspark::ggml_graph {

void number_graph(ggml_cgraph * graph) { graph->uid = ggml_graph_next_uid(); }

} // namespace adaspark::ggml_graph
