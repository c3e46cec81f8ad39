// Products of activations and packed weights, over the lanes of the `simd_*.h` included before this file.
#pragma once

#include "kernels/kernels.h"
#include "kernels/scales.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

constexpr int32_t kRows = 8;             // rows multiplied together: what the registers hold
constexpr int kParts = kColumns / kWide; // turns over a panel; only the first finds it in memory
constexpr int32_t kAhead = 8192;         // bytes: how far ahead weights are asked for, across panels

// One part of a panel times RB rows. Each output is one chain of fused multiply-adds over ascending inputs (F32
// activations) or ascending blocks of 32 (int8 activations: the scaled sums, then the minimum).
template <Format F, int RB>
ADASPARK_INLINE void panel_rows(const Gemm & g, const uint8_t * w, int part, int32_t row, FW (&acc)[RB]) {
    each<RB>([&](auto r) { acc[r] = zero_wide(); });
    if constexpr (!is_quantized(F)) {
        const float * x[RB];
        each<RB>([&](auto r) { x[r] = g.a.x + static_cast<int64_t>(row + r) * g.k; });
        for (int32_t i = 0; i < g.k; ++i) {
            const int64_t at = int64_t{kColumns} * i + kWide * part;
            FW values;
            if constexpr (F == Format::f32) {
                values = load_wide(reinterpret_cast<const float *>(w) + at);
            } else if constexpr (F == Format::f16) {
                values = load_half_wide(w + 2 * at);
            } else {
                values = load_bf16_wide(w + 2 * at);
            }
            each<RB>([&](auto r) { acc[r] = fma(values, set1_wide(x[r][i]), acc[r]); });
        }
    } else {
        Scales<F> scales = {w, part, {}, {}, {}, {}};
        const uint8_t * codes = w + panel_scales(F, g.k);
        for (int32_t b = 0; b < g.k / kBlock; ++b, codes += code_bytes(F)) {
            const int64_t at = static_cast<int64_t>(b) * g.a.rows + row;
            if (part == 0 && row == 0) {
                for (int i = 0; i <= code_bytes(F); i += 64) {
                    ADASPARK_PREFETCH(codes + kAhead + i);
                }
            }
            IW s[kHalves<F> * RB];
            block_dot<F, RB>(codes, part, g.a.codes(b, row), g.a.minus8 + at,
                             g.a.minus8_half + static_cast<int64_t>(b) * 2 * g.a.rows + row, g.a.rows, s);
            scales.next(b);
            each<RB>([&](auto r) {
                const FW d = set1_wide(g.a.d[at + r]);
                each<kHalves<F>>(
                    [&](auto h) { acc[r] = fma(to_float(s[RB * h + r]), mul(scales.scale[h], d), acc[r]); });
                if constexpr (has_minimum(F)) {
                    acc[r] = fma(scales.minimum, set1_wide(g.a.dsum[at + r]), acc[r]);
                }
            });
        }
    }
}

template <Format F, int RB> void panel_store(const Gemm & g, int32_t panel, int32_t row) {
    const uint8_t * w = g.w + static_cast<std::size_t>(panel) * panel_bytes(F, g.k);
    for (int part = 0; part < kParts; ++part) {
        FW acc[RB];
        panel_rows<F, RB>(g, w, part, row, acc);
        const int64_t column = static_cast<int64_t>(panel) * kColumns + kWide * part;
        each<RB>([&](auto r) {
            float * out = g.out + (row + r) * g.ldo + column - static_cast<int64_t>(g.panel_begin) * kColumns;
            FW y = acc[r];
            if (g.bias != nullptr) {
                y = add(y, load_wide(g.bias + column));
            }
            store(out, g.add ? add(load_wide(out), y) : y);
        });
    }
}

// N, N - 1, ... rows, whichever is `n`.
template <Format F, int N> void panel_some_rows(const Gemm & g, int32_t panel, int32_t row, int32_t n) {
    if constexpr (N > 1) {
        if (n < N) {
            return panel_some_rows<F, N - 1>(g, panel, row, n);
        }
    }
    panel_store<F, N>(g, panel, row);
}

template <Format F> void gemm_format(const Gemm & g) {
    const int32_t groups = (g.rows + kRows - 1) / kRows;
    for (int32_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
        for (int32_t i = 0, row = 0; i < groups; ++i) {
            const int32_t n = (g.rows - row + groups - i - 1) / (groups - i); // groups of about equal size
            panel_some_rows<F, kRows>(g, panel, row, n);
            row += n;
        }
    }
}

void gemm(const Gemm & g) {
    switch (g.format) {
    case Format::f32:
        return gemm_format<Format::f32>(g);
    case Format::f16:
        return gemm_format<Format::f16>(g);
    case Format::bf16:
        return gemm_format<Format::bf16>(g);
    case Format::q8_0:
        return gemm_format<Format::q8_0>(g);
    case Format::q4_0:
        return gemm_format<Format::q4_0>(g);
    case Format::q4_1:
        return gemm_format<Format::q4_1>(g);
    case Format::q5_0:
        return gemm_format<Format::q5_0>(g);
    case Format::q5_1:
        return gemm_format<Format::q5_1>(g);
    case Format::q4_k:
        return gemm_format<Format::q4_k>(g);
    case Format::q5_k:
        return gemm_format<Format::q5_k>(g);
    case Format::q6_k:
        return gemm_format<Format::q6_k>(g);
    }
}

} // namespace adaspark::kernels::ADASPARK_SIMD
