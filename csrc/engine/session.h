// A decode session: prompt in, tokens out, one round at a time (paper Algorithm 1).
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tree.h"
#include "engine/drafter.h"
#include "engine/target.h"
#include "engine/text_stream.h"

struct llama_sampler;
struct llama_token_data;

namespace adaspark {

namespace core {
class Scheduler;
struct RoundTimes;
} // namespace core

enum class Arm {
    plain,    // one row
    chain,    // the drafter's picks
    tree,     // a fixed number of rows, ordered by the drafter's own estimates
    adaspark, // round kind, candidates and width learned while decoding
};

struct Request {
    int32_t n_predict = -1;   // tokens; -1 = until the context ends
    float temperature = 0.0F; // 0 = argmax
    int32_t top_k = 0;        // 0 = off
    float top_p = 1.0F;       // 1 = off, 0 = the likeliest alone
    float min_p = 0.0F;       // 0 = off
    uint32_t seed = 0;
    std::vector<std::string> stop;
    bool ignore_eos = false; // end-of-generation tokens are never drawn
    Arm arm = Arm::plain;
    int32_t arm_n = 0; // drafts of a chain, rows of a tree (anchor included), pinned rows of adaspark (0 = learned)
    // The arm adaspark: mechanisms that can be switched off alone.
    bool text = true;       // candidates from the request's own text
    bool acceptance = true; // the fitted acceptance model; off: the head-based estimate
    bool gating = true;     // rounds without the drafter; off: the drafter runs every round
    // The arm plain: the drafter runs in every round, for the trace alone, and nothing it proposes is verified.
    bool draft_only = false;
};

// What tells one learned arm from another: each has a scheduler of its own.
struct LearnedArm {
    int32_t pinned_rows = 0;
    bool text = true;
    bool acceptance = true;
    bool gating = true;

    auto operator<=>(const LearnedArm &) const = default;
};

// One verify round.
struct RoundReport {
    std::vector<int32_t> tokens; // added to the reply
    int32_t rows = 0;
    int32_t drafted = 0;  // candidates verified: rows - 1
    int32_t accepted = 0; // of those
    double draft_us = 0.0;
    double verify_us = 0.0;
    double commit_us = 0.0;
};

// Who proposed a draft: the drafter alone, the request's own text alone, or both the same token.
enum class Source : uint8_t { drafter, text, agreed };
inline constexpr std::size_t kSources = 3;

// Drafts of one source by depth, depth 1 first.
struct DepthCounts {
    std::array<int32_t, core::kMaxRows> drafted{};
    std::array<int32_t, core::kMaxRows> accepted{};
};

// Sums over one request. Times in microseconds. Nothing here allocates within a round.
struct Statistics {
    int32_t prompt_tokens = 0;
    int32_t reused_tokens = 0; // of the prompt, already in the cache
    int32_t completion_tokens = 0;
    int32_t rounds = 0; // verify calls; the first token comes from the prefill
    int32_t rows = 0;   // rounds + drafted
    int32_t drafted = 0;
    int32_t accepted = 0;                                   // drafted tokens that are in the reply
    std::array<DepthCounts, kSources> sources{};            // by Source
    std::array<int32_t, core::kMaxRows + 1> width_rounds{}; // rows -> rounds
    // The arm adaspark only: its rounds by kind, and what its models said against what came of it.
    int32_t rounds_plain = 0;
    int32_t rounds_text = 0;
    int32_t rounds_draft = 0;
    // S of the verified trees (paper section 3.1): drafts expected to be accepted. Without the last round, which the
    // reply's end cuts short.
    double expected_accepted = 0.0;
    int32_t realised_accepted = 0; // drafts accepted in those rounds
    double fitted_loss = 0.0;      // log loss of the fitted acceptance model over the labelled parents, nats
    double head_loss = 0.0;        // of the head-based estimate, on the same labels
    int32_t labelled = 0;          // parents
    // |price / time - 1| of each verify whose width was priced and filled, without the request's first, which runs
    // cold.
    std::vector<float> price_errors; // room for all rounds is made in begin()
    double prefill_us = 0.0;
    double inject_us = 0.0; // target features into the drafter
    double draft_us = 0.0;  // drafter forward and its top K
    double plan_us = 0.0;   // order and layout
    double verify_us = 0.0; // target forward
    double walk_us = 0.0;   // draws and text
    double commit_us = 0.0; // cache bookkeeping
    double decode_us = 0.0; // first token to last
};

// Test hook: candidates of a round from the committed tokens (tokens and parents, -1 = the anchor).
struct Proposal {
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents;
};
using Proposer = std::function<Proposal(std::span<const int32_t>)>;

class Session {
  public:
    // `drafter` may be null: plain decoding (and the test hook) only.
    explicit Session(Target & target, Drafter * drafter = nullptr);
    ~Session();
    Session(const Session &) = delete;
    Session & operator=(const Session &) = delete;

    // Prefill and draw the first token. Tokens shared with the last request's cache are not run again.
    // Throws std::invalid_argument (empty prompt, bad numbers), ContextFullError, BackendError.
    void begin(std::span<const int32_t> prompt, const Request & request, const PrefillProgress & progress);

    // The text that became certain since the last call. Runs one round, except on the first call after begin(), which
    // delivers the first token, and after the end, when it delivers nothing.
    std::string step();

    void cancel() { cancelled_.store(true); } // any thread
    bool finished() const { return !finish_reason_.empty(); }
    const std::string & finish_reason() const { return finish_reason_; }       // "", "stop", "length", "cancel"
    std::span<const int32_t> reply() const;                                    // without the end-of-generation token
    int32_t committed() const { return static_cast<int32_t>(tokens_.size()); } // prompt and reply tokens
    const Request & request() const { return request_; }
    const Statistics & statistics() const { return stats_; }
    const std::optional<RoundReport> & last_round() const { return round_; }
    const std::vector<std::string> & warnings() const { return warnings_; }
    void proposer_set(Proposer proposer) { proposer_ = std::move(proposer); }

    // What the arm of such a request has learned in this session, as bytes (core/scheduler_state.cpp); empty when it
    // has not run yet. A request in progress is part of it as far as it has come.
    std::vector<uint8_t> learned_save(const Request & request) const;
    // Takes up where the bytes left off, bit for bit. False, with nothing changed, when they are damaged, of another
    // version, or of another drafter's shape. Throws std::logic_error while a request of the same arm runs.
    bool learned_load(const Request & request, std::span<const uint8_t> bytes);

    // Records rounds from the next request on (session_trace.cpp); the records of a request's rounds so far.
    void trace_set(bool on) { tracing_ = on; }
    std::span<const uint8_t> trace() const { return trace_; }

  private:
    void check(std::span<const int32_t> prompt, const Request & request) const;
    int32_t reuse(std::span<const int32_t> prompt);
    void sampler_open();
    void warn_of_limits();
    int32_t draw(std::span<float> logits);
    int32_t draw_row(int32_t row); // of the last verify
    bool take_token(int32_t token);
    void finish(const char * reason);
    int32_t remaining() const;
    void round();
    void plan(int32_t depth_limit, int32_t row_limit);
    void plan_draft(int32_t depth_limit, int32_t row_limit);
    void plan_proposal(int32_t depth_limit);
    void order_and_layout(int32_t row_limit);
    void plan_learned(int32_t row_limit);
    const Block & draft_block(int32_t positions, float enough = 0.0F);
    std::unique_ptr<core::Scheduler> scheduler_make(const LearnedArm & arm) const;
    void scheduler_begin();
    void scheduler_end();
    Source source_of(int32_t row) const;
    void count_plan();
    void count_learned(double verify_us);
    void walk();
    void count_round(std::span<const int32_t> path);
    void watch_layout(bool accepted_first);
    bool drafts() const { return request_.arm != Arm::plain || request_.draft_only; } // the drafter must follow
    void trace_round(const core::RoundTimes & times, double walk_us);

    struct SamplerFree {
        void operator()(llama_sampler * sampler) const;
    };

    Target & target_;
    Drafter * drafter_;
    Proposer proposer_;
    Request request_;
    std::unique_ptr<llama_sampler, SamplerFree> sampler_; // null = argmax
    std::vector<int32_t> eog_;                            // end-of-generation ids of the vocabulary
    std::vector<bool> is_eog_;                            // by id
    std::vector<int32_t> tokens_;                         // prompt and reply; the last is the anchor
    std::size_t n_prompt_ = 0;
    TextStream text_;
    std::string finish_reason_;
    std::atomic<bool> cancelled_{false};
    bool deliver_first_ = false;
    Statistics stats_;
    std::optional<RoundReport> round_;
    std::vector<std::string> warnings_;
    int32_t drafter_rounds_ = 0; // rounds watched for a wrong block layout
    int32_t drafter_first_hits_ = 0;
    double decode_start_us_ = 0.0;

    std::map<LearnedArm, std::unique_ptr<core::Scheduler>> schedulers_; // what they learned outlives the request
    core::Scheduler * scheduler_ = nullptr;                             // of the request that runs, on the arm adaspark

    bool tracing_ = false;
    std::vector<uint8_t> trace_; // records of the request's rounds

    // Of the round at hand, for its record.
    int32_t room_ = 0;              // rows it might have had
    int32_t left_ = 0;              // tokens the reply might still have had
    const Block * block_ = nullptr; // what the drafter proposed; null = it did not run
    bool probing_ = false;          // the drafter runs against the gate's estimate
    double plan_inject_us_ = 0.0;
    double plan_draft_us_ = 0.0;

    // Scratch of a round.
    std::vector<core::Candidate> candidates_;
    core::Order order_;
    core::Tree tree_;
    std::vector<int32_t> path_;                                 // accepted rows, the anchor first
    std::unique_ptr<std::vector<llama_token_data>> vocabulary_; // what a sampler sees
};

} // namespace adaspark
