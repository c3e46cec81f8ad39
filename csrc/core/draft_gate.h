// Whether to run the drafter at all, decided before it runs. The value of not drafting is known exactly by then (text
// candidates, prices); the value of drafting is predicted from recent drafted rounds with as much text to go on.
// Beyond the paper, which always drafts.
#pragma once

#include "core/text_bin.h"

#include <cstdint>

namespace adaspark::core {

// What drafting has brought over not drafting, in one text bin.
struct DraftAdvantage {
    double tokens = 0.0;   // expected tokens a round, drafted minus not
    double time = 0.0;     // microseconds a round, drafted minus not, at the speed of the laws
    double weight = 0.0;   // rounds behind the means, [0, kMemory]
    uint32_t idle = 0;     // rounds of the bin since it last drafted
    uint32_t interval = 1; // rounds it may stay idle before a probe

    template <class A> void fields(A & a) { a(tokens, time, weight, idle, interval); }
};

// The round at hand, as known before the drafter runs.
struct GateInput {
    double tokens = 1.0;     // expected without drafting, the anchor's included
    double time = 0.0;       // microseconds of the round without drafting
    double rate = 0.0;       // tokens per microsecond at which time is priced
    double optimistic = 0.0; // tokens by which even a perfect block would beat not drafting; <= 0 = hopeless
    int32_t bin = 0;         // text_bin of the position
    double clock = 1.0;      // drift of the machine against its laws
};

class DraftGate {
  public:
    // Estimates of other requests count for less than this one's.
    void begin_request() noexcept;

    bool decide(const GateInput & in) noexcept;

    // A drafted round was planned: what it was expected to bring and cost over `in`.
    void drafted(const GateInput & in, double tokens, double time) noexcept;

    // A probe would cost so many tokens more: whether it may, and then they are paid.
    bool pay(double tokens) noexcept;

    // A drafted round ended: accepted nodes, predicted and real.
    void outcome(double predicted, double realised) noexcept;

    bool probing() const noexcept { return probing_; } // decide() said yes against its own estimate
    double credit() const noexcept { return credit_; } // tokens that probes may cost
    const DraftAdvantage & advantage(int32_t bin) const noexcept { return bin_[bin]; }

    template <class A> void fields(A & a) { a(bin_, predicted_, realised_, credit_); }

  private:
    static bool wins(const DraftAdvantage & b, const GateInput & in) noexcept;

    // Of a bin that is not familiar yet: whether drafting pays in some other one, or none is familiar. Where it pays in
    // none of those that are, the first drafts of a new bin are probes too.
    bool hopeful(const GateInput & in) const noexcept;

    DraftAdvantage bin_[kTextBins];
    double predicted_ = 0.0; // decayed sums of accepted nodes in drafted rounds
    double realised_ = 0.0;
    double credit_ = 0.3; // tokens that probes may cost; below 0 after a dear one
    bool probing_ = false;
};

} // namespace adaspark::core
