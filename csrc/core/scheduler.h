// One decode round after another (paper, Algorithm 1): decide whether to draft, plan a verify tree, learn from its
// outcome. Knows nothing of models or devices; any engine that can run a drafter block and verify a tree can drive it.
//
//     begin_request(prompt, first token)
//     repeat: decide() -> run the drafter or not -> plan(block) -> verify the tree -> observe(outcome, times)
//     end_request()
//
// Only begin_request, the constructor, save and load allocate. Not thread-safe.
#pragma once

#include "core/acceptance.h"
#include "core/candidates.h"
#include "core/chooser.h"
#include "core/draft_gate.h"
#include "core/gains.h"
#include "core/head_estimate.h"
#include "core/rate.h"
#include "core/suffix_index.h"
#include "core/tree.h"
#include "core/width_table.h"

#include <cstdint>
#include <span>
#include <vector>

namespace adaspark::core {

enum class RoundKind : uint8_t {
    plain, // one row, no drafter
    text,  // text candidates only, no drafter
    draft, // the drafter's block and text
};

// What is on. The defaults are the complete scheduler; each mechanism can be switched off alone (paper section 4.2).
struct SchedulerConfig {
    int32_t block = 7;       // B: positions the drafter proposes, [0, 32]; 0 = there is no drafter
    int32_t top_k = kTopK;   // K: candidates of a position, [1, 8]
    int32_t max_rows = 64;   // widest verify the engine can run, [1, 64]
    int32_t pinned_rows = 0; // > 0: every tree has this width (1 = plain decoding) and no width is chosen
    bool gating = true;      // off: the drafter runs every round, as in the paper
    bool text = true;        // text candidates
    bool acceptance = true;  // the fitted model; off: the head-based estimate prices every round
    bool offset = true;      // the head-based estimate's per-request offset
    bool exploration = true; // the last row of every 16th round with text
    bool law = true;         // off: a width costs its lowest time at any context
    bool rate = true;        // off: widths compete by tokens per time
    bool gains = true;       // off: S is taken at face value
    bool margin = true;      // off: the best width of the round wins
    bool siblings = true;    // off: the drafter's picks only, a chain
};

// What the drafter proposed: positions x top_k candidates, by position, each position's largest logit first.
struct DraftBlock {
    std::span<const int32_t> tokens;   // token ids
    std::span<const float> logits;     // biased by the Markov head; natural logarithm
    std::span<const float> confidence; // per position, [0, 1]
};

struct Decision {
    bool draft = false;   // run the drafter
    bool probing = false; // ... to learn whether it would pay again
    float enough = 0.0F; // positions below a chain of picks less probable than this are not worth drafting; 0 = all are
    double value_text = 0.0; // tokens by which the best round without drafting beats decoding at the price of time
};

struct Outcome {
    std::span<const int32_t> path; // accepted rows of the tree, from row 0 down one branch
    int32_t next_token = 0;        // the target's token after the path: the next round's anchor
    bool last = false;             // the reply ended in this round: it teaches no acceptance and no rate
};

struct RoundTimes {
    double draft = 0.0;  // microseconds from before the drafter's forward to just before the verify
    double verify = 0.0; // of the verify
    double commit = 0.0; // after the verify: cache compaction, feeding the drafter
};

// Why a round has the width it has.
enum class WidthReason : uint8_t { chosen, measuring, pinned };

// What the last plan was made of; for traces and tests.
struct RoundReport {
    RoundKind kind = RoundKind::plain;
    WidthReason reason = WidthReason::chosen;
    bool fitted = false;    // the fitted model priced the tree
    bool explored = false;  // the last row went to an unlabelled text bucket
    int32_t asked_rows = 1; // the class top that was chosen or measured
    int32_t candidates = 0;
    int32_t text_nodes = 0;
    double tokens = 1.0;       // expected, the anchor's included
    double verify_price = 0.0; // microseconds; 0 = not priced
    double draft_price = 0.0;
    // Filled in by observe(): log losses of the two estimates over the parents the outcome labelled, nats. 0 parents
    // where the fitted model is off or nothing was labelled.
    double fitted_loss = 0.0;
    double head_loss = 0.0;
    int32_t labelled = 0; // parents
};

class Scheduler {
  public:
    explicit Scheduler(const SchedulerConfig & config, std::span<const int32_t> stop_tokens = {});

    // Starts a request whose prompt is in the target's cache and whose first token, the first anchor, has been chosen.
    // `reply_tokens`: how much longer the text may grow; only text within it is indexed. Allocates.
    void begin_request(std::span<const int32_t> prompt, int32_t first_token, int32_t reply_tokens);

    // Starts a round. `max_rows` > 0 caps its rows (room left in the cache or in the reply).
    Decision decide(int32_t max_rows = 0) noexcept;

    // The tree to verify; valid until the next plan. `block` null: the drafter did not run.
    const Tree & plan(const DraftBlock * block) noexcept;

    // What became of the last plan. A time of 0 was not measured.
    void observe(const Outcome & outcome, const RoundTimes & times) noexcept;

    // Refits the laws. Call once after a request's last observe.
    void end_request() noexcept;

    static uint32_t state_version() noexcept; // of the bytes below
    std::vector<uint8_t> save() const;
    // False, leaving this scheduler as it was, when the bytes are of another version or configuration, or damaged.
    bool load(std::span<const uint8_t> bytes);

    const SchedulerConfig & config() const noexcept { return config_; }
    const RoundReport & report() const noexcept { return report_; }
    const CandidateSet & candidates() const noexcept { return set_; }
    const Order & order() const noexcept { return order_; }
    double sum_q() const noexcept; // S of the last plan's tree: accepted drafts expected of it
    const RoundPrices & prices() const noexcept { return report_.fitted ? fitted_ : head_; }
    const WidthTable & widths() const noexcept { return learned_.widths; }
    const Offer & offer() const noexcept { return offer_; }
    const AcceptanceModel & acceptance() const noexcept { return learned_.acceptance; }
    const Guard & guard() const noexcept { return learned_.guard; }
    const HeadEstimate & head_estimate() const noexcept { return head_estimate_; }
    Gains gains() const noexcept { return learned_.gains.at(context_); } // at the next round's context
    const SuffixIndex & index() const noexcept { return index_; }
    int32_t incumbent() const noexcept { return learned_.incumbent; }
    int32_t context() const noexcept { return context_; }
    // Microseconds: decayed mean of what follows the verify, in rounds without and with the drafter; 0 = none yet.
    double commit_time(bool drafted) const noexcept { return learned_.commit[drafted ? 1 : 0]; }
    // Long-run tokens per microsecond of positions like the last round's, with the machine at the speed its laws were
    // learned at; 0 = unknown.
    double rate() const noexcept { return learned_.rate.rate(static_cast<uint32_t>(context_), bin_); }

  private:
    // Everything that outlives a request.
    struct Learned {
        WidthTable widths;
        AcceptanceModel acceptance;
        Guard guard;
        GainFits gains;
        LongRunRate rate;
        DraftGate gate;
        StandingAdvantage standing;
        int32_t incumbent = 0; // rows: the width drafted rounds hold, 0 = none yet
        double commit[2] = {}; // microseconds: decayed mean of committing, without and with the drafter
        uint32_t commit_rounds[2] = {};
        static constexpr double kMostCredit = 64.0;
        static constexpr double kMostBudget = 8.0;
        static constexpr double kMostDebt = 1.0; // a round may have been slow for once
        double credit = 1.0;                     // tokens that timing idle widths again may cost
        double budget = 1.0;                     // tokens that measuring may cost; below 0 after a dear one

        bool consistent(int32_t max_rows) const noexcept {
            return widths.consistent(max_rows) && credit >= 0.0 && credit <= kMostCredit && budget >= -kMostDebt &&
                   budget <= kMostBudget;
        }

        template <class A> void fields(A & a) {
            a(widths, acceptance, guard, gains, rate, gate, standing, incumbent, commit, commit_rounds, credit, budget);
        }
    };

    // Sums of Q over the first ranks of the order, by source: [n] is S of a tree of n rows.
    struct Sums {
        int32_t ranks = 0; // last entry in use is [ranks + 1]
        double draft[kMaxRows + 1];
        double text[kMaxRows + 1];
    };

    // Text-only nodes and block candidates that the text agrees with: they count as text.
    bool counts_as_text(int32_t candidate) const noexcept {
        return (as_text_[candidate / 64] >> (candidate % 64) & 1U) != 0;
    }
    void mark_text() noexcept;
    void price_candidates(bool fitted) noexcept;
    void order_candidates(int32_t limit) noexcept; // and their sums, for trees of up to limit + 1 rows
    void rank_candidates(int32_t limit) noexcept;  // at least the first `limit` of the order
    void extend_sums(int32_t limit) noexcept;
    void expect(Expected & out) const noexcept;
    void set_objectives() noexcept;
    double tokens_at_most(int32_t rows, const Objective & objective) const noexcept;
    double tokens_at(int32_t rows, const Objective & objective) const noexcept;
    int32_t width_to_measure(bool drafted, const Objective & objective, const Choice & best,
                             double value_text) noexcept;
    int32_t width_to_time_again(bool drafted, const Objective & objective, double bar) noexcept;
    bool plain_instead() noexcept;
    float cheapest_row(bool probing) const noexcept;
    double loss_of(double time) const noexcept;
    bool spend(double time) noexcept;
    bool look_due() const noexcept;
    int32_t pick_width(bool drafted) noexcept;
    void tell_gate() noexcept;
    void explore(int32_t rows) noexcept;
    void consider_split(const Choice & held, const Objective & objective) noexcept;
    void charge(double lost) noexcept; // tokens, from the budget of measuring
    void learn_acceptance(const Outcome & outcome) noexcept;
    void learn_gains(std::span<const int32_t> path) noexcept;

    SchedulerConfig config_;
    Learned learned_;
    SuffixIndex index_;
    ChainBuilder chains_;

    // Per request.
    HeadEstimate head_estimate_;
    int32_t anchor_ = 0;       // token
    int32_t context_ = 0;      // tokens in the target's cache when the round starts
    uint32_t rounds_ = 0;      // of this request
    uint32_t text_rounds_ = 0; // rounds with text-only candidates
    int32_t held_rows_ = 0;    // width chosen in a row ...
    int32_t held_rounds_ = 0;  // ... for this many rounds

    // Per round.
    int32_t room_ = 0;   // rows this round may have
    bool cut_ = false;   // the drafter stopped before the end of its block
    bool again_ = false; // an idle width is timed ...
    double paid_ = 0.0;  // ... and this much of what it may cost, in tokens, is taken from the credit
    bool planned_ = false;
    int32_t bin_ = 0; // text_bin of what the text alone is expected to bring in a tree of the reference width
    GateInput gate_input_;
    struct {
        double tokens = 0.0; // 0 = the gate is not to be told of this round, or has been
        double time = 0.0;   // microseconds
    } block_choice_;         // the best that could be made of the block
    Offer offer_;
    TextChain chain_;
    CandidateSet set_;
    RoundFeatures features_;
    RoundPrices fitted_{};
    RoundPrices head_{};
    double odds_factor_ = 1.0;
    Order order_;
    int32_t ordered_ = 0;      // ranks asked of it so far
    int32_t widest_asked_ = 0; // rows: a width that was considered for measuring, and may be split against
    Sums sums_;
    uint64_t as_text_[(kCandidateSlots + 63) / 64] = {}; // one bit a candidate
    Objective objective_[2];                             // without and with the drafter
    Choice text_choice_;
    Tree tree_;
    RoundReport report_;
};

} // namespace adaspark::core
