#include "engine/ggml_graph/mover.h"

#include <algorithm>
#include <vector>

namespace adaspark::ggml_graph {

int32_t padded_rows(int32_t rows) {
    if (rows <= 8) {
        return rows;
    }
    int32_t power = 8;
    while (power < rows) {
        power *= 2;
    }
    return power / 4 * 3 >= rows ? power / 4 * 3 : power;
}

SlotMover::Step & SlotMover::step(int32_t rows) {
    Step & s = steps_[rows];
    if (!s.program) {
        s.program = std::make_unique<Program>(device_, 8);
        const Program & p = *s.program;
        s.from = p.input(GGML_TYPE_I32, rows, tensor_->ne[2]); // the same for every plane
        s.to = p.input(GGML_TYPE_I64, rows);
        ggml_tensor * moved = ggml_get_rows(p.ctx(), tensor_, s.from); // in F32, which holds an F16 exactly
        p.add(ggml_set_rows(p.ctx(), tensor_, moved, s.to));
        s.program->finish(owner_);
    }
    return s;
}

void SlotMover::move(std::span<const int32_t> from, std::span<const int32_t> to) {
    const auto planes = static_cast<std::size_t>(tensor_->ne[2]);
    for (std::size_t done = 0; done < from.size(); done += kAtOnce) {
        const std::size_t n = std::min(kAtOnce, from.size() - done);
        Step & s = step(padded_rows(static_cast<int32_t>(n)));
        const auto rows = static_cast<std::size_t>(s.from->ne[0]);
        std::vector<int32_t> source(planes * rows, spare_);
        std::vector<int64_t> target(rows, spare_);
        for (std::size_t plane = 0; plane < planes; ++plane) {
            std::copy_n(from.data() + done, n, source.data() + plane * rows);
        }
        std::copy_n(to.data() + done, n, target.data());
        s.program->write(s.from, source.data(), source.size() * sizeof(int32_t));
        s.program->write(s.to, target.data(), target.size() * sizeof(int64_t));
        s.program->run();
        device_.wait(); // what was written from here leaves with this function
    }
}

} // namespace adaspark::ggml_graph
