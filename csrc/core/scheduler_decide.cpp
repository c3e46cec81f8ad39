// Before the drafter runs: whether it should, how deep, and which doubted price is looked at again.
#include "core/scheduler.h"

#include <algorithm>
#include <limits>

namespace adaspark::core {

Decision Scheduler::decide(int32_t max_rows) noexcept {
    room_ = max_rows > 0 ? std::min(config_.max_rows, max_rows) : config_.max_rows;
    planned_ = false;
    widest_asked_ = 0;
    again_ = false;
    paid_ = 0.0;
    block_choice_ = {};
    report_ = RoundReport{};
    learned_.widths.offer(static_cast<uint32_t>(context_), room_, offer_);
    odds_factor_ = config_.offset ? head_estimate_.odds_factor() : 1.0;
    features_.context = context_ / kContextUnit;

    chains_.begin(index_, anchor_);
    chain_.count = 0;
    if (config_.text && room_ > 1) {
        index_.logit_precision(features_.text_base);
        for (int32_t s = 0; s < kSlots; ++s) {
            features_.precision[s] = index_.precision(s);
        }
        chains_.anchor_chain(index_, std::min(kChainDepth, room_ - 1), chain_);
    }
    chains_.take_block(nullptr, 0, config_.top_k, set_);
    report_.fitted = config_.acceptance && learned_.guard.prefers_fitted();
    if (chain_.count > 0) {
        chains_.merge_text(index_, chain_, kChainDepth, set_);
        price_candidates(report_.fitted);
        order_candidates(kMaxRows - 1);
    } else {
        order_.count = 0;
        sums_.ranks = 0;
        sums_.draft[1] = sums_.text[1] = 0.0;
    }

    const int32_t reference = std::min(sums_.ranks + 1, kReferenceRows);
    bin_ = text_bin(1.0 + sums_.draft[reference] + sums_.text[reference]);
    set_objectives();
    const Objective & o = objective_[0];
    if (order_.count > 0) {
        Expected e;
        expect(e);
        text_choice_ = choose_width(offer_, e, o, 0);
    } else if (offer_.count > 0) { // nothing to verify: the cheapest width, which comes first
        text_choice_ = {0, offer_.rows[0], 1.0, o.value(1.0, offer_.price[0])};
    } else {
        text_choice_ = Choice{};
    }
    const bool priced = text_choice_.position >= 0;
    gate_input_ = GateInput{};
    gate_input_.clock = learned_.widths.clock();
    gate_input_.bin = bin_;
    if (priced) {
        gate_input_.tokens = text_choice_.tokens;
        gate_input_.time = o.fixed + offer_.price[text_choice_.position];
        gate_input_.rate = o.rate > 0.0 ? o.rate : gate_input_.tokens / gate_input_.time;
    }
    Decision d;
    d.value_text = gate_input_.tokens - gate_input_.rate * gate_input_.time;
    if (config_.block == 0 || room_ == 1 || config_.pinned_rows == 1) {
        return d;
    }
    if (config_.pinned_rows > 1 || !config_.gating) {
        d.draft = true;
        return d;
    }
    if (!learned_.widths.measured(1)) {
        return d; // plain rounds until the price of not drafting is known
    }
    if (!offer_.draft_known) {
        d.draft = rounds_ > 0 && learned_.budget > 0.0; // a slow drafter's draft shows what the next ones will lose
        return d;
    }
    // What a perfect block would bring: all of it accepted, on top of what the text brings.
    const Objective & drafted = objective_[1];
    const double perfect = config_.block + gate_input_.tokens - 1.0;
    double optimistic = -std::numeric_limits<double>::infinity();
    for (int32_t i = 0; i < offer_.count; ++i) {
        const double tokens = 1.0 + std::min<double>(offer_.rows[i] - 1, perfect);
        optimistic = std::max(optimistic, tokens - gate_input_.rate * (drafted.fixed + offer_.price[i]));
    }
    double least = 0.0; // a wider unmeasured width costs no less than a narrower one
    for (int32_t rows = learned_.widths.unmeasured(room_); rows > 0;
         rows = learned_.widths.unmeasured(room_, rows + 1)) {
        least = std::max(least, learned_.widths.price_at_best(rows));
        const double tokens = 1.0 + std::min<double>(rows - 1, perfect);
        optimistic = std::max(optimistic, tokens - gate_input_.rate * (drafted.fixed + least));
    }
    // Nor is a block hopeless whose prices may be those of a bad minute, while the credit lasts.
    const double longest = offer_.count > 0 ? drafted.fixed + offer_.price[offer_.count - 1] : 0.0;
    const bool doubtful = rounds_ > 0 && !(optimistic > d.value_text) && loss_of(longest) <= learned_.credit &&
                          (learned_.widths.any_idle() || learned_.widths.draft_idle());
    if (doubtful) {
        const double fixed = drafted.fixed - (learned_.widths.draft_idle() ? (1.0 - kIdleShare) * offer_.draft : 0.0);
        for (int32_t i = 0; i < offer_.count; ++i) {
            const double tokens = 1.0 + std::min<double>(offer_.rows[i] - 1, perfect);
            optimistic = std::max(optimistic, tokens - gate_input_.rate * (fixed + offer_.price[i]));
        }
        for (int32_t rows = learned_.widths.idle(room_); rows > 0; rows = learned_.widths.idle(room_, rows + 1)) {
            const double tokens = 1.0 + std::min<double>(rows - 1, perfect);
            optimistic =
                std::max(optimistic, tokens - gate_input_.rate * (fixed + learned_.widths.price_if_mistaken(rows)));
        }
    }
    gate_input_.optimistic = optimistic - d.value_text;
    d.draft = learned_.gate.decide(gate_input_) && !plain_instead();
    d.probing = d.draft && learned_.gate.probing();
    d.enough = d.draft ? cheapest_row(d.probing) : 0.0F;
    if (d.draft && doubtful && (look_due() || d.probing || learned_.widths.draft_idle())) {
        spend(longest);
    }
    return d;
}

// The least probability, in the drafter's words, at which a row below two picks may be worth its price: that of the
// cheapest step from one priced width to the next, among those that hold such a row. 0 where a probe is to show what
// drafting brings, and while the ladder has not been measured beyond what a block of two positions could fill.
float Scheduler::cheapest_row(bool probing) const noexcept {
    const int32_t next = learned_.widths.unmeasured(room_, learned_.widths.widest_measured() + 1);
    if (probing || (next > 0 && next <= 1 + 2 * config_.top_k)) {
        return 0.0F;
    }
    double least = std::numeric_limits<double>::infinity();
    for (int32_t i = offer_.count - 1; i > 0 && offer_.rows[i] > 3; --i) {
        const double step = (offer_.price[i] - offer_.price[i - 1]) / (offer_.rows[i] - offer_.rows[i - 1]);
        least = std::min(least, step);
    }
    const Gains & gains = objective_[1].gains; // a drafter that is better than its own words
    const double more = std::max({1.0, gains.draft_above, gains.draft_below});
    return least < 1e300 ? static_cast<float>(std::min(1.0, gate_input_.rate * least / more)) : 0.0F;
}

// A drafted round is due, but the price of one row may be that of a bad minute: could it have been better?
bool Scheduler::plain_instead() noexcept {
    if (!(objective_[0].rate > 0.0) || !look_due() || learned_.widths.idle(1) != 1 || learned_.gate.probing()) {
        return false;
    }
    const DraftAdvantage & a = learned_.gate.advantage(bin_);
    const double at_best = 1.0 - gate_input_.rate * (objective_[0].fixed + learned_.widths.price_if_mistaken(1));
    const double text = gate_input_.tokens - gate_input_.rate * gate_input_.time;
    const double drafted = text + a.tokens - gate_input_.rate * gate_input_.clock * a.time;
    again_ = at_best > drafted && spend(objective_[0].fixed + learned_.widths.price_of_idle(1));
    return again_;
}

// The narrowest idle width that could win at its best and that the round's candidates fill.
int32_t Scheduler::width_to_time_again(bool drafted, const Objective & o, double bar) noexcept {
    const int32_t ranks = sums_.ranks; // splits are looked for among these
    for (int32_t rows = learned_.widths.idle(room_, drafted ? 2 : 1); rows > 0;
         rows = learned_.widths.idle(room_, rows + 1)) {
        const double time = o.fixed + learned_.widths.price_of_idle(rows);
        const double price = learned_.widths.price_if_mistaken(rows);
        if (loss_of(time) > paid_ + learned_.credit || !(o.value(tokens_at_most(rows, o), price) > bar)) {
            continue; // the usual case, without the sums
        }
        extend_sums(rows - 1);
        if (order_.count < rows - 1) {
            break;
        }
        if (o.value(tokens_at(rows, o), price) > bar && spend(time)) {
            again_ = true;
            return rows;
        }
    }
    sums_.ranks = ranks;
    return 0;
}

// What a round that times something again may cost, in tokens: all of its time, because it was picked for looking good,
// but for the one token that it brings at least.
double Scheduler::loss_of(double time) const noexcept { return std::max(0.0, gate_input_.rate * time - 1.0); }

bool Scheduler::spend(double time) noexcept {
    const double more = std::max(0.0, loss_of(time) - paid_);
    if (more > learned_.credit) {
        return false;
    }
    learned_.credit -= more;
    paid_ += more;
    return true;
}

// A request's first round is not timed.
bool Scheduler::look_due() const noexcept { return rounds_ > 0 && learned_.widths.look_due(); }

} // namespace adaspark::core
