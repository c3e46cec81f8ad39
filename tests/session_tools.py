"""What tests of sessions share: prompts whose plain text is worth comparing, plain replies, targets and drafters."""

from __future__ import annotations

import tiny_models as tm
from conftest import ModelFiles
from engine_tools import Reply, request, run, text_prompt

from adaspark import _engine

TARGETS = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED, "lfm2": tm.HYBRID}
ATTENTION = {name: spec for name, spec in TARGETS.items() if name != "lfm2"}
DRAFTERS = {
    "agreeing": tm.DrafterSpec(),
    "random": tm.DrafterSpec(seed=102, agree=False, own_head=True),
    "reduced vocabulary": tm.DrafterSpec(seed=103, reduced=100),
    "anchor only conditions": tm.DrafterSpec(seed=104, sample_from_anchor=False, block_size=8),
}

# Seeds of a prompt for each target whose plain text of 300 tokens is varied and hangs on no rounding.
MAIN_PROMPTS = {tm.DENSE: 54589, tm.QWEN3: 24188, tm.ROUTED: 8081, tm.HYBRID: 17298, tm.HYBRID_ROUTED: 4707}


def main_prompt(models: ModelFiles, spec: tm.TargetSpec) -> list[int]:
    return text_prompt(models, spec, MAIN_PROMPTS[spec], 12)


def plain_reply(target: _engine.Target, prompt: list[int], n: int, **fields: object) -> Reply:
    return run(_engine.Session(target), target, prompt, request(n_predict=n, **fields))


def same_reply(got: Reply, plain: Reply) -> None:
    assert got.tokens == plain.tokens
    assert got.text == plain.text
    assert got.finish_reason == plain.finish_reason
