// The learning half of a round (paper, Algorithm 1, lines 14 to 18) and the end of a request.
#include "core/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace adaspark::core {

namespace {
constexpr uint32_t kCommitMemory = 32; // rounds the mean commit time remembers
constexpr double kCreditShare = 0.002; // of the tokens decoded: what timing again may cost
constexpr double kBudgetShare = 0.005; // of the tokens decoded: what measuring may cost
} // namespace

void Scheduler::observe(const Outcome & outcome, const RoundTimes & times) noexcept {
    if (!planned_ || outcome.path.empty()) {
        return;
    }
    planned_ = false;
    const bool drafted = report_.kind == RoundKind::draft;
    const uint32_t context = static_cast<uint32_t>(context_);
    const int32_t committed = static_cast<int32_t>(outcome.path.size());
    // A request's first round runs cold (section 3.2): its times would price a width out of the offer.
    if (rounds_ > 0) {
        if (drafted) {
            learned_.widths.record_draft(context, times.draft);
        }
        learned_.widths.record_verify(tree_.rows, context, times.verify);
        learned_.widths.tick();
    }
    learned_.budget = std::min(learned_.budget + kBudgetShare * committed, Learned::kMostBudget);
    if (report_.reason == WidthReason::measuring) {
        // The width may be better than any that had a price: else drafting would look useless until all have one.
        const double time = times.draft + times.verify + times.commit;
        if (rounds_ > 0 && times.verify > 0.0 &&
            report_.tokens - gate_input_.rate * time > block_choice_.tokens - gate_input_.rate * block_choice_.time) {
            block_choice_ = {block_choice_.tokens > 0.0 ? report_.tokens : 0.0, time};
        }
        tell_gate();
        charge(again_ ? 0.0 : gate_input_.rate * time - report_.tokens);
    } else if (drafted && rounds_ > 0 && !offer_.draft_known && config_.gating && config_.pinned_rows == 0) {
        charge(gate_input_.rate * times.draft); // a draft for its time's sake, like a width's
    }
    if (!outcome.last) {
        learn_acceptance(outcome);
        if (config_.gains && !report_.explored && !again_ && tree_.rows > 1) {
            learn_gains(outcome.path);
        }
        if (drafted) {
            learned_.gate.outcome(report_.tokens - 1.0, committed - 1.0);
        }
    }
    if (config_.text) {
        int32_t tokens[kMaxRows];
        for (int32_t i = 0; i < committed; ++i) {
            tokens[i] = tree_.token[outcome.path[static_cast<size_t>(i)]];
        }
        index_.append({tokens, static_cast<size_t>(committed)});
    }
    const double total = times.draft + times.verify + times.commit;
    learned_.credit = std::min(learned_.credit + kCreditShare * committed, Learned::kMostCredit);
    if (!outcome.last && total > 0.0) {
        learned_.rate.add(context, bin_, committed, total / learned_.widths.clock());
        uint32_t & rounds = learned_.commit_rounds[drafted ? 1 : 0];
        double & mean = learned_.commit[drafted ? 1 : 0];
        rounds = std::min(rounds + 1, kCommitMemory);
        mean += (times.commit - mean) / rounds;
    }
    anchor_ = outcome.next_token;
    context_ += committed;
    ++rounds_;
}

void Scheduler::charge(double lost) noexcept {
    learned_.budget = std::max(learned_.budget - std::max(0.0, lost), -Learned::kMostDebt);
}

void Scheduler::learn_acceptance(const Outcome & outcome) noexcept {
    Labels labels;
    const int32_t nodes = static_cast<int32_t>(outcome.path.size());
    for (int32_t i = 0; i < nodes; ++i) {
        const int32_t parent = tree_.candidate[outcome.path[static_cast<size_t>(i)]];
        const int32_t group = set_.group_below(parent);
        const int32_t text = set_.text_below(parent);
        if (group < 0 && text < 0) {
            continue;
        }
        if (group < 0 && i + 1 < nodes) { // from here on there is text alone, and it was accepted
            const int32_t * row = outcome.path.data() + i + 1;
            const int32_t more = nodes - 1 - i;
            int32_t * below = labels.text + labels.count;
            for (int32_t k = 0; k < more; ++k) {
                below[k] = tree_.candidate[row[k]] - set_.text_base();
            }
            labels.text_accepted |= ((uint64_t{1} << more) - 1) << labels.count;
            labels.count += more;
            i += more - 1; // the last node is next
            continue;
        }
        int32_t hit = -1; // accepted lane of the group
        bool text_hit = false;
        if (i + 1 < nodes) {
            const int32_t accepted = tree_.candidate[outcome.path[static_cast<size_t>(i) + 1]];
            text_hit = set_.is_text(accepted);
            hit = text_hit ? -1 : accepted % kTopK;
        } else { // placed or not: the target's token at the last node labels every candidate below it
            hit = group >= 0 ? set_.lane_of(group, outcome.next_token) : -1;
            text_hit = hit < 0 && text >= 0 && set_.token[set_.text_base() + text] == outcome.next_token;
        }
        const int32_t l = labels.count++;
        assert(group < 0 || group == l);
        labels.hit[l] = hit;
        labels.groups += group >= 0 ? 1 : 0;
        labels.text[l] = text;
        labels.text_accepted |= uint64_t{text_hit ? 1U : 0U} << l;
    }
    // Both estimates are scored, and both learn, with the probabilities in force when the tree was built: before
    // either has seen anything of this round.
    if (!report_.fitted) {
        if (config_.acceptance) {
            learned_.acceptance.price(set_, features_, fitted_);
        }
    } else {
        HeadEstimate::price(set_, features_, odds_factor_, labels.groups, head_);
    }
    if (config_.acceptance) {
        alignas(32) double likelihood[2 * kMaxRows + 4];
        double * by_head = likelihood + labels.count;
        parent_likelihoods(set_, fitted_, labels, likelihood);
        parent_likelihoods(set_, head_, labels, by_head);
        std::fill_n(likelihood + 2 * labels.count, 4, 1.0);
        kernels().log(likelihood, 2 * labels.count);
        Guard guard = learned_.guard; // sums in registers: one addition waits for the last
        double fitted_loss = 0.0;
        double head_loss = 0.0;
        for (int32_t i = 0; i < labels.count; ++i) {
            guard.add(-likelihood[i], -by_head[i]);
            fitted_loss -= likelihood[i];
            head_loss -= by_head[i];
        }
        learned_.guard = guard;
        report_.fitted_loss = fitted_loss;
        report_.head_loss = head_loss;
        report_.labelled = labels.count;
        learned_.acceptance.learn(set_, features_, fitted_, labels);
    }
    if (config_.offset) {
        uint64_t on_path = 0;
        for (const int32_t row : outcome.path) {
            on_path |= uint64_t{1} << row;
        }
        double gradient = 0.0;
        double squared = 0.0;
        // Branch-free: whether a row hangs from the path is a coin toss. Others add zero.
        const int32_t base = set_.text_base();
        for (int32_t row = 1; row < tree_.rows; ++row) {
            const int32_t c = tree_.candidate[row];
            const float * q = c < base ? &head_.block[0][0] + c : head_.text + (c - base);
            const uint64_t labelled = uint64_t{0} - (on_path >> tree_.parent[row] & 1U); // all ones or none
            const double error = *q - static_cast<double>(on_path >> row & 1U);
            const double g = std::bit_cast<double>(std::bit_cast<uint64_t>(error) & labelled);
            gradient += g;
            squared += g * g;
        }
        if (squared > 0.0) {
            head_estimate_.learn(gradient, squared);
        }
    }
}

void Scheduler::learn_gains(std::span<const int32_t> path) noexcept {
    if (offer_.count == 0) {
        return;
    }
    const int32_t rows = tree_.rows;
    const int32_t narrow = offer_.rows[0];
    const int32_t middle = std::min(rows, kReferenceRows);
    int32_t above[2] = {0, 0}; // realised, [drafter, text]
    int32_t below[2] = {0, 0};
    for (const int32_t row : path.subspan(1)) {
        const int32_t rank = tree_.rank[row];
        const int32_t text = counts_as_text(tree_.candidate[row]) ? 1 : 0;
        const int32_t high = rank >= kReferenceRows - 1 ? 1 : 0;
        const int32_t low = rank >= narrow - 1 && rank < middle - 1 ? 1 : 0;
        above[1] += high & text;
        above[0] += high & ~text;
        below[1] += low & text;
        below[0] += low & ~text;
    }
    GainFits & g = learned_.gains;
    if (rows > kReferenceRows) {
        g.draft_above.observe(sums_.draft[rows] - sums_.draft[kReferenceRows], above[0], context_);
        g.text_above.observe(sums_.text[rows] - sums_.text[kReferenceRows], above[1], context_);
    }
    if (middle > narrow) {
        g.draft_below.observe(sums_.draft[middle] - sums_.draft[narrow], below[0], context_);
        g.text_below.observe(sums_.text[middle] - sums_.text[narrow], below[1], context_);
    }
}

void Scheduler::end_request() noexcept {
    learned_.widths.refit_all();
    planned_ = false;
}

} // namespace adaspark::core
