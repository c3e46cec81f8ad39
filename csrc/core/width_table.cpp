#include "core/width_table.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace adaspark::core {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFirstShare = 0.6;  // of its first time, which a width is taken to cost at least
constexpr double kSecondShare = 0.9; // of the lower of its first two
constexpr int32_t kLadder[] = {1, 2, 4, 8, 16, 32, 64};
} // namespace

void WidthTable::reset(int32_t max_rows, bool use_law) noexcept {
    assert(max_rows >= 1 && max_rows <= kMaxRows);
    use_law_ = use_law;
    count_ = 0;
    int32_t low = 1;
    for (const int32_t top : kLadder) {
        const int32_t high = std::min(top, max_rows);
        if (high < low) {
            break;
        }
        storage_[count_] = WidthClass{};
        storage_[count_].low = low;
        storage_[count_].high = high;
        order_[count_] = static_cast<uint8_t>(count_);
        ++count_;
        low = high + 1;
    }
    storage_[0].timed.wait = kFirstIdle;
    draft_ = Timed{};
    recent_ = Level{};
    pace_ = Pace{};
    markup_ = Markup{};
    round_ = 0;
    restored();
}

void WidthTable::restored() noexcept {
    round_ratio_ = 0.0;
    round_drafted_ = false;
    round_position_ = -1;
    lanes_ = WidthLanes{};
    index_rows();
}

bool WidthTable::consistent(int32_t max_rows) const noexcept {
    if (count_ < 1 || count_ > kMaxWidths || !(markup_.value >= 1.0 && markup_.value <= kMarkupMost)) {
        return false;
    }
    uint32_t used = 0;
    int32_t low = 1;
    for (int32_t i = 0; i < count_; ++i) {
        if (order_[i] >= count_ || (used >> order_[i] & 1U) != 0) {
            return false;
        }
        used |= 1U << order_[i];
        const WidthClass & c = storage_[order_[i]];
        if (c.low != low || c.high < c.low || c.high > max_rows) {
            return false;
        }
        low = c.high + 1;
    }
    return true;
}

void WidthTable::index_rows() noexcept {
    std::fill(std::begin(position_), std::end(position_), int8_t{-1});
    measured_ = wanted_ = timed_ = 0;
    for (int32_t i = 0; i < count_; ++i) {
        position_[at(i).high] = static_cast<int8_t>(i);
        top_[i] = at(i).high;
        sync(i);
    }
    find_idle();
}

void WidthTable::find_idle() noexcept {
    const uint32_t look = round_ - round_ % kLookPeriod; // the last one: a restored table knows what it knew
    idle_ = 0;
    for (uint32_t left = timed_; left != 0; left &= left - 1) {
        const int32_t i = std::countr_zero(left);
        idle_ |= static_cast<int32_t>(look - due_[i]) >= 0 ? 1U << i : 0U;
    }
}

void WidthTable::sync(int32_t position) noexcept {
    const WidthClass & c = at(position);
    const Timed & t = c.timed;
    const int32_t i = position;
    const uint32_t bit = 1U << i;
    measured_ = t.count >= kMeasurements ? measured_ | bit : measured_ & ~bit;
    wanted_ = t.count < kMeasurements && c.unreachable == 0 ? wanted_ | bit : wanted_ & ~bit;
    timed_ = t.count > 0 && c.unreachable == 0 ? timed_ | bit : timed_ & ~bit;
    due_[i] = t.due;
    if (t.count < kMeasurements) {
        for (auto & w : lanes_.weight) {
            w[i] = 0.0;
        }
        lanes_.low[i] = lanes_.high[i] = 1.0;
        lanes_.scale[i] = kInfinity;
        return;
    }
    if (!use_law_) {
        for (auto & w : lanes_.weight) {
            w[i] = 0.0;
        }
        lanes_.low[i] = lanes_.high[i] = 1.0;
        lanes_.scale[i] = t.anchor;
        return;
    }
    for (int32_t j = 0; j < kBasis; ++j) {
        lanes_.weight[j][i] = t.law.lanes.weight[j];
    }
    lanes_.low[i] = kLawLow * t.law.floor;
    lanes_.high[i] = kLawHigh * t.law.floor;
    lanes_.scale[i] = t.law.scale * t.level.value();
}

const ContextBasis & WidthTable::basis(uint32_t context) noexcept {
    if (context != basis_context_) {
        basis_.set(context);
        basis_context_ = context;
    }
    return basis_;
}

void WidthTable::offer(uint32_t context, int32_t max_rows, Offer & out) noexcept {
    const ContextBasis & phi = basis(context); // the round's records will need it too
    const double speed = pace_.clock * markup_.value;
    kernels().price_widths(lanes_, phi.phi, speed, count_);
    // Widest to narrowest, keeping what is no dearer than anything wider.
    double cheapest = kInfinity;
    int32_t kept = 0;
    int32_t rows[kMaxWidths];
    double price[kMaxWidths];
    for (int32_t i = count_ - 1; i >= 0; --i) {
        const double p = lanes_.price[i];
        const int32_t high = top_[i];
        const bool keep = p <= cheapest && p < kInfinity && high <= max_rows;
        rows[kept] = high;
        price[kept] = p;
        kept += keep ? 1 : 0;
        cheapest = keep ? p : cheapest;
    }
    out.count = kept;
    for (int32_t i = 0; i < kept; ++i) {
        out.rows[i] = rows[kept - 1 - i];
        out.price[i] = price[kept - 1 - i];
    }
    out.draft_known = draft_.count >= kMeasurements;
    if (out.draft_known) {
        const double base = use_law_ ? draft_.law.price(phi) * draft_.level.value() : draft_.anchor;
        out.draft = base * speed;
    } else {
        out.draft = draft_.count > 0 ? draft_.lowest * speed : 0.0;
    }
}

int32_t WidthTable::narrowest(uint32_t of, int32_t max_rows, int32_t min_rows) const noexcept {
    for (; of != 0; of &= of - 1) {
        const int32_t top = top_[std::countr_zero(of)];
        if (top >= min_rows) {
            return top <= max_rows ? top : 0;
        }
    }
    return 0;
}

int32_t WidthTable::unmeasured(int32_t max_rows, int32_t min_rows) const noexcept {
    return narrowest(wanted_, max_rows, min_rows);
}

int32_t WidthTable::idle(int32_t max_rows, int32_t min_rows) const noexcept {
    return narrowest(idle_, max_rows, min_rows);
}

double WidthTable::price_now(uint32_t position) const noexcept {
    return (measured_ >> position & 1U) != 0 ? lanes_.price[position]
                                             : at(static_cast<int32_t>(position)).timed.lowest * pace_.clock;
}

double WidthTable::price_if_mistaken(int32_t rows) const noexcept {
    const uint32_t position = bit_of(rows);
    double most = kIdleShare * price_now(position);
    for (uint32_t below = measured_ & ((1U << position) - 1U); below != 0;) {
        const int32_t i = std::bit_width(below) - 1;
        const bool doubted = (idle_ >> i & 1U) != 0;
        most = std::max(most, (doubted ? kIdleShare : 1.0) * lanes_.price[i]);
        below = doubted ? below & ~(1U << i) : 0U;
    }
    return most;
}

double WidthTable::price_at_best(int32_t rows) const noexcept {
    const uint32_t below = measured_ & ((1U << bit_of(rows)) - 1U);
    const double narrower = below != 0 ? lanes_.price[std::bit_width(below) - 1] : 0.0;
    const uint32_t position = bit_of(rows);
    if (position >= static_cast<uint32_t>(count_)) {
        return narrower;
    }
    const Timed & own = at(static_cast<int32_t>(position)).timed; // one slow round must not price a width out
    const double share = own.count == 0 ? 0.0 : own.count == 1 ? kFirstShare : kSecondShare;
    return std::max(narrower, share * own.lowest * pace_.clock);
}

double WidthTable::price_likely(int32_t rows) const noexcept {
    const uint32_t position = bit_of(rows);
    if (position < static_cast<uint32_t>(count_)) {
        const Timed & own = at(static_cast<int32_t>(position)).timed;
        if (own.count > 0) {
            return own.lowest * pace_.clock;
        }
    }
    const uint32_t below = measured_ & ((1U << position) - 1U);
    if (below == 0) {
        return 0.0;
    }
    const int32_t b = std::bit_width(below) - 1;
    const uint32_t narrower = below & ~(1U << b);
    const int32_t a = narrower != 0 ? std::bit_width(narrower) - 1 : -1;
    const double low = a >= 0 ? lanes_.price[a] : 0.0;
    const double row = std::max(0.0, (lanes_.price[b] - low) / (top_[b] - (a >= 0 ? top_[a] : 0)));
    return std::min(lanes_.price[b] + row * (rows - top_[b]), price_at_least(rows));
}

double WidthTable::price_at_least(int32_t rows) const noexcept {
    double cheapest = kInfinity;
    for (int32_t i = count_ - 1; i >= 0 && top_[i] >= rows; --i) {
        cheapest = std::min(cheapest, lanes_.price[i]);
    }
    return cheapest;
}

double WidthTable::price_of(int32_t rows) const noexcept {
    return rows >= 1 && rows <= kMaxRows && position_[rows] >= 0 ? lanes_.price[position_[rows]] : kInfinity;
}

int32_t WidthTable::tops(int32_t * rows, double * price) const noexcept {
    for (int32_t i = 0; i < count_; ++i) {
        rows[i] = top_[i];
        price[i] = lanes_.price[i];
    }
    return count_;
}

void WidthTable::record_verify(int32_t rows, uint32_t context, double time) noexcept {
    const int32_t position = rows >= 1 && rows <= kMaxRows ? position_[rows] : -1;
    if (position < 0 || !(time > 0.0)) {
        return;
    }
    Timed & timed = storage_[order_[position]].timed;
    const double ratio = timed.record(context, basis(context), time, pace_, round_);
    if (ratio > 0.0) { // most of a round, and closer to what other widths take than the drafter is
        round_ratio_ = ratio;
        // Over the price of this round but for the markup itself: what it learns does not depend on what it is.
        const double at_scale = use_law_ ? ratio * timed.law.scale : time;
        markup_.add(at_scale / (lanes_.scale[position] * pace_.clock));
    }
    round_position_ = position;
}

void WidthTable::record_draft(uint32_t context, double time) noexcept {
    if (time > 0.0) { // it may have been cut short: its ratio tells nothing of the machine
        draft_.record(context, basis(context), time, pace_, round_);
        round_drafted_ = true;
    }
}

void WidthTable::tick() noexcept {
    if (round_ratio_ > 0.0) {
        recent_.add(round_ratio_);
        pace_.take(recent_);
    }
    if (round_drafted_) {
        draft_.settle(pace_.clock);
    }
    if (round_position_ >= 0) {
        Timed & ran = storage_[order_[round_position_]].timed;
        ran.settle(pace_.clock);
        sync(round_position_);
        idle_ &= ran.idle(round_) ? ~0U : ~(1U << round_position_);
    }
    if (++round_ % kLookPeriod == 0) {
        find_idle();
    }
    round_ratio_ = 0.0;
    round_drafted_ = false;
    round_position_ = -1;
}

void WidthTable::came_out_short(int32_t asked, int32_t built) noexcept {
    const int32_t position = asked >= 1 && asked <= kMaxRows ? position_[asked] : -1;
    if (position < 0 || built >= asked) {
        return;
    }
    WidthClass & c = storage_[order_[position]];
    if (position == count_ - 1) {
        if (built >= c.low) {
            c.high = built;
        } else if (count_ > 1 && c.timed.count == 0) {
            // Give the storage slot of the removed class back: it must be the last one in use.
            const uint8_t freed = order_[position];
            --count_;
            if (freed != count_) {
                storage_[freed] = storage_[count_];
                for (int32_t i = 0; i < count_; ++i) {
                    order_[i] = order_[i] == count_ ? freed : order_[i];
                }
            }
        } else {
            c.unreachable = 1;
        }
        index_rows();
        return;
    }
    c.shortfalls += 1;
    c.unreachable = c.shortfalls >= static_cast<uint32_t>(kShortfalls) ? 1 : 0;
    sync(position);
}

bool WidthTable::split(int32_t rows) noexcept {
    if (count_ >= kMaxWidths || rows < 1 || rows > kMaxRows || position_[rows] >= 0) {
        return false;
    }
    for (int32_t i = 0; i < count_; ++i) {
        WidthClass & above = storage_[order_[i]];
        if (above.low > rows || above.high <= rows) {
            continue;
        }
        const int32_t low = above.low;
        above.low = rows + 1;
        std::copy_backward(order_ + i, order_ + count_, order_ + count_ + 1);
        storage_[count_] = WidthClass{};
        storage_[count_].low = low;
        storage_[count_].high = rows;
        order_[i] = static_cast<uint8_t>(count_);
        ++count_;
        index_rows();
        return true;
    }
    return false;
}

// Adds three samples to each of `bands` that `to` has none of and some other width has: what `to` would take there if
// it grew with context as that width does. From times, not from laws: between refits a law follows a context that
// is new to it and forgets the others. Returns the bands that have them now.
uint32_t WidthTable::lend(const Timed & to, uint32_t bands, SampleBank & samples) const noexcept {
    uint32_t lent = 0;
    for (uint32_t left = bands; left != 0; left &= left - 1) {
        const int32_t band = std::countr_zero(left);
        // From the nearest band of its own: the most sampled width that has both.
        int32_t nearest = 0;
        const Timed * from = nullptr;
        for (int32_t distance = 1; distance < kBands && from == nullptr; ++distance) {
            for (const int32_t b : {band - distance, band + distance}) {
                for (int32_t i = 0; b >= 0 && b < kBands && to.bank.band[b].seen > 0 && i < count_; ++i) {
                    const Timed & t = storage_[i].timed;
                    const uint32_t both = 1U << band | 1U << b;
                    if (t.law.trained() && (t.bank.bands() & both) == both &&
                        (from == nullptr || t.count > from->count)) {
                        from = &t;
                        nearest = b;
                    }
                }
            }
        }
        if (from == nullptr) {
            continue;
        }
        const SampleBank::Typical there = from->bank.typical(band);
        const double growth = there.time / from->bank.typical(nearest).time;
        for (uint32_t k = 0; k < kMeasurements; ++k) {
            samples.add(there.context, to.bank.typical(nearest).time * growth);
        }
        lent |= 1U << band;
    }
    return lent;
}

void WidthTable::refit_all() noexcept {
    uint32_t all = 0;
    for (int32_t i = 0; i < count_; ++i) {
        all |= storage_[i].timed.bank.bands();
    }
    for (int32_t i = 0; i < count_; ++i) {
        Timed & t = storage_[i].timed;
        if (!t.law.trained()) {
            continue;
        }
        SampleBank samples = t.bank;
        const uint32_t lent = lend(t, all & ~t.bank.bands(), samples);
        if (t.fresh != 0 || (lent & ~t.borrowed) != 0) { // else it would come to the same
            t.refit(samples);
            t.borrowed = lent;
        }
    }
    for (int32_t i = 0; i < count_; ++i) {
        sync(i);
    }
    if (draft_.fresh != 0) {
        draft_.refit(draft_.bank);
    }
}

} // namespace adaspark::core
