"""What changes are drawn from: numbers, texts, and names that files of some architecture have."""

from __future__ import annotations

NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 255, 256, 257, 319, 320, 321, 511, 512, 513,
    1000, 1025, 4096, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62) + 1,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -32, -(1 << 31), -(1 << 63),
)  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e-5, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e4)
TEXTS = (
    b"", b" ", b"a", b"\xff\xfe\x80", b"a\0b", b"\xc3", b"x" * 300, b"y" * 100_000, b"%s%n%d", b"none", b"linear", b"yarn",
    b"longrope", b"default", b"silu", b"gelu", b"{% for", b"{{ 1 / 0 }}", b"{{ messages[99].x.y }}", b"{% raw %}",
    b"{{ raise_exception('no') }}", b"{{ bos_token }}{{ messages[0]['content'] }}", b"{{ messages }}", b"\n", b"</s>",
    b"<|end|>", b"<|return|>", b"<|call|>", b"phi-3", b"../../x", b"\xef\xbf\xbd", b"[1, 2]",
)  # fmt: skip
TOKENIZERS = (b"gpt2", b"llama", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"none", b"no_vocab", b"test",
               b"hybriddna", b"whitespace")  # fmt: skip
PRES = (
    b"default", b"llama-bpe", b"smollm", b"qwen2", b"qwen35", b"lfm2", b"gpt-2", b"gpt-4o", b"deepseek-v3", b"kimi-k2",
    b"tekken", b"chatglm-bpe", b"falcon", b"bloom", b"viking", b"superbpe", b"jina-v2-code", b"gemma4", b"whitespace",
)  # fmt: skip
ARCHITECTURES = (
    b"llama", b"qwen2", b"qwen3", b"qwen3moe", b"lfm2", b"lfm2moe", b"dflash", b"eagle3", b"clip", b"bert", b"t5", b"gpt2",
    b"mamba", b"mamba2", b"rwkv6", b"rwkv7", b"gemma", b"gemma2", b"gemma3", b"gemma3n", b"phi3", b"falcon", b"deepseek2",
    b"qwen3next", b"qwen35", b"qwen2moe", b"qwen2vl", b"jamba", b"granitehybrid", b"gpt-oss", b"llama4", b"minicpm",
    b"minicpm3", b"glm4", b"olmo2", b"mistral3", b"smollm3", b"stablelm", b"starcoder2", b"cohere2", b"exaone4", b"bitnet",
    b"deci", b"wavtokenizer-dec", b"kimi-linear", b"nemotron_h", b"falcon-h1", b"plamo2", b"apertus", b"llada", b"dream",
    b"hunyuan-dense", b"seed_oss", b"grovemoe", b"step35", b"mimo2", b"(unknown)",
)  # fmt: skip
# Keys of an architecture that files of another have: reading one may turn on a part of a graph.
SUFFIXES = tuple(
    b"vocab_size context_length embedding_length embedding_length_out block_count leading_dense_block_count "
    b"feed_forward_length expert_feed_forward_length expert_shared_feed_forward_length use_parallel_residual "
    b"expert_count expert_used_count expert_shared_count expert_group_count expert_group_used_count "
    b"expert_weights_scale expert_weights_norm expert_gating_func moe_every_n_layers nextn_predict_layers "
    b"hidden_activation pooling_type logit_scale attn_logit_softcapping final_logit_softcapping residual_scale "
    b"embedding_scale full_attention_interval attention.head_count attention.head_count_kv attention.max_alibi_bias "
    b"attention.clamp_kqv attention.key_length attention.value_length attention.layer_norm_epsilon "
    b"attention.layer_norm_rms_epsilon attention.causal attention.sliding_window attention.sliding_window_pattern "
    b"attention.scale attention.value_scale attention.output_scale attention.temperature_length "
    b"attention.temperature_scale attention.key_length_swa attention.value_length_swa attention.shared_kv_layers "
    b"attention.recurrent_layers attention.q_lora_rank hyper_connection.count rope.dimension_count "
    b"rope.dimension_count_swa rope.dimension_sections rope.freq_base rope.freq_base_swa rope.scale_linear "
    b"rope.scaling.type rope.scaling.factor rope.scaling.alpha rope.scaling.attn_factor "
    b"rope.scaling.original_context_length rope.scaling.finetuned rope.scaling.yarn_log_multiplier "
    b"rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast "
    b"rope.scaling.yarn_beta_slow ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count "
    b"shortconv.l_cache classifier.output_labels classifier.pooling_type target_layers target_hidden_size block_size "
    b"conv_kernel_size conv_group_size selector_rank selector_top_k sample_from_anchor has_confidence_head "
    b"swiglu_clamp_exp swiglu_clamp_shexp n_deepstack_layers deepstack_mapping decoder_start_token_id".split()
)
GENERAL = tuple(
    b"general.alignment general.file_type general.type general.quantization_version general.name general.architecture "
    b"split.no split.count split.tensors.count tokenizer.ggml.model tokenizer.ggml.pre tokenizer.ggml.tokens "
    b"tokenizer.ggml.token_type tokenizer.ggml.token_type_count tokenizer.ggml.scores tokenizer.ggml.merges "
    b"tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.eom_token_id "
    b"tokenizer.ggml.unknown_token_id tokenizer.ggml.seperator_token_id tokenizer.ggml.padding_token_id "
    b"tokenizer.ggml.cls_token_id tokenizer.ggml.mask_token_id tokenizer.ggml.add_bos_token "
    b"tokenizer.ggml.add_eos_token tokenizer.ggml.add_sep_token tokenizer.ggml.add_space_prefix "
    b"tokenizer.ggml.remove_extra_whitespaces tokenizer.ggml.precompiled_charsmap tokenizer.huggingface.json "
    b"tokenizer.chat_template tokenizer.ggml.normalizer.lowercase tokenizer.ggml.fim_pre_token_id "
    b"tokenizer.ggml.fim_pad_token_id tokenizer.ggml.fim_rep_token_id tokenizer.ggml.suppress_tokens".split()
)
TENSORS = tuple(
    b"token_embd.weight output.weight output_norm.weight output_norm.bias token_embd_norm.weight rope_freqs.weight "
    b"rope_factors_long.weight rope_factors_short.weight blk.0.attn_qkv.weight blk.0.attn_q.bias blk.0.attn_k.bias "
    b"blk.0.attn_v.bias blk.0.attn_qkv.bias blk.0.attn_output.bias blk.0.attn_q_norm.weight blk.0.attn_k_norm.weight "
    b"blk.0.attn_sinks.weight blk.0.ffn_gate_inp.weight blk.0.ffn_gate_exps.weight blk.0.ffn_gate_up_exps.weight "
    b"blk.0.exp_probs_b.bias blk.0.ffn_gate.bias blk.0.ffn_down.bias blk.0.ffn_up.bias blk.0.attn_q.scale "
    b"blk.0.attn_q.input_scale blk.0.ffn_down.scale output.scale fc.scale markov_w2.scale blk.1.attn_norm.weight "
    b"blk.0.shortconv.conv.weight d2t selector_hidden.weight conf_proj.weight conf_proj.bias fc.weight "
    b"enc.output_norm.weight markov_w1.weight markov_w2.weight blk.0.rope_freqs.weight cls.weight".split()
)
