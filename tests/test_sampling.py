"""Sampling (csrc/engine/session): with a temperature the reply is still the target's own, for any tree."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Proposal, Proposer, Reply, anti, oracle, request, run, text_prompt
from numpy.typing import NDArray
from scipy import stats
from session_tools import plain_reply, same_reply

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size
SAMPLERS = {
    "temperature": {"temperature": 0.7},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "min-p": {"temperature": 0.8, "min_p": 0.1},
    "all": {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.05},
}
every_sampler = pytest.mark.parametrize("fields", SAMPLERS.values(), ids=SAMPLERS.keys())


@pytest.fixture
def prompt(models: ModelFiles) -> list[int]:
    return text_prompt(models, tm.DENSE, 120, 12)


@every_sampler
@pytest.mark.parametrize("seed", [1, 2, 2**32 - 1])
def test_a_seed_gives_one_text_for_every_arm(
    load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int], fields: dict[str, object], seed: int
) -> None:
    target = load_target(tm.DENSE)
    plain = plain_reply(target, prompt, 100, seed=seed, **fields)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
    accepted = 0
    for arm, n in (("chain", 1), ("chain", 7), ("tree", 8), ("tree", 64)):
        reply = run(session, target, prompt, request(arm, n, n_predict=100, seed=seed, **fields))
        same_reply(reply, plain)
        accepted += reply.statistics["accepted"]
    assert accepted > 0
    for proposer in (oracle(prompt, plain.tokens, 9), anti(prompt, plain.tokens, 3, 9, N_VOCAB)):
        session.set_proposer(proposer)
        same_reply(run(session, target, prompt, request("tree", 64, n_predict=100, seed=seed, **fields)), plain)


def test_a_hybrid_samples_one_text_too(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    prompt = text_prompt(models, tm.HYBRID, 121, 12)
    target = load_target(tm.HYBRID)
    plain = plain_reply(target, prompt, 100, seed=5, temperature=1.2)
    session = _engine.Session(target, load_drafter(target, tm.HYBRID, tm.DrafterSpec()))
    same_reply(run(session, target, prompt, request("chain", 5, n_predict=100, seed=5, temperature=1.2)), plain)


@every_sampler
def test_the_seed_alone_decides(load_target: LoadTarget, prompt: list[int], fields: dict[str, object]) -> None:
    target = load_target(tm.DENSE)
    first = plain_reply(target, prompt, 60, seed=7, **fields)
    same_reply(plain_reply(target, prompt, 60, seed=7, **fields), first)
    others = [plain_reply(target, prompt, 60, seed=s, **fields).tokens for s in range(8, 12)]
    assert len({tuple(t) for t in [*others, first.tokens]}) == 5


def test_temperature_zero_is_the_argmax_whatever_the_seed(
    load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int]
) -> None:
    """B25: no clock and no seed in greedy decoding; filters that leave the best token change nothing."""
    target = load_target(tm.DENSE)
    plain = plain_reply(target, prompt, 80)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
    for seed, fields in enumerate([{}, {"top_k": 1}, {"top_k": 40, "top_p": 0.1, "min_p": 0.9}]):
        same_reply(plain_reply(target, prompt, 80, temperature=0.0, seed=seed, **fields), plain)
        reply = run(session, target, prompt, request("tree", 16, n_predict=80, temperature=0.0, seed=seed, **fields))
        same_reply(reply, plain)


def test_top_k_of_one_is_the_argmax(load_target: LoadTarget, prompt: list[int]) -> None:
    target = load_target(tm.DENSE)
    same_reply(plain_reply(target, prompt, 80, temperature=5.0, top_k=1, seed=3), plain_reply(target, prompt, 80))


def test_an_ignored_end_is_never_drawn(load_target: LoadTarget, prompt: list[int]) -> None:
    """At a temperature that makes every token likely."""
    target = load_target(tm.DENSE)
    hot = {"temperature": 50.0, "seed": 11}
    assert plain_reply(target, prompt, 900, **hot).finish_reason == "stop"
    reply = plain_reply(target, prompt, 900, ignore_eos=True, **hot)
    assert (len(reply.tokens), reply.finish_reason) == (900, "length")
    assert not {tm.IM_END, tm.END_OF_TEXT} & set(reply.tokens)


# --------------------------------------------------------------------------------------------------------- distribution

TEMPERATURE, TOP_K = 4.0, 4


def filtered(logits: NDArray[np.float64]) -> dict[int, float]:
    """The distribution a token is drawn from: the 4 best, at temperature 4."""
    best = np.argsort(-logits)[:TOP_K]
    p = np.exp((logits[best] - logits[best[0]]) / TEMPERATURE)
    return dict(zip(best.tolist(), (p / p.sum()).tolist(), strict=True))


def three_tokens(target: tm.TinyTarget, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Exact probabilities of the first three tokens, by walking all 64 replies."""
    out: dict[tuple[int, ...], float] = {}
    for a, pa in filtered(reference.forward(target, prompt).logits[-1]).items():
        for b, pb in filtered(reference.forward(target, [*prompt, a]).logits[-1]).items():
            for c, pc in filtered(reference.forward(target, [*prompt, a, b]).logits[-1]).items():
                out[a, b, c] = pa * pb * pc
    return out


def likely(expected: dict[tuple[int, ...], float]) -> Proposer:
    """A tree of the three likeliest second tokens after any first one, each with its likeliest third."""

    def propose(committed: NDArray[np.int32]) -> Proposal:
        first = int(committed[-1])
        second: collections.Counter[int] = collections.Counter()
        third: dict[int, collections.Counter[int]] = {}
        for (a, b, c), p in expected.items():
            if a == first:
                second[b] += p  # type: ignore[assignment]
                third.setdefault(b, collections.Counter())[c] += p  # type: ignore[assignment]
        tokens: list[int] = []
        parents: list[int] = []
        for b, _ in second.most_common(3):
            tokens += [b, third[b].most_common(1)[0][0]]
            parents += [-1, len(tokens) - 2]
        return tokens, parents

    return propose


def unlikely(expected: dict[tuple[int, ...], float]) -> Proposer:
    """Tokens that are never drawn, and the least likely one that is."""
    drawn = set(itertools.chain(*expected))
    others = [t for t in range(5, N_VOCAB) if t not in drawn][:20]

    def propose(committed: NDArray[np.int32]) -> Proposal:
        first = int(committed[-1])
        second = {b: p for (a, b, _), p in expected.items() if a == first}
        return [*others, *([min(second, key=lambda b: second[b])] if second else [])], [-1] * (
            len(others) + bool(second)
        )

    return propose


@pytest.mark.parametrize("way", ["plain", "likely tree", "unlikely tree", "drafter tree"])
def test_the_distribution_is_the_targets(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int], way: str
) -> None:
    """B41: 2,000 replies of three tokens against their exact probabilities, jointly and for each place.

    Fixed seeds make this a fixed computation; a verifier that compares a greedy pick, or draws twice, is far outside.
    """
    tiny, n = models.target(tm.DENSE), 2000
    expected = three_tokens(tiny, prompt)
    target = load_target(tm.DENSE)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()) if "drafter" in way else None)
    if way == "likely tree":
        session.set_proposer(likely(expected))
    elif way == "unlikely tree":
        session.set_proposer(unlikely(expected))
    arm = ("plain", 0) if way == "plain" else ("tree", 8)
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    accepted = 0
    for seed in range(n):
        session.begin(prompt, request(*arm, n_predict=3, seed=seed, temperature=TEMPERATURE, top_k=TOP_K))
        while not session.finished:
            session.step()
        counts[tuple(session.token_ids)] += 1
        accepted += session.statistics["accepted"]
    assert set(counts) <= set(expected), "a token outside the four best was drawn"
    assert (accepted > n // 3) == (way == "likely tree") or way == "drafter tree"
    for places in ((0, 1, 2), (1,), (2,), (1, 2)):
        p: collections.Counter[tuple[int, ...]] = collections.Counter()
        observed: collections.Counter[tuple[int, ...]] = collections.Counter()
        for reply, probability in expected.items():
            p[tuple(reply[i] for i in places)] += probability  # type: ignore[assignment]
        for reply, count in counts.items():
            observed[tuple(reply[i] for i in places)] += count
        kept = [k for k in p if n * p[k] >= 5]
        rest = n - sum(observed[k] for k in kept)
        f_exp = np.array([n * p[k] for k in kept] + [n * sum(p[k] for k in p if k not in kept)])
        f_obs = np.array([observed[k] for k in kept] + [rest])
        used = f_exp > 1
        f_exp, f_obs = f_exp[used], f_obs[used]
        assert stats.chisquare(f_obs, f_exp * f_obs.sum() / f_exp.sum()).pvalue > 0.01


def drawn(target: _engine.Target, prompt: list[int], n: int, **fields: object) -> set[int]:
    """Every first token that n seeds draw."""
    session = _engine.Session(target)
    out: set[int] = set()
    for seed in range(n):
        session.begin(prompt, request(n_predict=1, seed=seed, **fields))
        out |= set(session.token_ids)
    return out


def test_filters_keep_what_they_say(models: ModelFiles, load_target: LoadTarget, prompt: list[int]) -> None:
    """Drawn at a temperature high enough that everything a filter keeps is seen."""
    target = load_target(tm.DENSE)
    logits = reference.forward(models.target(tm.DENSE), prompt).logits[-1]
    order = np.argsort(-logits)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    assert drawn(target, prompt, 400, temperature=20.0, top_k=3) == set(order[:3].tolist())
    # limits half-way between two tokens, so that rounding does not decide; the filters come before the temperature
    best = p[order]
    for keep in (2, 5, 9):
        kept = set(order[:keep].tolist())
        min_p = float(np.sqrt(best[keep - 1] * best[keep]) / best[0])
        assert drawn(target, prompt, 600, temperature=20.0, min_p=min_p) == kept
        top_p = float(best[: keep - 1].sum() + best[keep - 1] / 2)
        assert drawn(target, prompt, 600, temperature=20.0, top_p=top_p) == kept
    assert len(drawn(target, prompt, 400, temperature=20.0)) > 100


def test_a_sampled_reply_stops_like_any_other(load_target: LoadTarget, prompt: list[int]) -> None:
    target = load_target(tm.DENSE)
    # of the three best tokens, which are text: a stop string can be cut from it
    fields = {"seed": 9, "temperature": 1.5, "top_k": 3}
    whole = plain_reply(target, prompt, 100, **fields)
    stop = whole.text[40:44]
    cut = plain_reply(target, prompt, 100, stop=[stop], **fields)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    session = _engine.Session(target)
    session.set_proposer(oracle(prompt, whole.tokens, 11))
    reply: Reply = run(session, target, prompt, request("tree", 64, n_predict=100, stop=[stop], **fields))
    same_reply(reply, cut)
