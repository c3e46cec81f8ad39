// Short convolutions: of every row's inputs, each tap read up the row's own path and then in the committed text.
#include "engine/graph/forward.h"

#include <bit>

namespace adaspark::graph {

void Forward::short_convolution(const BlockWeights & w, int32_t thread) {
    const kernels::Activations & in = normed(w.attn_norm, w.conv_in.quantized(), thread);
    Scratch & s = scratch_[static_cast<std::size_t>(thread)];
    const int32_t n = spec_.n_embd;
    const int32_t taps = spec_.conv_taps;
    // Everything of 32 channels on one thread: b, c and u, the inputs b * u of all rows, the sums over their taps.
    const auto channels = [&](int32_t unit) {
        const int32_t first = unit * kernels::kBlock;
        float * parts[] = {s.gate.data(), s.c.data(), s.up.data()}; // b, c, u
        for (int32_t i = 0; i < 3; ++i) {
            const int32_t panel = (i * n + first) / kernels::kColumns;
            kernels_.gemm({w.conv_in.format, w.conv_in.data, w.conv_in.k, panel, panel + kUnit, in, rows_, parts[i],
                           kernels::kBlock, nullptr, false});
        }
        for (int32_t r = 0; r < rows_; ++r) {
            float * input = windows_->row(w.state, r) + first;
            for (int32_t i = 0; i < kernels::kBlock; ++i) {
                input[i] = s.gate[static_cast<std::size_t>(r * kernels::kBlock + i)] *
                           s.up[static_cast<std::size_t>(r * kernels::kBlock + i)];
            }
            const float * inputs[kMaxTaps]; // the oldest first
            uint64_t above = in_->visible[r];
            int32_t back = 0; // how far up in the committed text
            for (int32_t t = taps - 1; t >= 0; --t) {
                if (above != 0) {
                    const int32_t row = 63 - std::countl_zero(above);
                    above &= ~(uint64_t{1} << row);
                    inputs[t] = windows_->row(w.state, row) + first;
                } else {
                    inputs[t] = windows_->committed(w.state, ++back) + first;
                }
            }
            float * out = act_.data() + static_cast<std::ptrdiff_t>(r) * n + first;
            kernels_.short_conv(inputs, w.conv + first, n, taps, s.c.data() + r * kernels::kBlock, kernels::kBlock,
                                out);
            if (w.conv_out.quantized()) {
                kernels_.quantize(out, first, kernels::kBlock, r, inner_);
            }
        }
    };
    const int32_t units = n / kernels::kBlock;
    workers_.spread(units, thread, piece(units), [&](int32_t begin, int32_t end) {
        for (int32_t unit = begin; unit < end; ++unit) {
            channels(unit);
        }
    });
    workers_.barrier();
    product(w.conv_out, inner_, x_.data(), n, true, thread);
}

} // namespace adaspark::graph
