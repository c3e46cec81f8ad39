"""Faults other engines were reported for, as tests: ends of contexts, budgets and texts, stop strings, UTF-8, cancelling.

The ids (B20, S06, ..) are those of the project's collection of public field reports. Reports on one part are tested with
that part: B01, B03, B04, B06, B08 in test_verify and test_session; B09, B11, B12, B15, B17, S04, S05, S06 in test_drafter;
B32 on text candidates in test_learned_arm and core/test_text; B33 in test_store, test_memory and core/test_field_cases; B36, B37 and
B39 on the scheduler in core/test_field_cases, on a machine by ``bench/slow_drafter.py``, ``bench/cold_start.py`` and
``bench/learned_table.py``; limits are in docs/scheduler.md; B41 in test_sampling; B45 in test_session; S21 in test_errors; B47 after every request (``engine_tools.check_statistics``).
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import resource
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Proposal, Reply, anti, chain, oracle, request, run, text_prompt
from numpy.typing import NDArray
from session_tools import plain_reply, same_reply

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size
CYCLE_DRAFTER = tm.DrafterSpec(taps=(0, 1, 2))
B = CYCLE_DRAFTER.block_size
ARMS = [("plain", 0), ("chain", 3), ("chain", 7), ("tree", 16), ("tree", 64)]


def oracle_reply(target: _engine.Target, prompt: list[int], plain: Reply, depth: int, **fields: object) -> Reply:
    session = _engine.Session(target)
    session.set_proposer(oracle(prompt, plain.tokens, depth))
    return run(session, target, prompt, request("tree", 64, **fields))


@pytest.fixture
def cycle(load_target: LoadTarget) -> _engine.Target:
    return load_target(tm.CYCLE)


@pytest.fixture
def prompt(models: ModelFiles) -> list[int]:
    return text_prompt(models, tm.CYCLE, 100, 12)


# ------------------------------------------------------------------------------------------------------- drafter files


def test_a_drafter_that_never_fits_is_reported_once(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """B10: the wrong block layout loads like the right one; 64 rounds without a hit are worth a line."""
    wrong = tm.DrafterSpec(seed=131, agree=False, own_head=True)
    path = models.write(models.drafter(tm.DENSE, wrong).file.edit(drop_keys=["dflash.sample_from_anchor"]))
    prompt = text_prompt(models, tm.DENSE, 101, 12)
    target = load_target(tm.DENSE)
    plain = plain_reply(target, prompt, 150)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, path))
    seen: list[int] = []
    reply = run(
        session, target, prompt, request("chain", 3, n_predict=150), lambda _: seen.append(len(session.warnings))
    )
    same_reply(reply, plain)
    assert sum(r["accepted"] > 0 for r in reply.rounds[:64]) <= 3
    assert seen[-1] == 1
    assert seen[60] == 0, "not before 64 rounds"
    assert "sample_from_anchor" in session.warnings[0]


def test_a_drafter_that_fits_is_not_reported(
    cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
) -> None:
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
    run(session, cycle, prompt, request("chain", 3, n_predict=400))
    assert session.warnings == []


@pytest.mark.parametrize("wanted", [0, 1, B - 1, B, B + 1, 64, 10_000])
@pytest.mark.parametrize("layout", ["anchor", "bonus"])
def test_a_depth_beyond_the_block_is_cut_to_it(
    cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter, wanted: int, layout: str
) -> None:
    """B14: a chain never asks for more positions than the drafter was trained for; 0 drafts nothing."""
    spec = CYCLE_DRAFTER if layout == "anchor" else dataclasses.replace(CYCLE_DRAFTER, sample_from_anchor=False)
    reach = B if layout == "anchor" else B - 1
    plain = plain_reply(cycle, prompt, 80)
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, spec))
    reply = run(session, cycle, prompt, request("chain", wanted, n_predict=80))
    same_reply(reply, plain)
    depth = min(wanted, reach)
    assert {r["drafted"] for r in reply.rounds[:-1]} == {depth}
    assert len(reply.statistics["drafted_by_depth"]) == depth


def test_a_chain_beyond_a_hybrids_reach_is_cut_with_a_line(models: ModelFiles, load_target: LoadTarget) -> None:
    """S02: the snapshots of a recurrent state bound the chain; a longer one is cut, said once, and nothing aborts."""
    target = load_target(tm.HYBRID, kernels="llama")
    prompt = text_prompt(models, tm.HYBRID, 102, 12)
    plain = plain_reply(target, prompt, 90)
    block = tm.DrafterSpec(seed=132, block_size=16)
    drafter = _engine.Drafter(str(models.drafter_path(tm.HYBRID, block)), target, _engine.DrafterOptions())
    session = _engine.Session(target, drafter)
    reply = run(session, target, prompt, request("chain", 32, n_predict=90))
    same_reply(reply, plain)
    assert max(reply.statistics["width_rounds"]) == 1 + target.max_chain
    assert len(session.warnings) == 1
    assert str(target.max_chain) in session.warnings[0]


# --------------------------------------------------------------------------------------------------- end of the context


class TestContextEnd:
    """B20: the block and the tree shrink to what fits; the reply ends exactly with the context."""

    N_CTX = 96

    @pytest.mark.parametrize(("arm", "n"), ARMS)
    def test_exactly_the_room_left(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, arm: str, n: int
    ) -> None:
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        session = _engine.Session(target, load_drafter(target, tm.CYCLE, CYCLE_DRAFTER))
        for room in range(B + 3):
            prompt = text_prompt(models, tm.CYCLE, 103, self.N_CTX - room)
            expected = plain_reply(long, prompt, room)
            for n_predict in (64, -1):
                reply = run(session, target, prompt, request(arm, n, n_predict=n_predict))
                assert len(reply.tokens) == room
                same_reply(reply, expected)
                assert reply.finish_reason == "length"
                assert target.n_past <= self.N_CTX

    @pytest.mark.parametrize("depth", [1, 7, 63])
    def test_an_oracle_at_the_end(self, models: ModelFiles, load_target: LoadTarget, depth: int) -> None:
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        for room in (0, 1, 2, 3, 8, 9, 30, 70):
            prompt = text_prompt(models, tm.CYCLE, 104, self.N_CTX - room)
            expected = plain_reply(long, prompt, room)
            reply = oracle_reply(target, prompt, plain_reply(long, prompt, room + 64), depth)
            same_reply(reply, expected)

    def test_a_wide_tree_at_the_end(self, models: ModelFiles, load_target: LoadTarget) -> None:
        """Every row needs a cell: 63 wrong siblings are cut to the cells that are left."""
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        prompt = text_prompt(models, tm.CYCLE, 105, self.N_CTX - 20)
        expected = plain_reply(long, prompt, 20)
        session = _engine.Session(target)
        session.set_proposer(anti(prompt, plain_reply(long, prompt, 40).tokens, 1, 63, N_VOCAB))
        reply = run(session, target, prompt, request("tree", 64))
        same_reply(reply, expected)
        assert [r["rows"] for r in reply.rounds[:-1]] == list(range(20, 2, -1))

    def test_a_hybrid_at_the_end(self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
        long = load_target(tm.HYBRID)
        target = load_target(tm.HYBRID, n_ctx=64)
        session = _engine.Session(target, load_drafter(target, tm.HYBRID, tm.DrafterSpec()))
        for room in range(B + 3):
            prompt = text_prompt(models, tm.HYBRID, 106, 64 - room)
            reply = run(session, target, prompt, request("chain", 7))
            same_reply(reply, plain_reply(long, prompt, room))

    def test_a_prompt_longer_than_the_context(self, models: ModelFiles, load_target: LoadTarget) -> None:
        """B22: a typed error with both numbers; the next request is fine."""
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        session = _engine.Session(target)
        for n in (self.N_CTX + 1, 2 * self.N_CTX):
            with pytest.raises(_engine.ContextFullError, match=rf"{n}\D.*\D{self.N_CTX}\D"):
                session.begin(text_prompt(models, tm.CYCLE, 107, n), request(n_predict=5))
            reply = run(session, target, text_prompt(models, tm.CYCLE, 108, 10), request(n_predict=5))
            assert len(reply.tokens) == 5

    def test_a_context_of_one_token(self, load_target: LoadTarget) -> None:
        target = load_target(tm.CYCLE, n_ctx=1)
        reply = run(_engine.Session(target), target, [7], request(n_predict=3))
        assert reply.finish_reason == "length"
        assert len(reply.tokens) == target.n_ctx - 1


@pytest.mark.parametrize("tokens", [[], np.zeros(0, np.int32)], ids=["list", "array"])
def test_an_empty_prompt_is_refused(cycle: _engine.Target, prompt: list[int], tokens: list[int]) -> None:
    """S15: in words, and the session goes on."""
    session = _engine.Session(cycle)
    with pytest.raises(ValueError, match="prompt"):
        session.begin(tokens, request(n_predict=5))
    assert len(run(session, cycle, prompt, request(n_predict=5)).tokens) == 5


# --------------------------------------------------------------------------------------------------- end of generation


class TestEndOfGeneration:
    """B23, B25: the reply ends exactly at the target's own end-of-generation token, wherever a path meets it."""

    @pytest.fixture
    def plain(self, cycle: _engine.Target, prompt: list[int]) -> Reply:
        return plain_reply(cycle, prompt, 120)

    @pytest.mark.parametrize("key", ["eos_token_id", "eot_token_id"])
    @pytest.mark.parametrize("at", range(B + 10))
    def test_at_every_depth(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int], plain: Reply,
        at: int, key: str,
    ) -> None:  # fmt: skip
        """``at`` 0 is the prefill's token; with an oracle of 7, 1 to 7 are drafts, 8 the bonus token, and so on."""
        end = plain.tokens[at]
        assert end not in plain.tokens[:at]
        keys = {f"tokenizer.ggml.{key}": end}
        target = load_target(models.write(models.target(tm.CYCLE).file.edit(set_keys=keys)))
        assert target.is_eog(end)
        expected = dataclasses.replace(plain, tokens=plain.tokens[:at], finish_reason="stop")
        text = tm.VOCABULARY.decode(expected.tokens).decode(errors="ignore")
        replies = [plain_reply(target, prompt, 60), oracle_reply(target, prompt, plain, B, n_predict=60)]
        drafter = tm.make_drafter(models.target(tm.CYCLE), CYCLE_DRAFTER).file.edit(set_keys=keys)
        session = _engine.Session(target, load_drafter(target, tm.CYCLE, models.write(drafter)))
        replies += [run(session, target, prompt, request(arm, n, n_predict=60)) for arm, n in ARMS[1:4]]
        for reply in replies:
            assert reply.tokens == expected.tokens
            assert reply.text == text
            assert reply.finish_reason == "stop"
            assert reply.statistics["completion_tokens"] == at
        assert replies[1].statistics["rounds"] == (0 if at == 0 else 1 + (at - 1) // (B + 1))

    @pytest.mark.parametrize("end", [tm.IM_END, tm.END_OF_TEXT])
    @pytest.mark.parametrize("width", [1, 63])
    def test_a_proposed_end_is_not_the_end(
        self, cycle: _engine.Target, prompt: list[int], plain: Reply, end: int, width: int
    ) -> None:
        """B25: the target is asked first. Three runs agree."""

        def propose(_: NDArray[np.int32]) -> Proposal:
            others = [t for t in range(5, 5 + N_VOCAB - 6) if t not in plain.tokens][: width - 1]
            return [end, *others], [-1] * (1 + len(others))

        session = _engine.Session(cycle)
        session.set_proposer(propose)
        for _ in range(3):
            reply = run(session, cycle, prompt, request("tree", 64, n_predict=50))
            assert reply.tokens == plain.tokens[:50]
            assert reply.finish_reason == "length"
            assert reply.statistics["accepted"] == 0
            assert reply.statistics["drafted"] > 0

    @pytest.mark.parametrize("at", [0, 3, B + 1])
    def test_ignored_ends_are_never_drawn(
        self, models: ModelFiles, load_target: LoadTarget, prompt: list[int], plain: Reply, at: int
    ) -> None:
        end = plain.tokens[at]
        target = load_target(
            models.write(models.target(tm.CYCLE).file.edit(set_keys={"tokenizer.ggml.eos_token_id": end}))
        )
        alone = plain_reply(target, prompt, 80, ignore_eos=True)
        assert alone.tokens[:at] == plain.tokens[:at]
        assert end not in alone.tokens
        assert (len(alone.tokens), alone.finish_reason) == (80, "length")
        same_reply(oracle_reply(target, prompt, plain, B, n_predict=80, ignore_eos=True), alone)
        same_reply(oracle_reply(target, prompt, alone, B, n_predict=80, ignore_eos=True), alone)

    def test_the_next_request_after_an_end(
        self, models: ModelFiles, load_target: LoadTarget, prompt: list[int], plain: Reply
    ) -> None:
        """Nothing of the dropped rest of the block stays in the cache."""
        end = plain.tokens[5]
        target = load_target(
            models.write(models.target(tm.CYCLE).file.edit(set_keys={"tokenizer.ggml.eos_token_id": end}))
        )
        session = _engine.Session(target)
        session.set_proposer(oracle(prompt, plain.tokens, B))
        first = run(session, target, prompt, request("tree", 64, n_predict=60))
        longer = [*prompt, *first.tokens, end, *prompt[:3]]
        session.set_proposer(None)
        reply = run(session, target, longer, request(n_predict=30))
        assert reply.statistics["reused_tokens"] == len(prompt) + 5
        target.clear()
        same_reply(reply, plain_reply(target, longer, 30))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 64])
def test_the_token_budget_is_exact(cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter, n: int) -> None:
    """B26: delivered, counted and asked for are one number, with an oracle that would overshoot and with a drafter."""
    plain = plain_reply(cycle, prompt, 100)
    replies = [oracle_reply(cycle, prompt, plain, depth, n_predict=n) for depth in (1, 7, 8, 63)]
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
    replies += [run(session, cycle, prompt, request(arm, width, n_predict=n)) for arm, width in ARMS]
    for reply in replies:
        assert reply.tokens == plain.tokens[:n]
        assert reply.statistics["completion_tokens"] == n
        assert reply.finish_reason == "length"
        assert reply.text == tm.VOCABULARY.decode(plain.tokens[:n]).decode(errors="ignore")


def test_every_round_gives_a_token(cycle: _engine.Target, prompt: list[int]) -> None:
    """S10: whatever is proposed again and again, no round stands still."""
    plain = plain_reply(cycle, prompt, 60)
    session = _engine.Session(cycle)
    session.set_proposer(lambda _: chain([prompt[0]] * 63))
    reply = run(session, cycle, prompt, request("tree", 64, n_predict=60))
    same_reply(reply, plain)
    assert all(len(r["tokens"]) >= 1 for r in reply.rounds)


# --------------------------------------------------------------------------------------------------------- stop strings


def cut_at_stop(text: str, stops: list[str]) -> str:
    """The text up to the stop string that is complete first, the longest of those completed together."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


class TestStopStrings:
    """B27: found over token borders and inside accepted paths; no part of one is ever shown, nothing else is lost."""

    N = 90

    @pytest.fixture
    def replies(
        self, cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
    ) -> Callable[[list[str]], list[Reply]]:
        """The same request as plain decoding, with oracles of several depths, and with a drafter."""
        plain = plain_reply(cycle, prompt, self.N + 64)
        session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))

        def all_ways(stops: list[str]) -> list[Reply]:
            out = []
            for proposer in (None, oracle(prompt, plain.tokens, 3), oracle(prompt, plain.tokens, 15)):
                session.set_proposer(proposer)
                arm = ("plain", 0) if proposer is None else ("tree", 64)
                out.append(run(session, cycle, prompt, request(*arm, n_predict=self.N, stop=stops)))
            session.set_proposer(None)
            return [*out, run(session, cycle, prompt, request("tree", 8, n_predict=self.N, stop=stops))]

        return all_ways

    @pytest.fixture
    def text(self, cycle: _engine.Target, prompt: list[int]) -> str:
        return plain_reply(cycle, prompt, self.N).text

    def check(self, replies: list[Reply], text: str, stops: list[str]) -> None:
        expected = cut_at_stop(text, stops)
        tokens = replies[0].tokens
        for reply in replies:
            assert reply.text == expected
            assert reply.finish_reason == ("length" if expected == text else "stop")
            assert reply.tokens == tokens, "the tokens up to the one that completed the stop, in every mode"
        if expected != text:
            shown = [tm.VOCABULARY.decode(tokens[:k]).decode(errors="ignore") for k in (len(tokens) - 1, len(tokens))]
            complete = [any(s in t for s in stops) for t in shown]
            assert complete == [False, True]

    def test_every_cut_of_a_window(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        for start, end in itertools.combinations(range(13), 2):
            stop = text[30 + start : 30 + end]
            self.check(replies([stop]), text, [stop])

    def test_a_window_with_split_characters(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        at = next(i for i, c in enumerate(text) if i > 20 and c in tm.SPLIT_CHARACTERS)
        for start, end in ((at - 3, at), (at - 2, at + 1), (at, at + 1), (at, at + 4), (at + 1, at + 3)):
            self.check(replies([text[start:end]]), text, [text[start:end]])

    @pytest.mark.parametrize(
        "cuts",
        [
            [(30, 36), (33, 35)], [(30, 36), (33, 39)], [(30, 42), (31, 42)], [(40, 44), (30, 34)], [(30, 31), (30, 42)],
        ],
        ids=str,
    )  # fmt: skip
    def test_overlapping_stops(
        self, replies: Callable[[list[str]], list[Reply]], text: str, cuts: list[tuple[int, int]]
    ) -> None:
        stops = [text[a:b] for a, b in cuts]
        self.check(replies(stops), text, stops)

    def test_a_near_miss_is_delivered_whole(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        for stops in (
            [text[30:41] + "\x01"],
            [text[30:41] + "\x01", text[31:41] + "\x02"],
            [text[-3:] + "\x01"],  # held back at the end, then released
            [text[-1] + "\x01", text + "\x01"],
        ):
            assert cut_at_stop(text, stops) == text
            self.check(replies(stops), text, stops)

    def test_a_stop_that_follows_a_near_miss(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        stops = [text[30:41] + "\x01", text[38:43]]
        self.check(replies(stops), text, stops)

    def test_a_stop_at_the_very_start_and_end(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        self.check(replies([text[0]]), text, [text[0]])
        self.check(replies([text[-4:]]), text, [text[-4:]])

    def test_an_empty_stop_string_stops_nothing(self, replies: Callable[[list[str]], list[Reply]], text: str) -> None:
        for reply in replies([""]):
            assert reply.text == text

    def test_stops_of_the_prompt_do_not_count(self, cycle: _engine.Target, prompt: list[int]) -> None:
        plain = plain_reply(cycle, prompt, 30)
        tail = tm.VOCABULARY.decode(prompt).decode()[-2:]
        stop = tail + plain.text[:2]
        assert stop not in plain.text
        same_reply(plain_reply(cycle, prompt, 30, stop=[stop, tail]), plain)


# ---------------------------------------------------------------------------------------------------------------- UTF-8


class TestUtf8:
    """B28: a delta holds whole characters only, however paths and budgets cut the tokens."""

    def test_the_text_has_split_characters(self, cycle: _engine.Target, prompt: list[int]) -> None:
        plain = plain_reply(cycle, prompt, 170)
        assert set(tm.SPLIT_CHARACTERS) <= set(plain.text)
        assert "\ufffd" not in plain.text
        assert plain.text.encode() == tm.VOCABULARY.decode(plain.tokens)
        assert "" in plain.deltas, "a token in the middle of a character shows nothing yet"

    @pytest.mark.parametrize("depth", [*range(1, 16), 30])
    def test_paths_may_end_inside_a_character(self, cycle: _engine.Target, prompt: list[int], depth: int) -> None:
        plain = plain_reply(cycle, prompt, 240)
        reply = oracle_reply(cycle, prompt, plain, depth, n_predict=170)
        assert reply.text.encode() == tm.VOCABULARY.decode(plain.tokens[:170])
        for delta in reply.deltas:
            assert "\ufffd" not in delta
            delta.encode()  # no lone surrogates

    def test_a_budget_may_end_inside_a_character(self, cycle: _engine.Target, prompt: list[int]) -> None:
        """The bytes of an unfinished character are dropped; the token ids still say what was generated."""
        plain = plain_reply(cycle, prompt, 240)
        inside = 0
        for n in range(1, 170):
            reply = oracle_reply(cycle, prompt, plain, 5, n_predict=n)
            data = tm.VOCABULARY.decode(plain.tokens[:n])
            assert reply.tokens == plain.tokens[:n]
            assert reply.text == data.decode(errors="ignore")
            inside += reply.text.encode() != data
        assert inside >= len(tm.SPLIT_CHARACTERS)

    @pytest.mark.parametrize("depth", [0, 1, 3, 7])
    def test_bytes_that_are_no_text(self, load_target: LoadTarget, depth: int) -> None:
        """Invalid sequences become U+FFFD as Unicode recommends (and Python does), the same for every cut."""
        broken = b"a\x80b\xff\xc3(\xe4\xb8x\xf0\x9f\x98!\xc0\xafy\xe0\x9fz\xed\xa0q\xf4\x90w\xf8\x88"
        cycle = tuple(dict.fromkeys(tm.FIRST_BYTE + b for b in broken))
        spec = dataclasses.replace(tm.CYCLE, seed=133, cycle=cycle)
        target = load_target(spec)
        prompt = [cycle[-1]]
        plain = plain_reply(target, prompt, 120)
        data = tm.VOCABULARY.decode(plain.tokens[:90])
        assert len(set(plain.tokens)) == len(cycle)
        reply = oracle_reply(target, prompt, plain, depth, n_predict=90)
        whole = data.decode(errors="replace")
        assert whole.count("\ufffd") > 20
        # an unfinished character at the very end is dropped, not replaced
        assert reply.text == whole or (reply.text + "\ufffd" == whole and data[-1] >= 0x80)

    def test_control_tokens_show_nothing(self, load_target: LoadTarget) -> None:
        text = tm.text_tokens(tm.VOCABULARY)
        spec = dataclasses.replace(tm.CYCLE, seed=134, cycle=(text[40], tm.IM_START, text[41], tm.MASK, *text[42:90]))
        target = load_target(spec)
        reply = plain_reply(target, [text[89]], 52)
        assert {tm.IM_START, tm.MASK} <= set(reply.tokens)
        assert reply.text.encode() == tm.VOCABULARY.decode(reply.tokens)


@pytest.mark.parametrize("proposed", [1, 4, 15])
def test_a_marker_is_whole_at_every_width(cycle: _engine.Target, prompt: list[int], proposed: int) -> None:
    """B30: the text, its tokens and where it stops do not depend on how many tokens came at once."""
    plain = plain_reply(cycle, prompt, 150)
    marker = plain.text[50:58]
    alone = plain_reply(cycle, prompt, 120, stop=[marker])
    assert alone.finish_reason == "stop"
    same_reply(oracle_reply(cycle, prompt, plain, proposed, n_predict=120, stop=[marker]), alone)


# --------------------------------------------------------------------------------------------------------------- cancel


class TestCancel:
    """B31: a request stops between two rounds, from any thread, and touches nothing else."""

    def test_from_another_thread_at_any_round(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int]
    ) -> None:
        target, other_target = load_target(tm.CYCLE), load_target(tm.CYCLE)
        plain = plain_reply(target, prompt, 200)
        other_prompt = text_prompt(models, tm.CYCLE, 109, 20)
        other_plain = plain_reply(other_target, other_prompt, 200)
        session = _engine.Session(target, load_drafter(target, tm.CYCLE, CYCLE_DRAFTER))
        other = _engine.Session(other_target)
        rng = np.random.default_rng(110)
        for turn in range(50):
            arm = ARMS[turn % len(ARMS)]
            stop_after = int(rng.integers(0, 20))
            session.begin(prompt, request(*arm, n_predict=200))
            other.begin(other_prompt, request(n_predict=30))
            text = ""
            for _ in range(stop_after):
                text += session.step()
                other.step()
            committed = session.committed
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join()
            text += session.step() + session.step()
            assert session.finished
            assert session.finish_reason == "cancel"
            assert session.committed == committed, "no round after the request to stop"
            assert session.token_ids == plain.tokens[: len(session.token_ids)]
            assert text == tm.VOCABULARY.decode(session.token_ids).decode(errors="ignore")
            assert target.n_kv_cells == target.n_past == session.committed - 1
            while not other.finished:
                other.step()
            assert other.token_ids == other_plain.tokens[:30]
        reply = run(session, target, prompt, request("tree", 16, n_predict=200))
        same_reply(reply, plain)

    def test_while_rounds_are_running(
        self, cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
    ) -> None:
        plain = plain_reply(cycle, prompt, 900)
        session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
        for _ in range(10):
            session.begin(prompt, request("tree", 16, n_predict=900))
            started = threading.Event()

            def stop(started: threading.Event = started) -> None:
                started.wait()
                session.cancel()

            thread = threading.Thread(target=stop)
            thread.start()
            while not session.finished:
                session.step()
                started.set()
                if len(session.token_ids) > 200:
                    thread.join()
            thread.join()
            assert session.finish_reason == "cancel"
            assert session.token_ids == plain.tokens[: len(session.token_ids)]
            assert cycle.n_kv_cells == cycle.n_past == session.committed - 1

    def test_during_the_prefill(self, models: ModelFiles, load_target: LoadTarget) -> None:
        target = load_target(tm.CYCLE, n_batch=8)
        prompt = text_prompt(models, tm.CYCLE, 111, 100)
        plain = plain_reply(target, prompt, 20)
        target.clear()
        session = _engine.Session(target)

        def progress(done: int, total: int) -> bool:
            assert total == 100
            if done == 40:
                session.cancel()
            return True

        session.begin(prompt, request(n_predict=20), progress)
        assert session.finish_reason == "cancel"
        assert session.token_ids == []
        assert target.n_kv_cells == target.n_past
        assert target.n_past in (40, 48), "at most the batch that was about to run"
        same_reply(run(session, target, prompt, request(n_predict=20)), plain)

    def test_after_the_end_changes_nothing(self, cycle: _engine.Target, prompt: list[int]) -> None:
        session = _engine.Session(cycle)
        reply = run(session, cycle, prompt, request(n_predict=10))
        session.cancel()
        session.step()
        assert session.finish_reason == "length"
        same_reply(run(session, cycle, prompt, request(n_predict=10)), reply)


# ------------------------------------------------------------------------------------------------- requests after others


def test_a_request_does_not_depend_on_the_one_before(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """B32: text and statistics of B after A equal those of B in a fresh target."""
    a, b = text_prompt(models, tm.DENSE, 112, 90), text_prompt(models, tm.DENSE, 113, 30)
    target, fresh = load_target(tm.DENSE), load_target(tm.DENSE)
    used = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
    new = _engine.Session(fresh, load_drafter(fresh, tm.DENSE, tm.DrafterSpec()))
    run(used, target, a, request("tree", 16, n_predict=120, stop=["e"], temperature=1.0, seed=3))
    after = run(used, target, b, request("tree", 16, n_predict=120))
    first = run(new, fresh, b, request("tree", 16, n_predict=120))
    same_reply(after, first)
    counts = [{k: v for k, v in r.statistics.items() if not k.endswith("_us")} for r in (after, first)]
    assert counts[0] == counts[1]


def test_statistics_of_the_smallest_replies(cycle: _engine.Target, prompt: list[int]) -> None:
    """B47: nothing negative, nothing that is not a number, no draft counted that was not made."""
    for n in (0, 1):
        reply = plain_reply(cycle, prompt, n)
        s = reply.statistics
        assert (s["completion_tokens"], s["rounds"], s["rows"], s["drafted"], s["accepted"]) == (n, 0, 0, 0, 0)
        assert s["drafted_by_depth"] == s["accepted_by_depth"] == []
        assert s["width_rounds"] == {}


def resident_bytes() -> int:
    """The most this process ever held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_loading_and_closing_gives_the_memory_back(models: ModelFiles, load_drafter: LoadDrafter) -> None:
    """S22: the cycles are big enough (about 20 MB each) for a leak of one part to show."""

    def cycle_once() -> None:
        options = _engine.TargetOptions()
        options.n_ctx, options.n_threads, options.n_gpu_layers = 8192, 1, 0
        target = _engine.Target(str(models.target_path(tm.WIDE)), options)
        drafter = load_drafter(target, tm.WIDE, tm.DrafterSpec(taps=(0, 1, 2)))
        session = _engine.Session(target, drafter)
        run(session, target, [5, 6, 7], request("tree", 16, n_predict=20))
        target.close()
        del session, drafter, target
        gc.collect()

    for _ in range(5):
        cycle_once()
    before = resident_bytes()
    for _ in range(15):
        cycle_once()
    assert resident_bytes() - before < 30e6


def test_many_requests_hold_no_more_memory(
    cycle: _engine.Target, load_drafter: LoadDrafter, models: ModelFiles
) -> None:
    """S09: 200 requests on one session."""
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
    prompts = [text_prompt(models, tm.CYCLE, seed, 40) for seed in range(20)]

    def requests(n: int) -> None:
        for i in range(n):
            session.begin(prompts[i % 20], request("tree", 16, n_predict=16))
            while not session.finished:
                session.step()

    requests(60)
    before = resident_bytes()
    requests(200)
    assert resident_bytes() - before < 8e6
