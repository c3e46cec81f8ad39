"""Faults other engines were reported for, as tests: where a text ends and how it is cut (see test_field_reports)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Proposal, Reply, chain, oracle, request, run
from field_tools import ARMS, CYCLE_DRAFTER, N_VOCAB, B, oracle_reply
from numpy.typing import NDArray
from session_tools import plain_reply, same_reply

from adaspark import _engine

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
