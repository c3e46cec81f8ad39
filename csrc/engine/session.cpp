#include "engine/session.h"

#include "core/scheduler.h"
#include "engine/clock.h"
#include "engine/error.h"
#include "engine/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <llama.h>

namespace adaspark {

Session::Session(Target & target, Drafter * drafter)
    : target_(target), drafter_(drafter), vocabulary_(std::make_unique<std::vector<llama_token_data>>()) {
    is_eog_.resize(static_cast<std::size_t>(target.n_vocab()));
    for (int32_t id = 0; id < target.n_vocab(); ++id) {
        if (target.is_eog(id)) {
            eog_.push_back(id);
            is_eog_[static_cast<std::size_t>(id)] = true;
        }
    }
    candidates_.reserve(core::kMaxCandidates);
    path_.reserve(core::kMaxRows);
}

Session::~Session() = default; // here, where the scheduler's type is known

std::span<const int32_t> Session::reply() const { return std::span(tokens_).subspan(n_prompt_); }

// ---- request -------------------------------------------------------------------------------------------------------

void Session::check(std::span<const int32_t> prompt, const Request & request) const {
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty: give at least one token");
    }
    if (static_cast<int32_t>(prompt.size()) > target_.n_ctx()) {
        throw ContextFullError("the prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " +
                               std::to_string(target_.n_ctx()) +
                               ". Shorten the prompt or ask for a longer context (-c)");
    }
    if (request.n_predict < -1) {
        throw std::invalid_argument("n_predict is -1 (until the context ends) or the number of tokens");
    }
    if (!(request.temperature >= 0.0F) || !(request.top_p >= 0.0F && request.top_p <= 1.0F) || request.top_k < 0 ||
        !(request.min_p >= 0.0F && request.min_p <= 1.0F)) {
        throw std::invalid_argument("temperature and top_k are 0 or more, top_p and min_p in [0, 1]");
    }
    if (request.draft_only && (request.arm != Arm::plain || drafter_ == nullptr)) {
        throw std::invalid_argument("a full trace is made by plain decoding, with a drafter");
    }
    if (request.arm == Arm::tree && (request.arm_n < 1 || request.arm_n > core::kMaxRows)) {
        throw std::invalid_argument("a tree has 1 to " + std::to_string(core::kMaxRows) + " rows, not " +
                                    std::to_string(request.arm_n));
    }
    if (request.arm == Arm::chain && request.arm_n < 0) {
        throw std::invalid_argument("a chain has 0 or more drafts, not " + std::to_string(request.arm_n));
    }
    if ((request.arm == Arm::chain || request.arm == Arm::tree) && drafter_ == nullptr && !proposer_) {
        throw std::invalid_argument("this arm needs a drafter: give one (-md) or use --arm plain");
    }
    if (request.arm == Arm::adaspark && (request.arm_n < 0 || request.arm_n > core::kMaxRows)) {
        throw std::invalid_argument("a pinned width is 1 to " + std::to_string(core::kMaxRows) +
                                    " rows (0 = learned), not " + std::to_string(request.arm_n));
    }
    if ((request.arm == Arm::tree || request.arm == Arm::adaspark) && !target_.supports_tree()) {
        throw std::invalid_argument("a " + target_.architecture() +
                                    " target keeps recurrent state and verifies chains only: use --arm chain:" +
                                    std::to_string(target_.max_chain()));
    }
}

void Session::warn_of_limits() {
    if (request_.arm != Arm::chain) {
        return;
    }
    const int32_t chain = target_.max_chain();
    if (!target_.supports_tree() && request_.arm_n > chain) {
        warnings_.push_back("a " + target_.architecture() + " target keeps recurrent state: " +
                            (chain == 0 ? std::string("it cannot be taken back, so nothing is drafted")
                                        : "chains are cut to " + std::to_string(chain) + " drafts"));
    } else if (drafter_ != nullptr && request_.arm_n > drafter_->info().n_draft) {
        warnings_.push_back("chains are cut to the " + std::to_string(drafter_->info().n_draft) +
                            " drafts the drafter's block holds");
    }
}

// How many prompt tokens the caches already hold; both are rolled back to them.
int32_t Session::reuse(std::span<const int32_t> prompt) {
    const std::span<const int32_t> held = target_.tokens();
    std::size_t same = 0;
    // At least one token must run: its logits give the first draw.
    while (same < std::min(held.size(), prompt.size() - 1) && held[same] == prompt[same]) {
        ++same;
    }
    if (drafter_ != nullptr && drafts()) {
        same = std::min(same, static_cast<std::size_t>(drafter_->n_past()));
    }
    auto n = static_cast<int32_t>(same);
    if (n == 0 || !target_.rollback(n)) {
        target_.clear();
        n = 0;
    }
    // A drafter whose window has slid past position n forgot all: it must see the text again.
    if (drafter_ != nullptr && drafts() && drafter_->n_past() != n) {
        target_.clear();
        n = 0;
    }
    return n;
}

void Session::sampler_open() {
    sampler_.reset();
    if (request_.temperature == 0.0F) {
        return;
    }
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (request_.top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(request_.top_k));
    }
    if (request_.top_p < 1.0F) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(request_.top_p, 1));
    }
    if (request_.min_p > 0.0F) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(request_.min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(request_.temperature));
    // llama.cpp takes its default seed as "any": here every seed names one reply.
    const uint32_t seed = request_.seed == LLAMA_DEFAULT_SEED ? request_.seed - 1 : request_.seed;
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    sampler_.reset(chain);
}

void Session::SamplerFree::operator()(llama_sampler * sampler) const { llama_sampler_free(sampler); }

void Session::begin(std::span<const int32_t> prompt, const Request & request, const PrefillProgress & progress) {
    check(prompt, request);
    scheduler_end();
    request_ = request;
    cancelled_.store(false);
    finish_reason_.clear();
    stats_ = {};
    round_.reset();
    warnings_.clear();
    text_ = TextStream(request.stop);
    sampler_open();
    warn_of_limits();
    if (drafter_ != nullptr) {
        drafter_->follow(drafts());
    }
    trace_.clear();
    const double start = now_us();
    const int32_t reused = reuse(prompt);
    tokens_.assign(prompt.begin(), prompt.end());
    n_prompt_ = prompt.size();
    stats_.prompt_tokens = static_cast<int32_t>(n_prompt_);
    stats_.reused_tokens = reused;
    const auto room = static_cast<std::size_t>(std::max(remaining(), 0));
    tokens_.reserve(n_prompt_ + room);
    stats_.price_errors.reserve(room);
    const std::span<float> logits =
        target_.prefill(prompt.subspan(static_cast<std::size_t>(reused)), [&](int32_t done, int32_t all) {
            return (!progress || progress(done, all)) && !cancelled_.load();
        });
    stats_.prefill_us = now_us() - start;
    deliver_first_ = true;
    decode_start_us_ = now_us();
    if (logits.empty()) {
        finish("cancel");
    } else if (remaining() <= 0) {
        finish("length");
    } else if (take_token(draw(logits)) && request_.arm == Arm::adaspark && !proposer_) {
        scheduler_begin();
    }
    stats_.completion_tokens = static_cast<int32_t>(reply().size());
}

// ---- drawing and ending --------------------------------------------------------------------------------------------

int32_t Session::remaining() const {
    const int32_t room = target_.n_ctx() - committed();
    return request_.n_predict < 0 ? room : std::min(room, request_.n_predict - static_cast<int32_t>(reply().size()));
}

int32_t Session::draw(std::span<float> logits) {
    if (request_.ignore_eos) {
        for (const int32_t id : eog_) {
            logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
        }
    }
    const int32_t top = argmax(logits);
    if (top < 0) {
        throw BackendError(target_.path() +
                           ": the model's output is not a number (NaN). The file may be damaged, or the "
                           "cache type too coarse (-ctk, -ctv)");
    }
    if (!sampler_) {
        return top;
    }
    vocabulary_->resize(logits.size());
    for (std::size_t id = 0; id < logits.size(); ++id) {
        (*vocabulary_)[id] = {static_cast<llama_token>(id), logits[id], 0.0F};
    }
    llama_token_data_array array = {vocabulary_->data(), vocabulary_->size(), -1, false};
    llama_sampler_apply(sampler_.get(), &array);
    return array.data[array.selected].id;
}

int32_t Session::draw_row(int32_t row) {
    if (!sampler_) {
        // 0 may also mean that the row held no numbers, and a token that may not be drawn hides the next best: then the
        // logits are looked at.
        const int32_t pick = target_.row_pick(row);
        if (pick > 0 && !(request_.ignore_eos && is_eog_[static_cast<std::size_t>(pick)])) {
            return pick;
        }
    }
    return draw(target_.row_logits(row));
}

// Adds a drawn token to the reply. False when the reply ends with it (or before it).
bool Session::take_token(int32_t token) {
    if (is_eog_[static_cast<std::size_t>(token)] && !request_.ignore_eos) {
        finish("stop");
        return false;
    }
    tokens_.push_back(token);
    if (text_.push(target_.token_bytes(token, /*special=*/false))) {
        finish("stop");
        return false;
    }
    if (remaining() <= 0) {
        finish("length");
        return false;
    }
    return true;
}

void Session::finish(const char * reason) {
    finish_reason_ = reason;
    text_.finish();
}

std::string Session::step() {
    if (!finished() && !deliver_first_) {
        if (tokens_.empty()) {
            throw std::logic_error("step before begin");
        }
        if (cancelled_.load()) {
            finish("cancel");
        } else {
            round();
        }
        if (finished()) {
            scheduler_end();
        }
    }
    deliver_first_ = false;
    return text_.take();
}

// ---- one round -----------------------------------------------------------------------------------------------------

void Session::round() {
    const double start = now_us();
    const double setup_start = target_.setup_us();
    const double draft_before = stats_.draft_us + stats_.inject_us;
    // A round adds its accepted drafts and one more token, and each row needs a cell of the cache.
    plan(remaining() - 1, target_.n_ctx() - target_.n_past());
    const double planned = now_us();
    const double setup_planned = target_.setup_us();
    const auto rows = static_cast<std::size_t>(tree_.rows);
    target_.verify({tree_.token, rows}, {tree_.parent, rows});
    const double verified = now_us();
    const double setup_verified = target_.setup_us();
    const std::size_t before = tokens_.size();
    walk();
    const double walked = now_us();
    // Every row of the path is a token of the reply (or the anchor), also when the reply ended on it.
    target_.commit(path_);
    const double done = now_us();
    count_round(path_);
    // What is learned from (and traced) is what a round of this kind costs again.
    const core::RoundTimes times = {planned - start - (setup_planned - setup_start),
                                    verified - planned - (setup_verified - setup_planned),
                                    done - verified - (target_.setup_us() - setup_verified)};
    if (scheduler_ != nullptr) {
        scheduler_->observe({path_, tokens_.back(), finished()}, times);
        count_learned(times.verify);
    }

    if (!round_) {
        round_.emplace().tokens.reserve(core::kMaxRows);
    }
    RoundReport & report = *round_;
    report.tokens.assign(tokens_.begin() + static_cast<std::ptrdiff_t>(before), tokens_.end());
    report.rows = tree_.rows;
    report.drafted = tree_.rows - 1;
    report.draft_us = stats_.draft_us + stats_.inject_us - draft_before;
    report.verify_us = verified - planned;
    report.commit_us = done - walked;
    stats_.plan_us += planned - start - report.draft_us;
    stats_.verify_us += report.verify_us;
    stats_.walk_us += walked - verified;
    stats_.commit_us += report.commit_us;
    stats_.decode_us = done - decode_start_us_;
    report.accepted = static_cast<int32_t>(path_.size()) - 1;
    if (tracing_) {
        trace_round(times, walked - verified);
    }
}

// Draw at each accepted row and descend to the child that equals the draw: the reply is the target's own.
void Session::walk() {
    path_.clear();
    int32_t row = 0;
    while (row >= 0) {
        path_.push_back(row);
        const int32_t token = draw_row(row);
        if (!take_token(token)) {
            return;
        }
        int32_t child = -1;
        for (int32_t r = row + 1; r < tree_.rows && child < 0; ++r) {
            if (tree_.parent[r] == row && tree_.token[r] == token) {
                child = r;
            }
        }
        row = child;
    }
}

void Session::count_round(std::span<const int32_t> path) {
    ++stats_.rounds;
    stats_.rows += tree_.rows;
    stats_.drafted += tree_.rows - 1;
    ++stats_.width_rounds[static_cast<std::size_t>(tree_.rows)];
    for (int32_t r = 1; r < tree_.rows; ++r) {
        ++stats_.sources[static_cast<std::size_t>(source_of(r))].drafted[static_cast<std::size_t>(tree_.depth[r] - 1)];
    }
    for (std::size_t depth = 1; depth < path.size(); ++depth) {
        ++stats_.sources[static_cast<std::size_t>(source_of(path[depth]))].accepted[depth - 1];
    }
    const int32_t accepted = static_cast<int32_t>(path.size()) - 1; // the other token of a round never had a row
    stats_.accepted += accepted;
    stats_.completion_tokens = static_cast<int32_t>(reply().size());
    if (scheduler_ != nullptr) {
        count_plan(); // before observe() forgets the round
    } else if (!proposer_ && request_.arm != Arm::plain && tree_.rows > 1) {
        watch_layout(accepted > 0);
    }
}

// Both block layouts load alike; the wrong one reads every slot one early and almost nothing is accepted.
void Session::watch_layout(bool accepted_first) {
    constexpr int32_t kRounds = 64;
    ++drafter_rounds_;
    drafter_first_hits_ += accepted_first ? 1 : 0;
    if (drafter_rounds_ == kRounds && drafter_first_hits_ * 20 < kRounds) {
        warnings_.push_back(drafter_->path() + ": only " + std::to_string(drafter_first_hits_) + " of " +
                            std::to_string(kRounds) +
                            " blocks had their first token accepted. The drafter does not fit this target, or its "
                            "'dflash.sample_from_anchor' is wrong");
    }
}

} // namespace adaspark
