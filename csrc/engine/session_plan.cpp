// What a round verifies: the fixed arms' drafts, the test hook's proposals, or the scheduler's tree.
#include "engine/session.h"

#include "core/block.h"
#include "core/scheduler.h"
#include "engine/clock.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace adaspark {

void Session::plan(int32_t depth_limit, int32_t row_limit) {
    const int32_t rows = std::min(row_limit, target_.max_rows());
    room_ = rows;
    left_ = depth_limit + 1;
    block_ = nullptr;
    plan_inject_us_ = plan_draft_us_ = 0.0;
    if (scheduler_ != nullptr) {
        // A tree of n rows is at most n - 1 deep, so a cap on rows also keeps the depth within the budget.
        room_ = std::min(rows, depth_limit + 1);
        plan_learned(room_);
        return;
    }
    candidates_.clear();
    if (depth_limit > 0 && rows > 1) {
        if (proposer_) {
            plan_proposal(depth_limit);
        } else if (request_.draft_only) {
            draft_block(drafter_->info().n_draft);
        } else if (request_.arm != Arm::plain && request_.arm_n > 0) {
            plan_draft(depth_limit, rows);
        }
    }
    order_and_layout(rows);
}

void Session::plan_draft(int32_t depth_limit, int32_t row_limit) {
    const bool chain = request_.arm == Arm::chain;
    const int32_t wanted = chain ? request_.arm_n : request_.arm_n - 1; // no tree is deeper than its candidates
    const int32_t depth = std::min(
        {wanted, depth_limit, row_limit - 1, drafter_->info().n_draft, chain ? target_.max_chain() : core::kMaxRows});
    if (depth <= 0) {
        return;
    }
    const Block & block = draft_block(depth);
    candidates_.resize(static_cast<std::size_t>(depth) * Block::kTopK);
    core::candidates_from_block({depth, Block::kTopK, block.ids, block.values, block.confidence}, candidates_);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        core::Candidate & c = candidates_[i];
        if (chain) { // the picks in order, whatever the head thinks of them
            c.q = i % Block::kTopK == 0 && c.token >= 0 ? 1.0F : 0.0F;
        }
        if (c.token >= 0 && is_eog_[static_cast<std::size_t>(c.token)]) {
            c.q = 0.0F; // nothing follows the end: a row for it cannot pay
        }
    }
}

void Session::plan_proposal(int32_t depth_limit) {
    const Proposal proposal = proposer_(tokens_);
    if (proposal.tokens.size() != proposal.parents.size() || proposal.tokens.size() > core::kMaxCandidates) {
        throw std::invalid_argument("the proposer gave " + std::to_string(proposal.tokens.size()) + " tokens and " +
                                    std::to_string(proposal.parents.size()) + " parents; at most " +
                                    std::to_string(core::kMaxCandidates) + ", one parent each");
    }
    std::vector<int32_t> depth(proposal.tokens.size());
    for (std::size_t i = 0; i < proposal.tokens.size(); ++i) {
        const int32_t parent = proposal.parents[i];
        if (parent < -1 || parent >= static_cast<int32_t>(i)) {
            throw std::invalid_argument("candidate " + std::to_string(i) + " has parent " + std::to_string(parent));
        }
        depth[i] = parent < 0 ? 1 : depth[static_cast<std::size_t>(parent)] + 1;
        candidates_.push_back({proposal.tokens[i], parent, depth[i] <= depth_limit ? 1.0F : 0.0F});
    }
}

void Session::order_and_layout(int32_t row_limit) {
    int32_t rows = row_limit;
    if (request_.arm == Arm::tree && !proposer_) {
        rows = std::min(rows, request_.arm_n);
    }
    core::order_best_first(candidates_, rows - 1, order_);
    core::layout_depth_first(tokens_.back(), candidates_, order_, order_.count, tree_);
}

// ---- the learned arm -----------------------------------------------------------------------------------------------

static LearnedArm learned_arm(const Request & request) {
    return {request.arm_n, request.text, request.acceptance, request.gating};
}

std::unique_ptr<core::Scheduler> Session::scheduler_make(const LearnedArm & arm) const {
    core::SchedulerConfig config;
    config.block = drafter_ == nullptr ? 0 : drafter_->info().n_draft;
    config.top_k = Block::kTopK;
    config.max_rows = target_.max_rows();
    config.pinned_rows = arm.pinned_rows;
    config.text = arm.text;
    config.acceptance = arm.acceptance;
    config.gating = arm.gating;
    return std::make_unique<core::Scheduler>(config, eog_);
}

std::vector<uint8_t> Session::learned_save(const Request & request) const {
    const auto found = schedulers_.find(learned_arm(request));
    return found == schedulers_.end() ? std::vector<uint8_t>{} : found->second->save();
}

bool Session::learned_load(const Request & request, std::span<const uint8_t> bytes) {
    const LearnedArm arm = learned_arm(request);
    const auto found = schedulers_.find(arm);
    if (found != schedulers_.end()) {
        if (found->second.get() == scheduler_) {
            throw std::logic_error("what an arm has learned cannot be replaced while it runs");
        }
        return found->second->load(bytes);
    }
    std::unique_ptr<core::Scheduler> fresh = scheduler_make(arm);
    if (!fresh->load(bytes)) {
        return false;
    }
    schedulers_[arm] = std::move(fresh);
    return true;
}

void Session::scheduler_begin() {
    const LearnedArm arm = learned_arm(request_);
    std::unique_ptr<core::Scheduler> & slot = schedulers_[arm];
    if (!slot) {
        slot = scheduler_make(arm);
    }
    scheduler_ = slot.get();
    scheduler_->begin_request(std::span(tokens_).first(n_prompt_), tokens_.back(), remaining());
}

void Session::scheduler_end() {
    if (scheduler_ != nullptr) {
        scheduler_->end_request();
        scheduler_ = nullptr;
    }
}

void Session::plan_learned(int32_t row_limit) {
    const core::Decision decision = scheduler_->decide(row_limit);
    probing_ = decision.probing;
    if (!decision.draft) {
        tree_ = scheduler_->plan(nullptr);
        return;
    }
    const Block & block = draft_block(drafter_->info().n_draft, decision.enough);
    const core::DraftBlock draft{block.ids, block.values, block.confidence};
    tree_ = scheduler_->plan(&draft);
}

const Block & Session::draft_block(int32_t positions, float enough) {
    const double start = now_us();
    drafter_->inject();
    const double injected = now_us();
    const Block & block = drafter_->draft(tokens_.back(), positions, enough);
    plan_inject_us_ = injected - start;
    plan_draft_us_ = now_us() - injected;
    stats_.inject_us += plan_inject_us_;
    stats_.draft_us += plan_draft_us_;
    block_ = &block;
    return block;
}

Source Session::source_of(int32_t row) const {
    if (scheduler_ == nullptr) {
        return Source::drafter;
    }
    const core::CandidateSet & set = scheduler_->candidates();
    const int32_t candidate = tree_.candidate[row];
    return set.is_text(candidate)                                                 ? Source::text
           : set.group[candidate / core::kTopK].agreed == candidate % core::kTopK ? Source::agreed
                                                                                  : Source::drafter;
}

void Session::count_plan() {
    const core::RoundReport & report = scheduler_->report();
    ++(report.kind == core::RoundKind::draft  ? stats_.rounds_draft
       : report.kind == core::RoundKind::text ? stats_.rounds_text
                                              : stats_.rounds_plain);
    if (!finished()) {
        stats_.expected_accepted += scheduler_->sum_q();
        stats_.realised_accepted += static_cast<int32_t>(path_.size()) - 1;
    }
}

void Session::count_learned(double verify_us) {
    const core::RoundReport & report = scheduler_->report();
    stats_.fitted_loss += report.fitted_loss;
    stats_.head_loss += report.head_loss;
    stats_.labelled += report.labelled;
    if (report.verify_price > 0.0 && report.asked_rows == tree_.rows && stats_.rounds > 1) {
        stats_.price_errors.push_back(static_cast<float>(std::abs(report.verify_price / verify_us - 1.0)));
    }
}

} // namespace adaspark
