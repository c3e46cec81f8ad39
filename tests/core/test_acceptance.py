"""csrc/core/acceptance and head_estimate: section 3.3, driven through whole rounds and compared with plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from core.driver import Round, make_scheduler, random_block, run_round
from core.oracle import Acceptance, Text, clamp, merge
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaspark import _core

# Features and probabilities are floats (what the learners add up is not), so rounds agree with plain Python to about
# 1e-6 a step.
TOLERANCE = 2e-5


def bucket_index(key: tuple[str, int, int]) -> int:
    family, slot, run = key
    start = {"text": 0, "agreed pick": 12, "agreed sibling": 24, "contradicted pick": 36, "contradicted sibling": 40}
    return start[family] + (slot if family.startswith("contra") else slot * 3 + run)


class PlainRounds:
    """Acceptance, guard and offset of whole rounds, as section 3.3 states them."""

    def __init__(self, prompt: list[int], stop: set[int]) -> None:
        self.model = Acceptance()
        self.guard = [0.0, 0.0]
        self.stop = stop
        self.begin(prompt)

    def begin(self, prompt: list[int]) -> None:
        self.text = Text()
        for t in prompt:
            self.text.append(t)
        self.model.begin_request()
        self.offset = self.offset_squared = 0.0
        self.context = len(prompt)

    def plan(self, anchor: int, block) -> None:
        self.anchor, self.block = anchor, block
        self.nodes = merge(self.text, anchor, block.tokens, self.stop)
        self.base = [math.log(self.text.precision(s) / (1 - self.text.precision(s))) for s in range(4)]
        self.fitted = self.model.prices(self.nodes, block, self.base, self.context)
        raw = [
            self.text.precision(n.slot) if n.kind == "text" else block.head_q(n.position, n.lane) for n in self.nodes
        ]
        e = math.exp(self.offset)
        self.head = [q * e / (1 - q + q * e) for q in raw]
        self.prefers_fitted = self.guard[0] < self.guard[1]

    def observe(self, tree: dict, path: list[int], next_token: int) -> None:
        accepted_nodes = [int(tree["candidates"][r]) for r in path]
        for i, parent in enumerate(accepted_nodes):
            children = [k for k, n in enumerate(self.nodes) if n.parent == parent]
            if not children:
                continue
            token = self.nodes[accepted_nodes[i + 1]].token if i + 1 < len(path) else next_token
            accepted = next((k for k in children if self.nodes[k].token == token), -1)
            for which, p in enumerate((self.fitted, self.head)):
                loss = 0.0
                for k in children:
                    q = clamp(p[k], 1e-7, 1 - 1e-7)
                    loss -= math.log(q if k == accepted else 1 - q)
                self.guard[which] = self.guard[which] * 0.5 ** (1 / 256) + loss
            self.model.learn(self.nodes, self.fitted, parent, accepted, self.block, self.base, self.context)
        errors = [
            self.head[int(tree["candidates"][r])] - (1.0 if r in path else 0.0)
            for r in range(1, len(tree["tokens"]))
            if int(tree["parents"][r]) in path
        ]
        if any(e != 0 for e in errors):
            self.offset_squared += sum(e * e for e in errors)
            self.offset = clamp(self.offset - 0.15 * sum(errors) / (1 + math.sqrt(self.offset_squared)), -2, 2)
        for r in path:
            self.text.append(int(tree["tokens"][r]))
        self.context += len(path)


def assert_same(core: _core.Scheduler, plain: PlainRounds) -> None:
    a = core.acceptance
    np.testing.assert_allclose(a["weights"], [plain.model.weight(i) for i in range(9)], atol=TOLERANCE)
    want = np.zeros(44)
    for key, w in plain.model.weights.items():
        if not isinstance(key, int):
            want[bucket_index(key)] = w  # type: ignore[arg-type]
    np.testing.assert_allclose(a["bucket_weights"], want, atol=10 * TOLERANCE)
    assert [a["intercept"], a["text_intercept"]] == pytest.approx(plain.model.intercept, abs=TOLERANCE)
    assert a["offset"] == pytest.approx(plain.offset, abs=TOLERANCE)
    assert [a["guard_fitted"], a["guard_head"]] == pytest.approx(plain.guard, rel=1e-5)


def test_rounds_without_the_drafter_leave_its_intercept_alone():
    rng = np.random.default_rng(1)
    core = make_scheduler(pinned_rows=4, exploration=False)
    core.begin_request(np.array([*range(8)] * 4, np.int32), 0, 500)
    for _ in range(8):
        run_round(core, rng, None)
    alone = core.acceptance
    assert alone["text_intercept"] != 0.0
    assert alone["intercept"] == 0.0
    core.begin_request(np.arange(8, dtype=np.int32), 0, 500)
    assert core.acceptance["text_intercept"] == 0.0
    core = make_scheduler(pinned_rows=4, exploration=False, text=False)
    core.begin_request(np.arange(8, dtype=np.int32), 0, 500)
    for _ in range(8):
        run_round(core, rng, random_block(rng, 7, 8))
    drafted = core.acceptance
    assert drafted["intercept"] != 0.0
    assert drafted["text_intercept"] == 0.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.booleans())
@example(272, 18, False)  # all 63 text nodes are taken, and a later pick still agrees with the text
def test_whole_rounds_match_plain_python(seed, rows, with_stop):
    rng = np.random.default_rng(seed)
    stop = [3] if with_stop else []
    core = make_scheduler(pinned_rows=rows, exploration=False, stop_tokens=stop)
    plain: PlainRounds | None = None
    for _ in range(2):
        prompt = rng.integers(0, 8, rng.integers(0, 60)).tolist()
        anchor = int(rng.integers(0, 8))
        core.begin_request(np.array(prompt, np.int32), anchor, 500)
        if plain is None:
            plain = PlainRounds(prompt, set(stop))
        else:
            plain.begin(prompt)
        for _ in range(25):
            block = random_block(rng, positions=int(rng.integers(1, 8)), vocabulary=8)
            plain.plan(anchor, block)
            r: Round = run_round(core, rng, block)
            c = r.candidates
            assert c["tokens"].tolist() == [n.token for n in plain.nodes]
            assert c["parents"].tolist() == [n.parent for n in plain.nodes]
            states = ["none", "agreed", "contradicted", "text"]
            assert [states[e] for e in c["evidence"]] == [n.evidence for n in plain.nodes]
            for i, n in enumerate(plain.nodes):
                if n.evidence != "none":
                    assert (c["slots"][i], c["runs"][i]) == (n.slot, n.run)
            assert r.report["fitted"] == plain.prefers_fitted
            np.testing.assert_allclose(
                c["q"], plain.fitted if plain.prefers_fitted else plain.head, rtol=1e-5, atol=1e-9
            )
            plain.observe(r.tree, r.path, r.next_token)
            assert_same(core, plain)
            anchor = r.next_token


def test_prior_is_the_head_for_the_pick_and_half_the_rest_for_the_siblings():
    rng = np.random.default_rng(0)
    core = make_scheduler(pinned_rows=8, text=False)
    core.begin_request(np.arange(50, dtype=np.int32), 1, 10)
    block = random_block(rng, positions=7, vocabulary=1000)
    plain = PlainRounds(list(range(50)), set())
    plain.text = Text()
    plain.plan(1, block)
    for i, h in enumerate(block.confidence):
        q = plain.fitted[8 * i : 8 * i + 8]
        assert q[0] == pytest.approx(h, abs=1e-6)
        assert sum(q[1:]) == pytest.approx((1 - h) / 2, abs=1e-6)
        assert q[1:] == pytest.approx([(1 - h) / 2 * math.exp(block.log_r(i, j)) for j in range(1, 8)], abs=1e-6)


def test_probabilities_and_none_sum_to_one():
    rng = np.random.default_rng(1)
    core = make_scheduler(pinned_rows=8)
    core.begin_request(rng.integers(0, 6, 80).astype(np.int32), 1, 400)
    for _ in range(120):
        r = run_round(core, rng, random_block(rng, 7, 6))
        if not r.report["fitted"]:
            continue
        q = r.candidates["q"].astype(float)
        for parent in set(r.candidates["parents"].tolist()):
            children = r.candidates["parents"] == parent
            assert q[children].sum() < 1.0 + 1e-6  # what is left is NONE


def test_alternating_gradients_leave_a_bucket_at_zero():
    g = np.tile([0.3, -0.3], 500)
    assert _core.gated_steps(g)[0] == 0.0
    w, z, n = _core.gated_steps(np.full(400, 0.3))
    assert w < 0.0
    assert abs(z) > 3 * math.sqrt(n)


def test_noise_takes_a_shared_coefficient_a_tenth_of_a_logit_away():
    noise = [np.random.default_rng(seed).choice([-0.3, 0.3], 2000) for seed in range(200)]
    moved = [_core.prior_steps(g, 0.75)[0] - 0.75 for g in noise]
    n = 2000 * 0.3**2
    assert np.std(moved) == pytest.approx(0.05 * math.sqrt(math.log(n)), rel=0.2)
    assert np.mean([_core.gated_steps(g)[0] == 0.0 for g in noise]) > 0.9  # ten times the rate, behind a gate


def test_a_drafter_that_is_too_sure_is_priced_right_from_the_second_request_on():
    """Its odds are three quarters of what the head says, and flatter. A gate would hold the prices back by a seventh."""
    first, later = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        core = make_scheduler(pinned_rows=8, text=False)
        for request in range(6):
            core.begin_request(np.arange(20, dtype=np.int32), 1, 4000)
            for _ in range(100):
                block = random_block(rng, 7, 50_000)

                def truth(i: int, rng=rng, block=block) -> int:
                    s = [math.log(2) - 0.3 + 0.8 * block.logit_head(i)]
                    s += [block.log_r(i, j) for j in range(1, 8)]
                    p = np.exp([*s, 0.0])
                    return int(rng.choice(9, p=p / p.sum()))

                r = run_round(core, rng, block, truth)
                (later if request > 0 else first).append((len(r.path) - 1, core.sum_q))
            core.end_request()
    accepted, expected = np.sum(later, axis=0)
    assert 0.93 < accepted / expected < 1.03
    accepted, expected = np.sum(first, axis=0)
    assert accepted / expected < 0.93  # there is something to learn


def test_the_gate_scales_with_the_gradients():
    # Three deviations of a zero-mean z. Twelve gradients of one sign pass it at any size of gradient.
    for size in (0.01, 0.1, 1.0):
        assert _core.gated_steps(np.full(8, size))[0] == 0.0
        assert _core.gated_steps(np.full(12, size))[0] != 0.0


def test_squared_gradients_are_capped_so_learning_never_stops():
    alternating = np.tile([1.0, -1.0], 1000)
    assert _core.gated_steps(alternating)[2] == 400.0
    assert _core.prior_steps(alternating, 0.0)[2] == 400.0


def test_offset_learns_a_biased_head_and_leaves_a_calibrated_one():
    rng = np.random.default_rng(5)
    biased, calibrated = _core.HeadOffset(), _core.HeadOffset()
    for _ in range(400):
        for offset, q, truth in ((biased, 0.8, 0.3), (calibrated, 0.7, 0.7)):
            g = offset.shift(q) - float(rng.random() < truth)
            offset.learn(g, g * g)
    assert biased.value < -0.5
    assert abs(calibrated.value) < 0.2
    assert biased.shift(0.0) == 0.0
    assert biased.shift(1.0) == 1.0


def test_an_empty_guard_prefers_the_head():
    core = make_scheduler(pinned_rows=8)
    rng = np.random.default_rng(2)
    core.begin_request(np.arange(20, dtype=np.int32), 1, 100)
    assert not run_round(core, rng, random_block(rng, 7, 9)).report["fitted"]


def test_the_model_learns_what_the_head_cannot_see():
    """Picks are right exactly as often as a law with other coefficients says; the guard hands over to the fit."""
    rng = np.random.default_rng(7)
    core = make_scheduler(pinned_rows=8, text=False)
    core.begin_request(np.arange(20, dtype=np.int32), 1, 40_000)
    fitted = []
    for _ in range(3000):
        block = random_block(rng, 7, 50_000)

        def truth(i: int, block=block) -> int:
            s = [0.3 + 0.4 * block.logit_head(i) + 0.5 * block.logit_share(i)]
            s += [-0.5 + 0.8 * block.log_r(i, j) for j in range(1, 8)]
            p = np.exp([*s, 0.0])
            return int(rng.choice(9, p=p / p.sum()))

        fitted.append(run_round(core, rng, block, truth).report["fitted"])
    w = core.acceptance["weights"]
    assert np.mean(fitted[-1000:]) == 1.0
    assert w[1] == pytest.approx(0.4, abs=0.12)
    assert w[2] == pytest.approx(0.5, abs=0.12)
    assert w[4] == pytest.approx(0.8, abs=0.12)
