// The widths the cost model has learned, and the price of each (paper section 3.2, "Which widths are offered" and "The
// price", Eq. 5). A class is an interval of widths priced at its top, the only width in it that is offered.
#pragma once

#include "core/kernels.h"
#include "core/timed.h"
#include "core/tree.h"

#include <bit>
#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kShortfalls = 3;  // short trees after which a width counts as out of reach
inline constexpr double kIdleShare = 0.5;  // of a doubted price, which a width is taken to cost at least
inline constexpr uint32_t kLookPeriod = 8; // rounds from one look for idle widths to the next

struct WidthClass {
    int32_t low = 0;          // rows: narrowest width of the interval
    int32_t high = 0;         // rows: the width that is measured, priced and offered
    uint32_t shortfalls = 0;  // measurement rounds whose tree came out short
    uint32_t unreachable = 0; // 1 = never asked for again
    Timed timed;

    template <class A> void fields(A & a) { a(low, high, shortfalls, unreachable, timed); }
};

// The priced widths of one round, ascending in rows and strictly ascending in price except for equal prices.
struct Offer {
    int32_t count = 0;
    int32_t rows[kMaxWidths];
    double price[kMaxWidths]; // microseconds
    double draft = 0.0;       // microseconds: D, the drafter's forward and the tree build
    bool draft_known = false; // D has been measured often enough to be priced
};

class WidthTable {
  public:
    // `max_rows` in [1, 64]; `use_law` = false prices a width by its lowest time (ablation).
    void reset(int32_t max_rows, bool use_law) noexcept;

    // Prices every width at this context, typical times all of them, and keeps those worth offering: a width dearer
    // than a wider one is dropped. Widths above `max_rows` are left out. O(widths).
    void offer(uint32_t context, int32_t max_rows, Offer & out) noexcept;

    // The narrowest width of at least `min_rows` that still wants measuring, or 0.
    int32_t unmeasured(int32_t max_rows, int32_t min_rows = 1) const noexcept;
    // `rows` is a class top with kMeasurements samples.
    bool measured(int32_t rows) const noexcept { return (measured_ >> bit_of(rows) & 1U) != 0; }
    int32_t widest_measured() const noexcept { return measured_ != 0 ? top_[std::bit_width(measured_) - 1] : 0; }
    // What the class top `rows`, not measured yet, may cost at best: the price, from the last offer(), of the widest
    // measured width below it (0 where there is none), and little less than the times it has had.
    double price_at_best(int32_t rows) const noexcept;
    // What it is likely to cost: the least of its times, else the line through the two widest measured widths below it
    // (each row as much as the first where there is one), but no more than a wider one.
    double price_likely(int32_t rows) const noexcept;

    // The narrowest idle width of at least `min_rows`, or 0: one that has not run for long, whose price may be that of
    // a bad minute.
    int32_t idle(int32_t max_rows, int32_t min_rows = 1) const noexcept;
    // What the idle width may cost at best: half its price, or what narrower ones cost, half where they are idle too.
    double price_if_mistaken(int32_t rows) const noexcept;
    // The price of an idle width, or the least of its first times.
    double price_of_idle(int32_t rows) const noexcept { return price_now(bit_of(rows)); }
    bool any_idle() const noexcept { return idle_ != 0; }
    bool look_due() const noexcept { return any_idle() && round_ % kLookPeriod == 0; }
    bool draft_idle() const noexcept { return draft_.idle(round_); }

    // Cheapest price of a measured width of at least `rows`, from the last offer(); infinite where there is none.
    double price_at_least(int32_t rows) const noexcept;
    double price_of(int32_t rows) const noexcept; // of a class top, from the last offer()

    // All class tops, ascending, with their price from the last offer(); infinite while unmeasured. Returns how many.
    int32_t tops(int32_t * rows, double * price) const noexcept;

    // A verify of exactly `rows` rows took `time` microseconds. Dropped unless `rows` is a class top.
    void record_verify(int32_t rows, uint32_t context, double time) noexcept;
    void record_draft(uint32_t context, double time) noexcept;
    // Once a round, after its records: the drift clock takes the ratio of whatever ran.
    void tick() noexcept;

    // A measurement round asked for `asked` rows and its tree has `built` < asked: for the widest class that is its
    // reach; any other class is given up after kShortfalls.
    void came_out_short(int32_t asked, int32_t built) noexcept;

    // Splits the class (a, b] around `at`, a < at < b. False when the table is full or `at` is a class top.
    bool split(int32_t at) noexcept;

    // Judges a refit of every law; at the end of a request.
    void refit_all() noexcept;

    int32_t size() const noexcept { return count_; }
    const WidthClass & at(int32_t i) const noexcept { return storage_[order_[i]]; } // ascending
    double clock() const noexcept { return pace_.clock; }
    double markup() const noexcept { return markup_.value; }
    const Timed & draft() const noexcept { return draft_; }

    template <class A> void fields(A & a) {
        a(count_, order_, draft_, recent_, pace_.clock, pace_.typical, markup_, round_);
        for (int32_t i = 0; i < count_ && i < kMaxWidths; ++i) {
            a(storage_[i]);
        }
    }
    void restored() noexcept; // call after reading fields
    bool consistent(int32_t max_rows) const noexcept;

  private:
    void sync(int32_t position) noexcept;
    void index_rows() noexcept;
    void find_idle() noexcept;
    int32_t narrowest(uint32_t of, int32_t max_rows, int32_t min_rows) const noexcept; // of a set of positions, or 0
    double price_now(uint32_t position) const noexcept;
    uint32_t lend(const Timed & to, uint32_t bands, SampleBank & samples) const noexcept;
    // Position of a class top, or 31, which no class has.
    uint32_t bit_of(int32_t rows) const noexcept {
        return rows >= 1 && rows <= kMaxRows && position_[rows] >= 0 ? static_cast<uint32_t>(position_[rows]) : 31U;
    }

    bool use_law_ = true;
    int32_t count_ = 0;
    uint8_t order_[kMaxWidths] = {};     // storage index by ascending width; storage never moves
    int8_t position_[kMaxRows + 1] = {}; // position by class top, -1 elsewhere
    // Read every round, apart from the classes, which are kilobytes each: by ascending width, and bit i for width i.
    int32_t top_[kMaxWidths] = {};
    uint32_t measured_ = 0; // has kMeasurements samples
    uint32_t wanted_ = 0;   // has not, and is within reach
    uint32_t timed_ = 0;    // has any, and is within reach
    uint32_t due_[kMaxWidths] = {};
    uint32_t idle_ = 0;  // was idle at the last look, and is still
    uint32_t round_ = 0; // ticks
    WidthClass storage_[kMaxWidths];
    Timed draft_;
    Level recent_; // the drift clock's window
    Pace pace_;
    Markup markup_;
    double round_ratio_ = 0.0; // this round's ratio for the clock, 0 = none
    bool round_drafted_ = false;
    int32_t round_position_ = -1; // class that ran this round
    WidthLanes lanes_;
    ContextBasis basis_{0}; // of basis_context_
    uint32_t basis_context_ = 0;
    const ContextBasis & basis(uint32_t context) noexcept;
};

} // namespace adaspark::core
