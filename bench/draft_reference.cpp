// Prints what llama.cpp's own draft-dspark proposes at given positions of given texts: the reference of
// draft_parity.py.
//
// Flags are those of llama.cpp's speculative-simple. Each line of stdin is one text: the number of its first tokens
// that are the prompt, the step between two rounds, and the token ids. Each line of stdout is a JSON array of its
// rounds' drafts: after the prompt, and then after every further `step` tokens, which the target runs in one batch.
#include "arg.h"
#include "common.h"
#include "llama.h"
#include "speculative.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Run tokens [begin, end) of a text through the target and hand them to the drafter.
bool feed(llama_context * ctx, common_speculative * spec, const llama_tokens & text, std::size_t begin, std::size_t end,
          bool outputs) {
    common_batch batch(ctx);
    for (std::size_t i = begin; i < end; ++i) {
        batch.add(text[i], static_cast<llama_pos>(i), 0, outputs);
    }
    return llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0 && common_speculative_process(spec, batch);
}

} // namespace

int main(int argc, char ** argv) {
    common_params params;
    common_init();
    if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_SPECULATIVE)) {
        return 1;
    }
    const auto limits = common_speculative_get_output_limits(params.n_batch, params.n_parallel,
                                                             common_speculative_n_max(&params.speculative));
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
    llama_backend_init();

    const auto init = common_init_from_params(params);
    llama_context * ctx = init->context();
    common_params draft_params = common_base_params_to_speculative(params);
    const auto draft_init = common_speculative_init_from_params(draft_params, init->model(), ctx);
    llama_context * draft_ctx = draft_init->context();
    if (ctx == nullptr || draft_ctx == nullptr) {
        std::fprintf(stderr, "the models could not be loaded\n");
        return 1;
    }
    params.speculative.draft.ctx_tgt = ctx;
    params.speculative.draft.ctx_dft = draft_ctx;
    const common_speculative_ptr spec(common_speculative_init(params.speculative, 1));
    if (!spec) {
        std::fprintf(stderr, "give --spec-type draft-dspark\n");
        return 1;
    }

    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream in(line);
        std::size_t n_prompt = 0;
        std::size_t step = 0;
        in >> n_prompt >> step;
        llama_tokens text;
        for (llama_token id = 0; in >> id;) {
            text.push_back(id);
        }
        if (n_prompt == 0 || step == 0 || text.size() <= n_prompt) {
            std::fprintf(stderr, "a line is: tokens of the prompt, step, ids; with more ids than the prompt has\n");
            return 1;
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        llama_memory_clear(llama_get_memory(draft_ctx), true);
        if (!feed(ctx, spec.get(), text, 0, n_prompt, false)) {
            return 1;
        }
        const llama_tokens prompt(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n_prompt));
        common_speculative_begin(spec.get(), 0, prompt);
        std::string out;
        for (std::size_t at = n_prompt; at < text.size(); at += step) {
            const llama_tokens past(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at));
            llama_tokens draft;
            common_speculative_draft_params & ask = common_speculative_get_draft_params(spec.get(), 0);
            ask = {};
            ask.drafting = true;
            ask.pos0 = static_cast<llama_pos>(at);
            ask.id_last = text[at];
            ask.prompt = &past;
            ask.result = &draft;
            common_speculative_draft(spec.get());
            // The block is not part of the text: its cells go, as in llama.cpp's own loop.
            llama_memory_seq_rm(llama_get_memory(draft_ctx), 0, static_cast<llama_pos>(at), -1);
            out += out.empty() ? "[" : ",[";
            for (std::size_t i = 0; i < draft.size(); ++i) {
                out += (i == 0 ? "" : ",") + std::to_string(draft[i]);
            }
            out += "]";
            if (!feed(ctx, spec.get(), text, at, std::min(text.size(), at + step), true)) {
                return 1;
            }
        }
        std::printf("[%s]\n", out.c_str());
        std::fflush(stdout);
    }
    return 0;
}
