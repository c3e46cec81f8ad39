// One record a round, as docs/traces.md has it: what was on offer, what was verified, what came of it, what it took.
#include "core/scheduler.h"
#include "engine/session.h"

#include <cstring>

namespace adaspark {

namespace {

// Little-endian as the machines are that run this; fields in the order of the document. 96 bytes, a multiple of 8.
struct RoundRecord {
    uint32_t bytes;     // of the whole record, a multiple of 8
    int32_t context;    // tokens in the target's cache before the round
    int32_t left;       // tokens the reply might still have
    int32_t room;       // rows the round might have
    int32_t next_token; // the target's token after the path
    uint8_t kind;       // 0 plain, 1 text, 2 draft, 3 a fixed arm
    uint8_t reason;     // of the width: 0 chosen, 1 measuring, 2 pinned
    uint8_t flags;      // 1 fitted model priced, 2 explored, 4 last round, 8 drafted to see whether it pays
    uint8_t positions;  // of the drafter's block; 0 = it did not run
    uint8_t top_k;      // candidates of a position
    uint8_t rows;       // of the tree
    uint8_t path;       // rows accepted, the anchor's included
    uint8_t asked_rows; // width chosen or measured
    float expected;     // tokens of the round, the anchor's included
    float sum_q;        // S: accepted drafts expected of the tree
    float verify_price; // microseconds; 0 = not priced
    float draft_price;  // microseconds
    float fitted_loss;  // nats over the labelled parents
    float head_loss;    // nats
    int32_t labelled;   // parents
    float inject_us;    // of the times below: target features into the drafter ...
    float drafter_us;   // ... the drafter's forward and top K ...
    float walk_us;      // ... draws and text
    double draft_us;    // from the start to just before the verify
    double verify_us;   // the verify
    double commit_us;   // walk, text and cache bookkeeping
};
static_assert(sizeof(RoundRecord) == 96);

class Appender {
  public:
    explicit Appender(uint8_t * out) : out_(out) {}
    template <class T> void put(const T * values, std::size_t n) {
        std::memcpy(out_, values, n * sizeof(T));
        out_ += n * sizeof(T);
    }

  private:
    uint8_t * out_;
};

} // namespace

void Session::trace_round(const core::RoundTimes & times, double walk_us) {
    const auto rows = static_cast<std::size_t>(tree_.rows);
    const std::size_t positions = block_ == nullptr ? 0 : static_cast<std::size_t>(block_->positions);
    const std::size_t candidates = positions * Block::kTopK;
    const std::size_t body = candidates * (sizeof(int32_t) + sizeof(float)) + positions * sizeof(float) +
                             rows * (sizeof(int32_t) + sizeof(int16_t) + sizeof(int8_t)) + path_.size();

    RoundRecord r{};
    r.bytes = static_cast<uint32_t>((sizeof(RoundRecord) + body + 7) / 8 * 8);
    r.context = target_.n_past() - static_cast<int32_t>(path_.size());
    r.left = left_;
    r.room = room_;
    r.next_token = tokens_.back();
    r.kind = 3;
    r.flags = finished() ? 4 : 0;
    r.positions = static_cast<uint8_t>(positions);
    r.top_k = Block::kTopK;
    r.rows = static_cast<uint8_t>(rows);
    r.path = static_cast<uint8_t>(path_.size());
    r.inject_us = static_cast<float>(plan_inject_us_);
    r.drafter_us = static_cast<float>(plan_draft_us_);
    r.walk_us = static_cast<float>(walk_us);
    r.draft_us = times.draft;
    r.verify_us = times.verify;
    r.commit_us = times.commit;
    if (scheduler_ != nullptr) {
        const core::RoundReport & report = scheduler_->report();
        r.kind = static_cast<uint8_t>(report.kind);
        r.reason = static_cast<uint8_t>(report.reason);
        r.flags =
            static_cast<uint8_t>(r.flags | (report.fitted ? 1 : 0) | (report.explored ? 2 : 0) | (probing_ ? 8 : 0));
        r.asked_rows = static_cast<uint8_t>(report.asked_rows);
        r.expected = static_cast<float>(report.tokens);
        r.verify_price = static_cast<float>(report.verify_price);
        r.draft_price = static_cast<float>(report.draft_price);
        r.fitted_loss = static_cast<float>(report.fitted_loss);
        r.head_loss = static_cast<float>(report.head_loss);
        r.labelled = report.labelled;
        r.sum_q = static_cast<float>(scheduler_->sum_q());
    }

    int16_t candidate[core::kMaxRows];
    int8_t parent[core::kMaxRows];
    uint8_t path[core::kMaxRows];
    for (std::size_t i = 0; i < rows; ++i) {
        candidate[i] = static_cast<int16_t>(tree_.candidate[i]);
        parent[i] = static_cast<int8_t>(tree_.parent[i]);
    }
    for (std::size_t i = 0; i < path_.size(); ++i) {
        path[i] = static_cast<uint8_t>(path_[i]);
    }
    const std::size_t at = trace_.size();
    trace_.resize(at + r.bytes);
    Appender out(trace_.data() + at);
    out.put(&r, 1);
    if (block_ != nullptr) {
        out.put(block_->ids.data(), candidates);
        out.put(block_->values.data(), candidates);
        out.put(block_->confidence.data(), positions);
    }
    out.put(tree_.token, rows);
    out.put(candidate, rows);
    out.put(parent, rows);
    out.put(path, path_.size());
}

} // namespace adaspark
