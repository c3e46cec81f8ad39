// The learned state as bytes: a header, the learners field by field, a checksum.
#include "core/archive.h"
#include "core/scheduler.h"

#include <memory>

namespace adaspark::core {

namespace {

constexpr uint32_t kMagic = 0x50534441; // "ADSP"
constexpr uint32_t kVersion = 5;        // of the layout below: bump it with any change of a field

uint64_t checksum(std::span<const uint8_t> bytes) noexcept { // FNV-1a
    uint64_t h = 0xCBF29CE484222325ULL;
    for (const uint8_t b : bytes) {
        h = (h ^ b) * 0x100000001B3ULL;
    }
    return h;
}

} // namespace

uint32_t Scheduler::state_version() noexcept { return kVersion; }

std::vector<uint8_t> Scheduler::save() const {
    std::vector<uint8_t> bytes;
    Writer write(bytes);
    uint32_t magic = kMagic;
    uint32_t version = kVersion;
    SchedulerConfig c = config_;
    auto learned = std::make_unique<Learned>(learned_);
    write(magic, version, c.block, c.top_k, c.max_rows, *learned);
    uint64_t sum = checksum(bytes);
    write(sum);
    return bytes;
}

bool Scheduler::load(std::span<const uint8_t> bytes) {
    if (bytes.size() < sizeof(uint64_t)) {
        return false;
    }
    const std::span<const uint8_t> body = bytes.first(bytes.size() - sizeof(uint64_t));
    uint64_t sum = 0;
    Reader(bytes.last(sizeof(uint64_t)))(sum);
    if (sum != checksum(body)) {
        return false;
    }
    Reader read(body);
    uint32_t magic = 0;
    uint32_t version = 0;
    SchedulerConfig c;
    read(magic, version, c.block, c.top_k, c.max_rows);
    if (magic != kMagic || version != kVersion || c.block != config_.block || c.top_k != config_.top_k ||
        c.max_rows != config_.max_rows) {
        return false;
    }
    auto learned = std::make_unique<Learned>(learned_);
    read(*learned);
    FiniteCheck finite;
    finite(*learned);
    if (!read.ok() || !read.at_end() || !finite.ok() || !learned->consistent(config_.max_rows)) {
        return false;
    }
    learned_ = *learned;
    planned_ = false;
    learned_.widths.restored();
    return true;
}

} // namespace adaspark::core
