// Every metadata key a drafter is run by, checked before its weights load: a wrong one is not an error later but a
// drafter whose proposals are quietly worthless.
#include "engine/drafter.h"

#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/load_check.h"

#include <algorithm>
#include <cstring>

#include <llama.h>

namespace adaspark {

namespace {

constexpr int32_t kMaxBlock = 32;
const char * const kTokens = "tokenizer.ggml.tokens";

[[noreturn]] void refuse(const GgufFile & file, const std::string & why) {
    throw DrafterError(file.path() + ": " + why);
}

int64_t required(const GgufFile & file, const std::string & key) {
    const auto value = file.integer(key);
    if (!value) {
        refuse(file, "the metadata key '" + key + "' is missing. Convert the drafter again");
    }
    return *value;
}

void check_shape(const GgufFile & file, const Target & target) {
    const int64_t n_embd = required(file, "dflash.embedding_length");
    if (n_embd != target.n_embd()) {
        refuse(file, "made for a target of hidden size " + std::to_string(n_embd) + "; " + target.path() + " has " +
                         std::to_string(target.n_embd()) + " (" + std::to_string(target.n_layer()) +
                         " blocks). Give the drafter that was trained for this target");
    }
    if (const std::string fault = load_fault(file); !fault.empty()) {
        refuse(file, fault);
    }
}

std::vector<int32_t> read_layers(const GgufFile & file, const Target & target) {
    const auto layers = file.integers("dflash.target_layers");
    if (!layers || layers->empty()) {
        refuse(file, "the metadata key 'dflash.target_layers' is missing: which target blocks feed the drafter cannot "
                     "be guessed. Convert the drafter again");
    }
    std::vector<int32_t> out;
    for (const int64_t layer : *layers) {
        if (layer < 0 || layer >= target.n_layer()) {
            refuse(file, "'dflash.target_layers' names block " + std::to_string(layer) +
                             "; the target has blocks 0 to " + std::to_string(target.n_layer() - 1) +
                             ". Give the drafter that was trained for this target");
        }
        out.push_back(static_cast<int32_t>(layer));
    }
    const std::vector<int64_t> fc = file.tensor_shape("fc.weight");
    const int64_t wanted = static_cast<int64_t>(out.size()) * target.n_embd();
    if (fc.empty() || fc[0] != wanted) {
        refuse(file, "'fc.weight' takes " + std::to_string(fc.empty() ? 0 : fc[0]) + " features, " +
                         std::to_string(out.size()) + " target blocks of " + std::to_string(target.n_embd()) +
                         " give " + std::to_string(wanted) +
                         ". The file is damaged or its 'dflash.target_layers' is wrong");
    }
    return out;
}

int32_t read_mask(const GgufFile & file, const Target & target) {
    const std::string key = "tokenizer.ggml.mask_token_id";
    const int64_t mask = required(file, key);
    if (mask < 0 || mask >= target.n_vocab()) {
        refuse(file, "the metadata key '" + key + "' is " + std::to_string(mask) + ", outside the vocabulary of " +
                         std::to_string(target.n_vocab()) + " tokens. Convert the drafter again");
    }
    return static_cast<int32_t>(mask);
}

// Same tokens: refused. Same tokens with a padded table: fine. No vocabulary of its own: the target's is used.
void check_vocabulary(const GgufFile & file, const Target & target) {
    const int64_t n = file.strings_count(kTokens);
    const int64_t shared = std::min<int64_t>(n, target.n_vocab());
    for (int64_t i = 0; i < shared; ++i) {
        const char * own = file.string_at(kTokens, i);
        const char * theirs = llama_vocab_get_text(target.vocab(), static_cast<int32_t>(i));
        if (std::strcmp(own, theirs) != 0) {
            refuse(file, "its vocabulary (" + std::to_string(n) + " tokens) is not the target's (" +
                             std::to_string(target.n_vocab()) + "): token " + std::to_string(i) + " is '" + own +
                             "' here and '" + theirs + "' there. Give the drafter that was trained for this target");
        }
    }
    if (n == 0) {
        const auto size = file.integer("dflash.vocab_size");
        if (size && *size < target.n_vocab()) {
            refuse(file, "'dflash.vocab_size' is " + std::to_string(*size) + ", the target has " +
                             std::to_string(target.n_vocab()) + " tokens");
        }
    }
}

void check_heads(const GgufFile & file, DrafterInfo & info, const Target & target) {
    if (file.has_tensor("selector_hidden.weight")) {
        refuse(file, "a DFlash2 drafter (selector head). Only DSpark drafters (Markov head) can be run");
    }
    const std::vector<int64_t> w1 = file.tensor_shape("markov_w1.weight");
    const std::vector<int64_t> w2 = file.tensor_shape("markov_w2.weight");
    if (w1.empty() || w2.empty()) {
        refuse(file, "no Markov head ('markov_w1.weight', 'markov_w2.weight'): a DFlash drafter. Only DSpark drafters "
                     "can be run");
    }
    // Only a head of its own can have the rows of a padded vocabulary; a borrowed one has the target's.
    const int64_t padded =
        file.has_tensor("output.weight") || file.has_tensor("token_embd.weight") ? file.strings_count(kTokens) : 0;
    int64_t n_draft_vocab = std::max<int64_t>(padded, target.n_vocab());
    if (file.has_tensor("d2t")) {
        std::vector<bool> seen(static_cast<std::size_t>(target.n_vocab()), false);
        for (const int64_t id : file.tensor_integers("d2t")) {
            if (id < 0 || id >= target.n_vocab() || seen[static_cast<std::size_t>(id)]) {
                refuse(file,
                       "'d2t' maps to token " + std::to_string(id) + ", which is " +
                           (id < 0 || id >= target.n_vocab() ? "outside the target's vocabulary" : "listed twice") +
                           ". The file is damaged");
            }
            seen[static_cast<std::size_t>(id)] = true;
            info.draft_vocab.push_back(static_cast<int32_t>(id));
        }
        n_draft_vocab = static_cast<int64_t>(info.draft_vocab.size());
        if (!file.has_tensor("output.weight")) {
            refuse(file, "a reduced draft vocabulary ('d2t') needs its own head 'output.weight'");
        }
    }
    if (w2[1] != n_draft_vocab || w1[0] != w2[0]) {
        refuse(file, "the Markov head is [" + std::to_string(w1[0]) + " x " + std::to_string(w1[1]) + "] and [" +
                         std::to_string(w2[0]) + " x " + std::to_string(w2[1]) + "], the draft vocabulary has " +
                         std::to_string(n_draft_vocab) + " tokens. The file is damaged");
    }
    const bool head = file.has_tensor("conf_proj.weight");
    const bool declared = file.boolean("dflash.has_confidence_head").value_or(head);
    if (declared && !head) {
        refuse(file, "'dflash.has_confidence_head' is true but the tensor 'conf_proj.weight' is missing");
    }
    info.has_confidence = head;
    if (!head) {
        info.warnings.emplace_back("no confidence head: the pick's softmax share stands in for it");
    }
}

DrafterInfo check_file(const GgufFile & file, const Target & target) {
    if (file.architecture() != "dflash") {
        refuse(file, "not a DSpark drafter (architecture '" + file.architecture() +
                         "', 'dflash' is needed). Give the target with -m and the drafter with -md");
    }
    DrafterInfo info;
    check_shape(file, target);
    info.target_layers = read_layers(file, target);
    check_vocabulary(file, target);
    info.mask_token = read_mask(file, target);
    const int64_t block = required(file, "dflash.block_size");
    if (block < 1 || block > kMaxBlock) {
        refuse(file, "the metadata key 'dflash.block_size' is " + std::to_string(block) + ", 1 to " +
                         std::to_string(kMaxBlock) + " can be run");
    }
    info.block_size = static_cast<int32_t>(block);
    const auto from_anchor = file.boolean("dflash.sample_from_anchor");
    if (!from_anchor) {
        info.warnings.emplace_back(
            "'dflash.sample_from_anchor' is missing: taken as true (the anchor's slot proposes). "
            "If almost nothing is accepted, the file was made for the other layout");
    }
    info.sample_from_anchor = from_anchor.value_or(true);
    info.n_draft = info.sample_from_anchor ? info.block_size : info.block_size - 1;
    if (info.n_draft < 1) {
        refuse(file, "'dflash.block_size' is 1 and the anchor's slot proposes nothing: the block is empty");
    }
    info.causal = file.boolean("dflash.attention.causal").value_or(false);
    check_heads(file, info, target);
    return info;
}

} // namespace

DrafterInfo drafter_check(const std::string & path, const Target & target) {
    try {
        return check_file(GgufFile(path), target);
    } catch (const DrafterError &) {
        throw;
    } catch (const ModelError & error) { // the file itself: missing, damaged, a key of the wrong type
        throw DrafterError(error.what());
    }
}

} // namespace adaspark
