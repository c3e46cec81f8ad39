// The planning half of a round; scheduler_decide.cpp has what comes before the drafter runs, scheduler_observe.cpp the
// learning half, scheduler_state.cpp the persistence.
#include "core/scheduler.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace adaspark::core {

namespace {
constexpr int32_t kSplitHold = 8; // rounds a width is held before a class is split
constexpr uint32_t kExplorePeriod = 16;
} // namespace

Scheduler::Scheduler(const SchedulerConfig & config, std::span<const int32_t> stop_tokens) : config_(config) {
    config_.block = std::clamp(config_.block, 0, kMaxBlock);
    config_.top_k = std::clamp(config_.top_k, 1, kTopK);
    config_.max_rows = std::clamp(config_.max_rows, 1, kMaxRows);
    config_.pinned_rows = std::clamp(config_.pinned_rows, 0, config_.max_rows);
    learned_.widths.reset(config_.max_rows, config_.law);
    chains_.set_stop_tokens(stop_tokens);
    features_ = RoundFeatures{};
    index_.begin(64);
}

void Scheduler::begin_request(std::span<const int32_t> prompt, int32_t first_token, int32_t reply_tokens) {
    const size_t room = prompt.size() + static_cast<size_t>(std::max(reply_tokens, 0)) + 1;
    index_.begin(static_cast<int32_t>(std::min<size_t>(room, INT32_MAX / 4)));
    if (config_.text) {
        index_.append(prompt);
    }
    learned_.acceptance.begin_request();
    learned_.gate.begin_request();
    head_estimate_.begin_request();
    anchor_ = first_token;
    context_ = static_cast<int32_t>(prompt.size());
    rounds_ = 0;
    text_rounds_ = 0;
    held_rows_ = 0;
    held_rounds_ = 0;
    planned_ = false;
}

void Scheduler::set_objectives() noexcept {
    Objective o;
    if (config_.gains) {
        o.gains = learned_.gains.at(context_);
    }
    // The rate is kept at the laws' own speed: a machine that slows makes time cheaper at once, in every band.
    o.rate = config_.rate ? rate() / learned_.widths.clock() : 0.0;
    o.margin = config_.margin ? kMargin : 0.0;
    o.fixed = learned_.commit[0];
    // The best achievable rate is no less than plain decoding's, which nothing has to be found out for.
    const double plain = o.fixed + learned_.widths.price_of(1);
    o.rate = o.rate > 0.0 ? std::max(o.rate, 1.0 / plain) : 0.0;
    objective_[0] = o;
    o.fixed = offer_.draft + learned_.commit[1];
    objective_[1] = o;
}

void Scheduler::price_candidates(bool fitted) noexcept {
    report_.fitted = fitted;
    if (fitted) {
        learned_.acceptance.price(set_, features_, fitted_);
    } else {
        HeadEstimate::price(set_, features_, odds_factor_, set_.positions, head_);
    }
}

void Scheduler::order_candidates(int32_t limit) noexcept {
    const RoundPrices & p = prices();
    const int32_t base = set_.text_base();
    kernels().block_path_q(p.block, set_.dead, set_.positions, order_.path_q);
    float last = 1.0F; // path Q of the node before: the parent, within a chain
    for (int32_t t = 0; t < set_.text; ++t) {
        const int32_t above = set_.parent[base + t];
        const float q = set_.text_dead[t] ? 0.0F : p.text[t];
        const float over = above == base + t - 1 && t > 0 ? last : above < 0 ? 1.0F : order_.path_q[above];
        last = over * q;
        order_.path_q[base + t] = last;
    }
    if (set_.positions == 0) { // one chain: already in order
        int32_t n = 0;
        while (n < set_.text && order_.path_q[n] > 0.0F) {
            order_.index[n] = n;
            ++n;
        }
        order_.count = n;
        ordered_ = kMaxRows - 1;
    } else {
        ordered_ = 0;
        rank_candidates(limit);
    }
    mark_text();
    sums_.ranks = 0;
    sums_.draft[1] = sums_.text[1] = 0.0;
    extend_sums(limit);
}

void Scheduler::mark_text() noexcept {
    std::fill(std::begin(as_text_), std::end(as_text_), uint64_t{0});
    if (set_.proposals == 0) {
        return;
    }
    const int32_t base = set_.text_base();
    for (int32_t i = 0; i < set_.positions; ++i) {
        const int32_t lane = set_.group[i].agreed;
        as_text_[i / 8] |= (lane >= 0 ? uint64_t{1} << lane : 0U) << (i % 8 * kTopK);
    }
    const uint64_t all = (uint64_t{1} << set_.text) - 1;
    as_text_[base / 64] |= all << (base % 64);
    if (base % 64 != 0) {
        as_text_[base / 64 + 1] |= all >> (64 - base % 64);
    }
}

void Scheduler::rank_candidates(int32_t limit) noexcept {
    if (limit > ordered_) {
        order_by_path_q(set_.total, limit, order_);
        ordered_ = limit;
    }
}

void Scheduler::extend_sums(int32_t limit) noexcept {
    rank_candidates(limit);
    const int32_t end = std::min(limit, order_.count);
    if (set_.proposals == 0 || set_.positions == 0) { // one source: one sum
        double * own = set_.positions == 0 ? sums_.text : sums_.draft;
        double * other = set_.positions == 0 ? sums_.draft : sums_.text;
        double sum = own[sums_.ranks + 1];
        for (int32_t r = sums_.ranks; r < end; ++r) {
            sum += order_.path_q[order_.index[r]];
            own[r + 2] = sum;
            other[r + 2] = 0.0;
        }
        sums_.ranks = std::max(sums_.ranks, end);
        return;
    }
    double sum[2] = {sums_.draft[sums_.ranks + 1], sums_.text[sums_.ranks + 1]};
    for (int32_t r = sums_.ranks; r < end; ++r) {
        static constexpr double share[2][2] = {{1.0, 0.0}, {0.0, 1.0}}; // no branch: whose rank is next is a toss-up
        const int32_t i = order_.index[r];
        const double q = order_.path_q[i];
        const double * of = share[counts_as_text(i) ? 1 : 0];
        sum[0] += q * of[0];
        sum[1] += q * of[1];
        sums_.draft[r + 2] = sum[0];
        sums_.text[r + 2] = sum[1];
    }
    sums_.ranks = std::max(sums_.ranks, end);
}

void Scheduler::expect(Expected & out) const noexcept {
    const int32_t most = sums_.ranks + 1;
    for (int32_t i = 0; i < offer_.count; ++i) {
        const int32_t rows = std::min(offer_.rows[i], most);
        out.draft[i] = sums_.draft[rows];
        out.text[i] = sums_.text[rows];
    }
    const int32_t reference = std::min(kReferenceRows, most);
    out.draft_reference = sums_.draft[reference];
    out.text_reference = sums_.text[reference];
}

// No less than tokens_at(rows) with the sums extended: every further rank counted as the last one known.
double Scheduler::tokens_at_most(int32_t rows, const Objective & o) const noexcept {
    const int32_t known = sums_.ranks;
    const int32_t more = std::min(rows - 1, set_.total) - known;
    if (more <= 0) {
        return tokens_at(rows, o);
    }
    const double last = known > 0 ? order_.path_q[order_.index[known - 1]] : 1.0;
    double gain = std::max(o.gains.draft_below, o.gains.text_below);
    if (rows >= kReferenceRows) {
        gain = std::max({gain, o.gains.draft_above, o.gains.text_above});
    }
    return tokens_at(rows, o) + gain * last * more * (1.0 + 1e-9);
}

double Scheduler::tokens_at(int32_t rows, const Objective & o) const noexcept {
    Expected e;
    const int32_t most = sums_.ranks + 1;
    const int32_t reference = std::min(kReferenceRows, most);
    e.draft_reference = sums_.draft[reference];
    e.text_reference = sums_.text[reference];
    return o.tokens(rows, sums_.draft[std::min(rows, most)], sums_.text[std::min(rows, most)], e);
}

int32_t Scheduler::width_to_measure(bool drafted, const Objective & o, const Choice & best,
                                    double value_text) noexcept {
    const int32_t rows = learned_.widths.unmeasured(room_);
    if (rows == 1 && drafted && config_.gating) {
        return 0;
    }
    if (rows == 1 || (rows > 0 && offer_.count == 0)) {
        return rows;
    }
    if (rounds_ == 0) {
        return 0; // a request's first round is not timed
    }
    // Lazily: only if it could win at its best.
    const double bar = std::max(o.bar(best.value, best.tokens), value_text);
    if (rows > 0) {
        const double price = learned_.widths.price_at_best(rows);
        widest_asked_ = rows;
        if (o.value(tokens_at_most(rows, o), price) > bar) { // seldom: the sums can wait for it
            extend_sums(rows - 1);
            const bool filled = order_.count >= rows - 1 || !cut_; // a cut block says nothing of a width's reach
            const double tokens = tokens_at(rows, o);
            const double loss = gate_input_.rate * (o.fixed + learned_.widths.price_likely(rows)) - tokens;
            if (filled && o.value(tokens, price) > bar && loss <= learned_.budget) {
                return rows;
            }
        }
    }
    if (o.rate > 0.0 && (look_due() || (drafted && learned_.widths.any_idle() && learned_.gate.probing()))) {
        return width_to_time_again(drafted, o, bar);
    }
    return 0;
}

int32_t Scheduler::pick_width(bool drafted) noexcept {
    if (config_.pinned_rows > 0) {
        report_.reason = WidthReason::pinned;
        report_.tokens = tokens_at(config_.pinned_rows, Objective{});
        return std::min(config_.pinned_rows, room_);
    }
    const Objective & o = objective_[drafted ? 1 : 0];
    Choice choice;
    Choice probe;
    double value_text = -std::numeric_limits<double>::infinity();
    double values[kMaxWidths];
    if (drafted) {
        Expected e;
        expect(e);
        const bool probing = learned_.gate.probing();
        const int32_t widest = offer_.count > 0 ? offer_.rows[offer_.count - 1] : 0;
        const int32_t incumbent = learned_.incumbent > 0 ? learned_.incumbent : widest; // only wide rounds teach gains
        choice = choose_width(offer_, e, o, probing ? 0 : incumbent, values);
        if (choice.position >= 0) {
            const double price = offer_.price[choice.position];
            if (text_choice_.position >= 0) {
                block_choice_ = {choice.tokens, o.fixed + price};
                const double rate = o.rate > 0.0 ? o.rate : 0.0;
                value_text =
                    rate > 0.0 ? gate_input_.tokens - rate * gate_input_.time : gate_input_.tokens / gate_input_.time;
            }
            // A probe that verifies nothing teaches neither gains nor prices: two rows, where they may cost that much.
            if (probing && choice.rows == 1 && offer_.count > 1 && o.rate > 0.0) {
                const int32_t i = static_cast<int32_t>(std::max_element(values + 1, values + offer_.count) - values);
                probe = {i, offer_.rows[i], o.tokens(offer_.rows[i], e.draft[i], e.text[i], e), values[i]};
            }
        }
    } else {
        choice = text_choice_;
    }
    const int32_t measure = again_ && !drafted ? 1 : width_to_measure(drafted, o, choice, value_text);
    if (measure > 0) {
        report_.reason = WidthReason::measuring;
        report_.tokens = tokens_at(measure, o);
        return measure; // what drafting brought is told by observe(), when the width has its time
    }
    if (probe.position >= 0 && learned_.gate.pay(choice.value - probe.value)) {
        choice = probe;
    }
    tell_gate();
    if (choice.position < 0) {
        return 1; // nothing is priced, and nothing may be measured
    }
    // Measurement, probes and rounds short of room say nothing about the width to hold.
    if (drafted && !learned_.gate.probing() && room_ == config_.max_rows) {
        learned_.incumbent = choice.rows;
        if (o.rate > 0.0 && config_.margin) {
            learned_.incumbent = learned_.standing.update(offer_, values, choice);
        }
    }
    report_.tokens = choice.tokens;
    report_.verify_price = offer_.price[choice.position];
    if (choice.rows > 1) {
        held_rounds_ = choice.rows == held_rows_ ? held_rounds_ + 1 : 0;
        held_rows_ = choice.rows;
        if (held_rounds_ == kSplitHold) {
            held_rounds_ = 0; // whatever comes of it, the next look is as many rounds away
            consider_split(choice, o);
        }
    }
    return choice.rows;
}

// What drafting brought in this round over not drafting.
void Scheduler::tell_gate() noexcept {
    if (block_choice_.tokens > 0.0) {
        learned_.gate.drafted(gate_input_, block_choice_.tokens, block_choice_.time);
        block_choice_ = {};
    }
}

void Scheduler::consider_split(const Choice & held, const Objective & o) noexcept {
    int32_t tops[kMaxWidths];
    double price[kMaxWidths];
    const int32_t n = learned_.widths.tops(tops, price);
    if (n >= kMaxWidths) {
        return;
    }
    extend_sums(widest_asked_ - 1);
    const int32_t at = split_point({tops, static_cast<size_t>(n)}, {price, static_cast<size_t>(n)}, held.rows,
                                   held.tokens, o, [&](int32_t rows) { return tokens_at(rows, o); });
    if (at > 0) {
        learned_.widths.split(at);
    }
}

void Scheduler::explore(int32_t rows) noexcept {
    const int32_t kept = std::min(rows - 1, order_.count);
    const int32_t base = set_.text_base();
    if (kept < 1) {
        return;
    }
    const int32_t removed = order_.index[kept - 1];
    uint64_t kept_text = 0; // bit t: text-only node t keeps its row
    uint8_t kept_lanes[kMaxBlock] = {};
    for (int32_t r = 0; r < kept - 1; ++r) {
        const int32_t i = order_.index[r];
        if (i >= base) {
            kept_text |= uint64_t{1} << (i - base);
        } else {
            kept_lanes[i / kTopK] |= static_cast<uint8_t>(1U << (i % kTopK));
        }
    }
    int32_t best = -1;
    uint32_t best_labels = UINT32_MAX;
    for (int32_t t = 0; t < set_.text; ++t) {
        const int32_t i = base + t;
        const int32_t above = set_.parent[i];
        const bool reachable = above == kAnchor ? true
                               : above >= base  ? (kept_text >> (above - base) & 1U) != 0
                                                : (kept_lanes[above / kTopK] >> (above % kTopK) & 1) != 0;
        if ((kept_text >> t & 1U) != 0 || i == removed || !reachable || order_.path_q[i] <= 0.0F) {
            continue;
        }
        const int32_t bucket = kTextOnly + text_bucket(set_.text_slot[t], set_.text_run[t]);
        const uint32_t labels = learned_.acceptance.bucket_labels[bucket];
        if (labels < best_labels || (labels == best_labels && order_.path_q[i] > order_.path_q[best])) {
            best = i;
            best_labels = labels;
        }
    }
    if (best >= 0) {
        order_.index[kept - 1] = best;
        order_.count = kept;
        report_.explored = true;
    }
}

double Scheduler::sum_q() const noexcept {
    double sum = 0.0;
    for (int32_t row = 1; row < tree_.rows; ++row) {
        sum += order_.path_q[tree_.candidate[row]];
    }
    return sum;
}

const Tree & Scheduler::plan(const DraftBlock * block) noexcept {
    const bool drafted = block != nullptr && !block->confidence.empty();
    cut_ = drafted && static_cast<int32_t>(block->confidence.size()) < config_.block;
    if (drafted) {
        const int32_t positions = std::min<int32_t>(static_cast<int32_t>(block->confidence.size()), config_.block);
        alignas(32) int32_t tokens[kMaxBlock * kTopK];
        alignas(32) float logits[kMaxBlock * kTopK];
        const int32_t * token = block->tokens.data();
        const float * logit = block->logits.data();
        int32_t least = 0;
        for (int32_t i = 0; i < positions * config_.top_k; ++i) {
            least = std::min(least, token[i]);
        }
        if (config_.top_k != kTopK || least < 0) { // spread to whole lanes; empty ones hold no mass
            for (int32_t i = 0; i < positions * kTopK; ++i) {
                const int32_t lane = i % kTopK;
                const int32_t from = i / kTopK * config_.top_k + lane;
                const bool filled = lane < config_.top_k && token[from] >= 0;
                tokens[i] = filled ? token[from] : -1;
                logits[i] = filled ? logit[from] : -std::numeric_limits<float>::infinity();
            }
            token = tokens;
            logit = logits;
        }
        chains_.take_block(token, positions, config_.top_k, set_);
        if (!config_.siblings) {
            for (int32_t i = 0; i < positions; ++i) {
                set_.dead[i] = static_cast<uint8_t>(set_.dead[i] | 0xFE);
            }
        }
        if (config_.text && room_ > 1) {
            chains_.merge_text(index_, chain_, std::min(kChainDepth, room_ - 1), set_);
        }
        kernels().block_features(logit, block->confidence.data(), positions, features_.block);
        report_.draft_price = offer_.draft;
        price_candidates(report_.fitted);
        const int32_t widest = config_.pinned_rows > 0 ? config_.pinned_rows
                               : offer_.count > 0      ? offer_.rows[offer_.count - 1]
                                                       : 2;
        order_candidates(std::max(std::min(widest, room_), kReferenceRows) - 1);
    }
    const int32_t asked = std::min(pick_width(drafted), room_);
    rank_candidates(asked - 1);
    report_.asked_rows = asked;
    report_.candidates = set_.total;
    report_.text_nodes = set_.text;
    if (set_.text > 0) {
        ++text_rounds_;
        if (config_.exploration && config_.acceptance && text_rounds_ % kExplorePeriod == 0) {
            explore(asked);
        }
    }
    layout_depth_first(anchor_, set_.token, set_.parent, order_, asked - 1, tree_);
    report_.kind = drafted ? RoundKind::draft : tree_.rows > 1 ? RoundKind::text : RoundKind::plain;
    if (drafted && !cut_ && report_.reason == WidthReason::measuring && !again_) {
        learned_.widths.came_out_short(asked, tree_.rows);
    }
    planned_ = true;
    return tree_;
}

} // namespace adaspark::core
