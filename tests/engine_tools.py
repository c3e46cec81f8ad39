"""Helpers around the engine for its tests: opening models, running requests, proposers and random trees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tiny_models as tm
from numpy.typing import NDArray

from adaspark import _engine
from adaspark.errors import ModelError

if TYPE_CHECKING:
    from conftest import ModelFiles

Proposal = tuple[list[int], list[int]]
Proposer = Callable[[NDArray[np.int32]], Proposal]


DEFAULTS: dict[str, object] = {
    "n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "n_gpu_layers": 0, "cache_type_k": "f32",
    "cache_type_v": "f32", "flash_attention": "off", "max_rows": 64, "kernels": "auto",
}  # fmt: skip


def on_gpu() -> bool:
    """Do targets run on a GPU where a test does not say?"""
    return DEFAULTS["n_gpu_layers"] != 0 and _engine.backend_info()["gpu_offload"]


def f32_noise() -> float:
    """What rounding does to logits of size 12 after a few layers of F32 weights. A GPU's matrix units round what they
    multiply to TF32's 11 bits: 0.023 was seen. A wrong mask or position makes differences of 0.6 and more."""
    return 0.05 if on_gpu() else 2e-4


def open_target(path: Path, **options: object) -> _engine.Target:
    """One thread, an F32 cache and no flash attention (which rounds to F16 on the way), so that a difference is the
    engine's and not the format's; options override. Models that the kernels asked for with ``--kernels`` do not know
    run on those that ``auto`` takes. Tests of what a GPU has not are skipped there."""
    o = _engine.TargetOptions()
    for name, value in (DEFAULTS | options).items():
        setattr(o, name, value)
    if on_gpu() and o.n_gpu_layers != 0 and o.kernels == "own":
        pytest.skip("the CPU's kernels run no offloaded model")
    try:
        return _engine.Target(str(path), o)
    except ModelError as error:
        if on_gpu() and any(f"cannot run {what}" in str(error) for what in ("FLASH_ATTN_EXT", "GET_ROWS")):
            pytest.skip(str(error))
        if "kernels" in options or "cannot run this model" not in str(error):
            raise
        o.kernels = "auto"
        return _engine.Target(str(path), o)


def open_drafter(path: Path, target: _engine.Target, **options: object) -> _engine.Drafter:
    o = _engine.DrafterOptions()
    for name, value in ({"n_gpu_layers": DEFAULTS["n_gpu_layers"]} | options).items():
        setattr(o, name, value)
    return _engine.Drafter(str(path), target, o)


def text_prompt(models: ModelFiles, spec: tm.TargetSpec, seed: int, n: int) -> list[int]:
    tokens = models.target(spec).text_tokens
    return np.random.default_rng(seed).choice(tokens, n).tolist()


def request(arm: str = "plain", arm_n: int = 0, **fields: object) -> _engine.Request:
    r = _engine.Request()
    for name, value in ({"arm": arm, "arm_n": arm_n} | fields).items():
        setattr(r, name, value)
    return r


@dataclass(frozen=True)
class Reply:
    """A finished request."""

    deltas: list[str]
    tokens: list[int]
    finish_reason: str | None
    statistics: _engine.Statistics
    rounds: list[_engine.RoundReport]

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def run(
    session: _engine.Session, target: _engine.Target, prompt: Sequence[int], req: _engine.Request,
    each: Callable[[int], None] | None = None,
) -> Reply:  # fmt: skip
    """Run a request to its end. The KV cache is compared with the committed length after every step."""
    session.begin(list(prompt), req)
    deltas: list[str] = []
    rounds: list[_engine.RoundReport] = []
    check_cache(session, target)
    while not deltas or not session.finished:  # the first step delivers the first token
        before = session.statistics["rounds"]
        deltas.append(session.step())
        check_cache(session, target)
        report = session.last_round
        if session.statistics["rounds"] > before and report is not None:
            rounds.append(report)
        if each is not None:
            each(len(deltas))
        if len(deltas) > 20_000:
            msg = "the session does not come to an end"
            raise AssertionError(msg)
    assert session.step() == "", "nothing comes after the end"
    reply = Reply(deltas, list(session.token_ids), session.finish_reason, session.statistics, rounds)
    check_statistics(reply, len(prompt), target)
    return reply


def check_cache(session: _engine.Session, target: _engine.Target) -> None:
    """Between rounds the cache holds what is committed and nothing else.

    The last token of a running request is the next round's anchor: known, but not evaluated yet.
    """
    assert target.n_kv_cells == target.n_past
    if session.finished:  # the token before an end-of-generation token was evaluated, a last token was not
        assert session.committed - 1 <= target.n_past <= session.committed
    else:
        assert target.n_past == session.committed - 1


def check_statistics(reply: Reply, n_prompt: int, target: _engine.Target) -> None:
    """What holds for every request, whatever was proposed (B47)."""
    s = reply.statistics
    assert s["prompt_tokens"] == n_prompt
    assert s["completion_tokens"] == len(reply.tokens)
    assert 0 <= s["accepted"] <= s["drafted"]
    assert s["rows"] == s["rounds"] + s["drafted"]
    assert sum(s["drafted_by_depth"]) == s["drafted"]
    assert sum(s["accepted_by_depth"]) == s["accepted"]
    assert s["accepted_by_depth"] == sorted(s["accepted_by_depth"], reverse=True), "a path has its upper part too"
    assert all(a <= d for a, d in zip(s["accepted_by_depth"], s["drafted_by_depth"], strict=False))
    assert len(s["accepted_by_depth"]) <= len(s["drafted_by_depth"])
    assert sum(s["width_rounds"].values()) == s["rounds"] == len(reply.rounds)
    assert sum(rows * n for rows, n in s["width_rounds"].items()) == s["rows"]
    assert all(1 <= rows <= target.max_rows for rows in s["width_rounds"])
    # The first token comes from the prefill, one from every round and one for every accepted draft; a round that
    # draws an end-of-generation token adds one fewer.
    total = 1 + s["rounds"] + s["accepted"]
    if s["rounds"] == 0:
        assert len(reply.tokens) <= 1
    elif reply.finish_reason == "stop":
        assert len(reply.tokens) in (total, total - 1)
    else:
        assert len(reply.tokens) == total
    for r in reply.rounds:
        assert r["rows"] == 1 + r["drafted"]
        assert 0 <= r["accepted"] <= r["drafted"]
        assert len(r["tokens"]) in (r["accepted"], r["accepted"] + 1)
    assert [t for r in reply.rounds for t in r["tokens"]] == reply.tokens[1:]
    assert sum(r["drafted"] for r in reply.rounds) == s["drafted"]
    assert sum(r["accepted"] for r in reply.rounds) == s["accepted"]
    times = [value for name, value in s.items() if name.endswith("_us")]
    assert all(isinstance(t, float) and np.isfinite(t) and t >= 0.0 for t in times)


# --------------------------------------------------------------------------------------------------- a child process

CHILD = """
import sys
from adaspark import _engine
path, drafter, fields = sys.argv[1], sys.argv[2], eval(sys.argv[3])
options = _engine.TargetOptions()
options.n_threads, options.n_ctx, options.n_gpu_layers = 1, 64, 0
try:
    for name, value in fields.items():
        setattr(options, name, value)
    target = _engine.Target(path, options)
    if drafter:
        _engine.Drafter(drafter, target, _engine.DrafterOptions())
    logits = target.prefill([5, 6, 7])
    print("ran", len(logits))
except Exception as error:
    print(type(error).__name__, str(error).replace(chr(10), " "))
print("alive")
"""


def in_child(path: Path | str, fields: dict[str, object] | None = None, drafter: Path | str = "") -> tuple[str, str]:
    """Loads and runs a model in a process of its own: the name of the exception (or "ran") and its message."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(drafter), repr(fields or {})],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["alive"], f"the interpreter died ({done.returncode}): {done.stdout}{done.stderr}"
    kind, _, message = lines[-2].partition(" ")
    return kind, message


# ---------------------------------------------------------------------------------------------------------- proposers


def chain(tokens: Sequence[int]) -> Proposal:
    return list(tokens), list(range(-1, len(tokens) - 1))


def oracle(prompt: Sequence[int], reply: Sequence[int], depth: int) -> Proposer:
    """Always right: the next ``depth`` tokens of the plain reply."""

    def propose(committed: NDArray[np.int32]) -> Proposal:
        at = len(committed) - len(prompt)
        return chain(reply[at : at + depth])

    return propose


def anti(prompt: Sequence[int], reply: Sequence[int], depth: int, width: int, n_vocab: int) -> Proposer:
    """Never right: ``width`` children of the anchor that are not the plain reply's next token, each with a chain."""

    def propose(committed: NDArray[np.int32]) -> Proposal:
        at = len(committed) - len(prompt)
        right = reply[at] if at < len(reply) else 0
        tokens: list[int] = []
        parents: list[int] = []
        for i in range(width):
            parent = -1
            for level in range(depth):
                tokens.append(
                    (right + 1 + i + level * width) % n_vocab if level == 0 else (right + 7 * level) % n_vocab
                )
                parents.append(parent)
                parent = len(tokens) - 1
        return tokens, parents

    return propose


def mixed(prompt: Sequence[int], reply: Sequence[int], right_depth: int, depth: int, n_vocab: int) -> Proposer:
    """Right down to ``right_depth``, wrong below, with a wrong sibling listed before every spine node."""

    def propose(committed: NDArray[np.int32]) -> Proposal:
        at = len(committed) - len(prompt)
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for level in range(depth):
            if at + level >= len(reply):
                break
            right = reply[at + level]
            tokens += [(right + 1) % n_vocab, right if level < right_depth else (right + 2) % n_vocab]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return tokens, parents

    return propose


# -------------------------------------------------------------------------------------------------------------- trees


@dataclass(frozen=True)
class Tree:
    """Rows of one verify, laid out depth-first."""

    tokens: list[int]
    parents: list[int]

    def path(self, row: int) -> list[int]:
        """Row indices from the anchor down to ``row``."""
        out = [row]
        while self.parents[out[-1]] >= 0:
            out.append(self.parents[out[-1]])
        return out[::-1]


def depth_first(tokens: Sequence[int], parents: Sequence[int]) -> Tree:
    """The same tree with its rows in depth-first order, children in their given order."""
    children: dict[int, list[int]] = {}
    for i, p in enumerate(parents):
        children.setdefault(p, []).append(i)
    order: list[int] = []
    stack = children[-1][::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children.get(node, [])[::-1]
    place = {node: i for i, node in enumerate(order)} | {-1: -1}
    return Tree([int(tokens[i]) for i in order], [place[parents[i]] for i in order])


def random_tree(rng: np.random.Generator, rows: int, n_vocab: int, bushiness: float) -> Tree:
    """A tree of ``rows`` rows; 0 gives a chain, 1 hangs every row on a uniformly chosen one. Siblings differ."""
    parents = [-1]
    for i in range(1, rows):
        parents.append(int(rng.integers(0, i)) if rng.random() < bushiness else i - 1)
    tokens = [int(rng.integers(0, n_vocab))]
    taken: dict[int, set[int]] = {}
    for p in parents[1:]:
        used = taken.setdefault(p, set())
        token = int(rng.integers(0, n_vocab))
        while token in used:
            token = int(rng.integers(0, n_vocab))
        used.add(token)
        tokens.append(token)
    return depth_first(tokens, parents)


def star(rng: np.random.Generator, rows: int, n_vocab: int) -> Tree:
    """Every row a child of the anchor: as many leaves as rows allow."""
    tokens = rng.choice(n_vocab, rows, replace=False).tolist()
    return Tree(tokens, [-1] + [0] * (rows - 1))


def siblings_first(rng: np.random.Generator, n_siblings: int, spine: int, n_vocab: int) -> Tree:
    """Leaves of the anchor listed before the spine that goes deeper."""
    tokens = rng.choice(n_vocab, 1 + n_siblings + spine, replace=False).tolist()
    first = 1 + n_siblings
    return Tree(tokens, [-1] + [0] * n_siblings + [0] + list(range(first, first + spine - 1)))
