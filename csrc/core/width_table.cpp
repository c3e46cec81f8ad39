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
constexpr double kSurprise = 0.9;    // of its price: a time below it contradicts the price
constexpr uint32_t kGrowth = 8;      // a context longer by less than one in this many is of the same request
constexpr int32_t kSteps = 40000;    // beyond the paper's that all refits of a request may take
constexpr int32_t kLadder[] = {1, 2, 4, 8, 16, 32, 64};
} // namespace

void Level::add(double r) noexcept {
    ratio[seen % kLevelWindow] = static_cast<float>(r);
    seen = seen == UINT32_MAX ? 2 * kLevelWindow : seen + 1;
}

double Level::value() const noexcept {
    if (seen == 0) {
        return 1.0;
    }
    float least = ratio[0];
    if (seen >= kLevelWindow) {
        const float a = std::min(std::min(ratio[0], ratio[1]), std::min(ratio[2], ratio[3]));
        const float b = std::min(std::min(ratio[4], ratio[5]), std::min(ratio[6], ratio[7]));
        least = std::min(a, b);
    } else {
        for (uint32_t i = 1; i < seen; ++i) {
            least = std::min(least, ratio[i]);
        }
    }
    return std::clamp<double>(least, kLevelLow, kLevelHigh);
}

bool Level::drifted() const noexcept {
    const auto [least, most] = std::minmax_element(std::begin(ratio), std::end(ratio));
    return seen >= kLevelWindow && (*least > kDrift || *most < 1.0 / kDrift);
}

void Level::rescale(double factor) noexcept {
    for (float & r : ratio) {
        r = static_cast<float>(r / factor);
    }
}

void Timed::rescale(double factor) noexcept {
    level.rescale(clock_then); // as if the clock had stood at 1 when it ran last
    clock_then = 1.0;
    law.rescale(factor);
    bank.rescale(factor);
}

double Timed::record(uint32_t context, const ContextBasis & basis, double time, double clock, uint32_t round) noexcept {
    const double predicted = law.raw(basis);
    const double ratio = law.trained() ? time / law.price_of(predicted) : 0.0;
    // The price of an idle thing is doubted: that it runs quicker says nothing of the machine. The level is the least
    // of its window, so the first quick run is kept from it: one quiet moment of a busy machine is not a lower price.
    const bool doubted = idle(round) && law.trained();
    const bool surprising = doubted && ratio * clock_then < kSurprise * level.value() * clock;
    const bool first_surprise = surprising && ratio < kSurprise * clock && surprises == 0;
    surprises = first_surprise ? 1 : 0;
    if (!first_surprise) {
        wait = doubted && !surprising ? std::min(2 * wait, UINT32_MAX / 4) : wait;
        due = round + wait;
    }
    lowest = count % kLevelWindow == 0 ? time : std::min(lowest, time);
    count = count == UINT32_MAX ? 2 * kLevelWindow : count + 1;
    if (count == kMeasurements || count % kLevelWindow == 0) {
        anchor = lowest;
    }
    // A context that the law has not been fitted on may take longer on the same machine. Until the refit at the end of
    // the request such a time is no evidence of drift, or requests at two contexts in turns would look like a machine
    // that changes its speed. Where a request grows into such a context, the law grows with it.
    const uint32_t band = 1U << context_band(context);
    const uint32_t last = level_context[(level.seen + kLevelWindow - 1) % kLevelWindow];
    const bool grown =
        level.seen > 0 && (known >> context_band(last) & 1U) != 0 && context >= last && context - last < last / kGrowth;
    known |= !law.trained() || grown ? band : 0U;
    const bool evidence = ratio > 0.0 && !surprising && (known & band) != 0;
    // Laws and banks are kept at one speed of the machine: a drift that the clock tells of and this time bears out is
    // taken out of what they learn, or the laws that run would absorb it and leave the others behind. Small drifts are
    // left to the laws.
    const double borne_out = evidence ? ratio : clock;
    const bool drifted = (clock > kDrift && borne_out > kDrift) || (clock < 1.0 / kDrift && borne_out < 1.0 / kDrift);
    const double learned = drifted ? time / clock : time;
    if ((ratio > 0.0 || drifted) && !first_surprise) {
        level_context[level.seen % kLevelWindow] = context;
        level.add(ratio > 0.0 ? ratio : clock);
    }
    law.train(context, basis, predicted, learned);
    bank.add(context, learned);
    fresh = 1;
    return evidence ? ratio : 0.0;
}

void Timed::refit(const SampleBank & samples, int32_t & budget) noexcept {
    const ContextLaw before = law;
    const Refit outcome = core::refit(law, samples, budget);
    fresh = budget < 0 ? 1 : 0;
    if (outcome == Refit::refused) {
        return;
    }
    known |= bank.bands();
    if (outcome == Refit::adopted) { // the level is of what the law says
        for (uint32_t i = 0; i < std::min<uint32_t>(level.seen, kLevelWindow); ++i) {
            const ContextBasis basis(level_context[i]);
            level.ratio[i] = static_cast<float>(level.ratio[i] * before.price(basis) / law.price(basis));
        }
    }
}

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
    draft_ = Timed{};
    recent_ = Level{};
    round_ = 0;
    restored();
}

void WidthTable::restored() noexcept {
    clock_ = recent_.value();
    round_ratio_ = 0.0;
    round_drafted_ = false;
    round_position_ = -1;
    lanes_ = WidthLanes{};
    index_rows();
}

bool WidthTable::consistent(int32_t max_rows) const noexcept {
    if (count_ < 1 || count_ > kMaxWidths) {
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
        lanes_.scale[i] = t.anchor / t.clock_then;
        return;
    }
    for (int32_t j = 0; j < kBasis; ++j) {
        lanes_.weight[j][i] = t.law.lanes.weight[j];
    }
    lanes_.low[i] = kLawLow * t.law.floor;
    lanes_.high[i] = kLawHigh * t.law.floor;
    lanes_.scale[i] = t.law.scale * t.level.value() / t.clock_then;
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
    kernels().price_widths(lanes_, phi.phi, clock_, count_);
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
        out.draft = base * clock_ / draft_.clock_then;
    } else {
        out.draft = draft_.count > 0 ? draft_.lowest : 0.0;
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
    return (measured_ >> position & 1U) != 0 ? lanes_.price[position] : at(static_cast<int32_t>(position)).timed.lowest;
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
    return std::max(narrower, share * own.lowest);
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
    const double ratio = storage_[order_[position]].timed.record(context, basis(context), time, clock_, round_);
    if (!(round_drafted_ && round_ratio_ > 0.0) && ratio > 0.0) {
        round_ratio_ = ratio;
    }
    round_position_ = position;
}

void WidthTable::record_draft(uint32_t context, double time) noexcept {
    if (!(time > 0.0)) {
        return;
    }
    const double ratio = draft_.record(context, basis(context), time, clock_, round_);
    round_drafted_ = true;
    if (ratio > 0.0) {
        round_ratio_ = ratio;
    }
}

double WidthTable::tick() noexcept {
    double factor = 1.0;
    if (round_ratio_ > 0.0) {
        recent_.add(round_ratio_);
        clock_ = recent_.value();
        // The clock says by how much the laws are off, the verify that ran says that it is not the drafter's law alone.
        // Left alone, the laws of what runs would absorb the change in the end, and what does not run would look cheap.
        if ((clock_ > kDrift || clock_ < 1.0 / kDrift) && recent_.drifted() && round_position_ >= 0 &&
            storage_[order_[round_position_]].timed.level.drifted()) {
            factor = clock_;
        }
    }
    // What ran was measured on the machine of this round: it is stale from here on, not from the round before. A first
    // surprise was kept from the level, whose times are of the clock before.
    if (round_drafted_ && draft_.surprises == 0) {
        draft_.clock_then = clock_;
    }
    if (round_position_ >= 0) {
        Timed & ran = storage_[order_[round_position_]].timed;
        ran.clock_then = ran.surprises == 0 ? clock_ : ran.clock_then;
        sync(round_position_);
        idle_ &= ran.idle(round_) ? ~0U : ~(1U << round_position_);
    }
    if (++round_ % kLookPeriod == 0) {
        find_idle();
    }
    round_ratio_ = 0.0;
    round_drafted_ = false;
    round_position_ = -1;
    if (factor != 1.0) {
        rescale(factor);
    }
    return factor;
}

void WidthTable::rescale(double factor) noexcept {
    for (int32_t i = 0; i < count_; ++i) {
        storage_[order_[i]].timed.rescale(factor);
        sync(i);
    }
    draft_.rescale(factor);
    recent_.rescale(factor);
    clock_ = recent_.value();
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
// it grew with context as that width does. From times, not from laws: between refits a law follows the context at hand
// and forgets the others. Returns the bands that have them now.
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
    int32_t budget = kSteps;
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
            t.refit(samples, budget);
            t.borrowed = lent;
            sync(i);
        }
    }
    if (draft_.fresh != 0) {
        draft_.refit(draft_.bank, budget);
    }
}

} // namespace adaspark::core
