// csrc/kernels: every format against products in double, every instruction set of this CPU against the portable code.
#include "check.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using namespace adaspark::kernels;

namespace {

constexpr Format kFormats[] = {Format::f32,  Format::f16,  Format::bf16, Format::q8_0, Format::q4_0, Format::q4_1,
                               Format::q5_0, Format::q5_1, Format::q4_k, Format::q5_k, Format::q6_k};

std::vector<const Kernels *> tables() {
    std::vector<const Kernels *> out;
    for (const char * name : {"portable", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "dotprod", "i8mm"}) {
        if (const Kernels * table = kernels_named(name)) {
            out.push_back(table);
        }
    }
    return out;
}

// Columns in GGUF's layout with random codes; scales are small and finite, one in eight is zero.
std::vector<uint8_t> random_columns(Format format, int32_t k, int32_t n, std::mt19937 & rng) {
    std::vector<uint8_t> out(column_bytes(format, k) * static_cast<std::size_t>(n));
    std::normal_distribution<float> normal;
    const auto put_half = [&](std::size_t at, float x) {
        const uint16_t h = float_to_half(x);
        std::memcpy(out.data() + at, &h, 2);
    };
    if (!is_quantized(format)) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(k) * static_cast<std::size_t>(n); ++i) {
            const float x = normal(rng);
            if (format == Format::f32) {
                std::memcpy(out.data() + 4 * i, &x, 4);
            } else if (format == Format::f16) {
                put_half(2 * i, x);
            } else {
                std::memcpy(out.data() + 2 * i, reinterpret_cast<const uint8_t *>(&x) + 2, 2);
            }
        }
        return out;
    }
    for (uint8_t & byte : out) {
        byte = static_cast<uint8_t>(rng());
    }
    const std::size_t unit = column_bytes(format, unit_inputs(format));
    const float size = is_super(format) ? 0.001F : 0.02F; // the scales of super-blocks are scaled again, by up to 127
    for (std::size_t at = 0; at < out.size(); at += unit) {
        put_half(at + (format == Format::q6_k ? 208 : 0), rng() % 8 == 0 ? 0.0F : normal(rng) * size);
        if (has_minimum(format)) {
            put_half(at + 2, normal(rng) * 5 * size);
        }
    }
    return out;
}

struct Case {
    Format format;
    int32_t k, n, rows;
    std::vector<uint8_t> packed;
    std::vector<float> x;

    Case(Format f, int32_t k_, int32_t n_, int32_t rows_, std::mt19937 & rng) : format(f), k(k_), n(n_), rows(rows_) {
        const std::vector<uint8_t> columns = random_columns(f, k, n, rng);
        packed.resize(static_cast<std::size_t>(panels(n)) * panel_bytes(f, k));
        for (int32_t c = 0; c < n; c += kColumns) {
            pack_panel(f, k, columns.data() + static_cast<std::size_t>(c) * column_bytes(f, k),
                       std::min(kColumns, n - c),
                       packed.data() + static_cast<std::size_t>(c / kColumns) * panel_bytes(f, k));
        }
        std::normal_distribution<float> normal;
        x.resize(static_cast<std::size_t>(rows * k));
        for (float & v : x) {
            v = normal(rng);
        }
    }
};

// Rows [first, first + count) of the product on one table.
std::vector<float> product(const Kernels & kernels, const Case & c, int32_t first, int32_t count) {
    const auto blocks = static_cast<std::size_t>(count * c.k / kBlock);
    std::vector<int8_t> q(blocks * kCodes);
    std::vector<float> d(blocks), dsum(blocks);
    std::vector<int32_t> minus8(blocks), minus8_half(2 * blocks);
    std::vector<float> x(c.x.begin() + first * c.k, c.x.begin() + (first + count) * c.k);
    const Activations a = {x.data(), q.data(), d.data(), dsum.data(), minus8.data(), minus8_half.data(), count};
    for (int32_t r = 0; r < count && is_quantized(c.format); ++r) {
        kernels.quantize(x.data() + r * c.k, 0, c.k, r, a);
    }
    const int32_t ldo = panels(c.n) * kColumns;
    std::vector<float> out(static_cast<std::size_t>(count * ldo));
    kernels.gemm({c.format, c.packed.data(), c.k, 0, panels(c.n), a, count, out.data(), ldo, nullptr, false});
    return out;
}

TEST(products_equal_double_alone_together_and_on_every_instruction_set) {
    std::mt19937 rng(1);
    for (const Format format : kFormats) {
        for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 17, 43}) {
            const int32_t few = rows == 6 ? 10 * kBlock : rows % 2 == 0 ? 3 * kBlock : kBlock;
            const int32_t k = is_super(format) ? (rows % 2 + 1) * kSuper : few;
            const Case c(format, k, 8 * rows % 40 + 3, rows, rng);
            const std::vector<float> expected = product(*kernels_named("portable"), c, 0, rows);
            for (const Kernels * table : tables()) {
                const std::vector<float> out = product(*table, c, 0, rows);
                CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
                const std::vector<float> last = product(*table, c, rows - 1, 1);
                CHECK(std::memcmp(out.data() + out.size() - last.size(), last.data(), last.size() * sizeof(float)) ==
                      0);
            }
            const int32_t ldo = panels(c.n) * kColumns;
            std::vector<float> w(static_cast<std::size_t>(c.k));
            for (int32_t column = 0; column < c.n; ++column) {
                unpack_column(format, c.k, c.packed.data(), column, w.data());
                for (int32_t r = 0; r < rows; ++r) {
                    double sum = 0.0;
                    double size = 0.0;
                    for (int32_t i = 0; i < c.k; ++i) {
                        const double term = static_cast<double>(w[static_cast<std::size_t>(i)]) *
                                            static_cast<double>(c.x[static_cast<std::size_t>(r * c.k + i)]);
                        sum += term;
                        size += std::fabs(term);
                    }
                    const double tolerance = (is_quantized(format) ? 0.02 : 1e-5) * size + 1e-6;
                    CHECK(std::fabs(static_cast<double>(expected[static_cast<std::size_t>(r * ldo + column)]) - sum) <=
                          tolerance);
                }
            }
        }
    }
}

// Columns of many blocks, with a bias, added to what is there, a part of the panels, alone and in a session.
TEST(long_products_are_equal_on_every_instruction_set) {
    std::mt19937 rng(3);
    for (const Format format : kFormats) {
        for (const int32_t rows : {3, 4, 6, 8, 12, 16, 35}) {
            const int32_t k = (rows == 8 ? 33 : 3) * kSuper + (is_super(format) ? 0 : rows % 8 * kBlock + kBlock);
            const Case c(format, k, 5 * kColumns, rows, rng);
            const auto blocks = static_cast<std::size_t>(rows * k / kBlock);
            std::vector<int8_t> q(blocks * kCodes);
            std::vector<float> x = c.x, d(blocks), dsum(blocks);
            std::vector<int32_t> minus8(blocks), minus8_half(2 * blocks);
            int8_t * first = q.data();
            const Activations a = {x.data(), first, d.data(), dsum.data(), minus8.data(), minus8_half.data(), rows};
            std::vector<float> expected;
            for (const Kernels * table : tables()) {
                for (int32_t r = 0; r < rows && is_quantized(format); ++r) {
                    table->quantize(x.data() + static_cast<std::ptrdiff_t>(r) * k, 0, k, r, a);
                }
                const Gemm g = {format, c.packed.data(), k, 1, 4, a, rows, nullptr, 3 * kColumns + 5, c.x.data(), true};
                std::vector<float> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(g.ldo), 0.5F);
                std::vector<float> again = out;
                Gemm to = g;
                to.out = out.data();
                table->gemm(to);
                const auto check = [&] {
                    to.out = again.data();
                    std::fill(again.begin(), again.end(), 0.5F);
                    table->gemm(to);
                    CHECK(std::memcmp(again.data(), expected.data(), out.size() * sizeof(float)) == 0);
                };
                if (expected.empty()) {
                    expected = out;
                }
                CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
                const Session session(*table);
                check();
                // Rows from the second on, where they lie.
                Gemm others = to;
                others.a = {x.data() + k,      first + kCodes,         d.data() + 1, dsum.data() + 1,
                            minus8.data() + 1, minus8_half.data() + 1, rows};
                others.rows = rows - 1;
                std::fill(again.begin(), again.end(), 0.5F);
                table->gemm(others);
                for (int32_t r = 1; r < rows; ++r) {
                    CHECK(std::memcmp(again.data() + (r - 1) * g.ldo, expected.data() + r * g.ldo,
                                      3 * kColumns * sizeof(float)) == 0);
                }
                check();
            }
        }
    }
}

TEST(rows_are_normed_activated_and_quantised_alike_on_every_instruction_set) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    constexpr int32_t kBlocks = 9;
    constexpr int32_t kWidth = kBlocks * kBlock;
    std::vector<float> x(kWidth), y(kWidth);
    for (float & v : x) {
        v = std::ldexp(normal(rng), static_cast<int>(rng() % 24) - 12);
    }
    for (float & v : y) {
        v = normal(rng);
    }
    std::fill_n(x.begin(), kBlock, 0.0F);
    for (int32_t i = 0; i < kBlock; ++i) { // the last block: halves between two codes, of both signs
        x[static_cast<std::size_t>(8 * kBlock + i)] = i == 0 ? 127.0F : static_cast<float>(i) - 15.5F;
    }
    std::vector<float> extreme = x; // not for the norm, whose sum they would make infinite
    for (int32_t i = 0; i < 8; ++i) {
        constexpr float kExtremes[] = {-INFINITY, INFINITY, 1e38F, -1e38F, 65519.0F, -65520.0F, 6e-8F, -0.0F};
        extreme[static_cast<std::size_t>(kBlock * i + 3)] = kExtremes[i];
    }
    std::vector<uint8_t> expected;
    for (const Kernels * table : tables()) {
        std::vector<uint8_t> out;
        const auto keep = [&](const auto & values) {
            const auto * at = reinterpret_cast<const uint8_t *>(values.data());
            out.insert(out.end(), at, at + values.size() * sizeof(values[0]));
        };
        std::vector<float> row(kWidth);
        table->rms_norm(x.data(), y.data(), kWidth, 1e-5F, row.data());
        keep(row);
        table->silu_mul(extreme.data(), y.data(), kWidth, row.data());
        keep(row);
        std::vector<int8_t> q(kBlocks * kCodes);
        std::vector<float> d(kBlocks), dsum(kBlocks);
        std::vector<int32_t> minus8(kBlocks), minus8_half(2 * kBlocks);
        table->quantize(extreme.data(), 0, kWidth, 0,
                        {nullptr, q.data(), d.data(), dsum.data(), minus8.data(), minus8_half.data(), 1});
        keep(q);
        keep(d);
        keep(dsum);
        keep(minus8);
        keep(minus8_half);
        for (const Cache cache : {Cache::f32, Cache::f16, Cache::q8_0}) {
            std::vector<uint8_t> group(group_bytes(cache, kWidth));
            table->store_key(extreme.data(), kWidth, cache, group.data(), 3);
            keep(group);
            table->store_value(extreme.data(), kWidth, cache, group.data(), 3);
            keep(group);
        }
        std::vector<float> partials(3 * (kPartial + kWidth));
        for (std::size_t i = 0; i < partials.size(); ++i) {
            partials[i] = 0.5F + static_cast<float>(i * i % 97);
        }
        table->merge(partials.data(), kPartial + kWidth, 3, kWidth, row.data());
        keep(row);
        if (table == tables().front()) {
            expected = out;
        }
        CHECK(out == expected);
    }
}

TEST(the_last_instruction_set_that_runs_is_chosen) {
    CHECK(&kernels_best() == tables().back());
    if (const char * name = std::getenv("ADASPARK_CHOSEN_KERNELS")) { // an emulated CPU, whose sets are known
        CHECK(std::strcmp(kernels_best().name, name) == 0);
    }
}

TEST(f16_conversion_rounds_to_even_and_keeps_every_half) {
    for (uint32_t h = 0; h < 0x10000; ++h) {
        const float f = half_to_float(static_cast<uint16_t>(h));
        CHECK(f != f ? (h & 0x7c00U) == 0x7c00U : float_to_half(f) == h);
    }
    CHECK(float_to_half(65519.0F) == 0x7bff);
    CHECK(float_to_half(65520.0F) == 0x7c00);
    CHECK(float_to_half(0x1p-25F) == 0);
    CHECK(float_to_half(0x1.8p-24F) == 2);
}

TEST(a_nan_reaches_its_own_row_only) {
    std::mt19937 rng(2);
    for (const Format format : kFormats) {
        Case c(format, kSuper, kColumns, 3, rng);
        c.x[kSuper + 5] = NAN;
        for (const Kernels * table : tables()) {
            const std::vector<float> out = product(*table, c, 0, 3);
            CHECK(std::isnan(out[kColumns]));
            CHECK(std::isfinite(out[0]) && std::isfinite(out[2 * kColumns]));
        }
    }
}

} // namespace
