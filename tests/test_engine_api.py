"""``adaspark.Engine`` on tiny models: streaming, results, arms, conversations, prompts, and the end of replies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from api_tools import DRAFTER, PROMPT, QUIET, SPEC, check
from conftest import ModelFiles

import adaspark
from adaspark import Engine, Generation, Result
from adaspark.templates import Message


@pytest.fixture(scope="module")
def engine(models: ModelFiles) -> Iterator[Engine]:
    with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), **QUIET) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(models: ModelFiles) -> Iterator[Engine]:
    with Engine(models.target_path(SPEC), arm="plain", **QUIET) as engine:
        yield engine


LEARNED = [
    *("adaspark", "adaspark:8", "cost", "adaspark:no-text", "adaspark:no-acceptance", "adaspark:no-gating"),
    "adaspark:8:no-text:no-gating",
]


@pytest.mark.parametrize("arm", ["plain", "chain:1", "chain:7", "tree:16", "tree:64", *LEARNED])
def test_every_arm_writes_the_plain_reply(engine: Engine, plain: Engine, arm: str) -> None:
    expected = plain.generate(PROMPT, n_predict=96, ignore_eos=True).read()
    generation = engine.generate(PROMPT, n_predict=96, ignore_eos=True, arm=arm)
    chunks = list(generation)
    result = generation.result
    assert "".join(chunks) == result.text == generation.text == expected.text
    assert result.token_ids == expected.token_ids
    assert (result.arm, result.finish_reason, result.completion_tokens) == (arm, "length", 96)
    drafts = result.speculation
    assert drafts.active == (drafts.drafted > 0)
    assert arm in LEARNED or (drafts.drafted > 0) == (arm != "plain")
    if arm in LEARNED:
        assert drafts.rounds_plain + drafts.rounds_text + drafts.rounds_draft == drafts.rounds
    if "no-text" in arm or arm == "cost":
        assert drafts.rounds_text == drafts.sources["text"].drafted == drafts.sources["agreed"].drafted == 0
    if drafts.learning is not None and ("no-acceptance" in arm or arm == "cost"):
        assert drafts.learning.labelled == 0
    if "no-gating" in arm and ":8" in arm:
        assert drafts.rounds_draft >= drafts.rounds - 1  # the last round has room for no draft
    check(result)
    check(expected)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 17])
def test_the_budget_is_exact_and_numbers_stay_sane(engine: Engine, n: int) -> None:
    result = engine.generate(PROMPT, n_predict=n, ignore_eos=True).read()
    assert (result.completion_tokens, result.finish_reason) == (n, "length")
    check(result)


def test_a_reply_names_its_files_and_prompt(engine: Engine, models: ModelFiles) -> None:
    result = engine.generate(PROMPT, n_predict=4).read()
    assert result.model == str(models.target_path(SPEC))
    assert result.drafter == str(models.drafter_path(SPEC, DRAFTER))
    assert result.arm == engine.arm == "adaspark"
    assert result.prompt_tokens == len(engine.tokenize(PROMPT))
    assert result.seed is None
    assert result.timings.load_ms > 0


def test_without_a_drafter_the_text_alone_proposes(models: ModelFiles) -> None:
    with Engine(models.target_path(SPEC), None, **QUIET) as engine:
        result = engine.generate(PROMPT, n_predict=64, ignore_eos=True).read()
        assert (result.arm, result.drafter) == ("adaspark", None)
        drafts = result.speculation
        assert ("no drafter" if drafts.active else "no draft was expected to pay") in (drafts.reason or "")
        assert drafts.sources["text"].drafted == drafts.drafted
        assert drafts.rounds_plain + drafts.rounds_text == drafts.rounds
        check(result)


def test_arms_that_draft_need_a_drafter(plain: Engine) -> None:
    with pytest.raises(ValueError, match="needs a drafter"):
        plain.generate(PROMPT, arm="chain:3")


def test_a_chain_beyond_the_block_is_clamped(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        result = engine.generate(PROMPT, n_predict=8, arm="chain:40").read()
        assert result.arm == "chain:7"
        assert "clamped" in (result.speculation.reason or "")
    assert sum("chain:40" in record.getMessage() for record in caplog.records) == 1


def test_sampling_repeats_with_its_seed(engine: Engine) -> None:
    def draw(seed: int | None) -> Result:
        return engine.generate(PROMPT, n_predict=24, temperature=1.5, seed=seed, ignore_eos=True).read()

    first = draw(7)
    assert first.seed == 7
    assert draw(7).token_ids == first.token_ids
    free = draw(None)
    assert free.seed is not None
    assert draw(free.seed).token_ids == free.token_ids


def test_stop_strings(engine: Engine) -> None:
    text = engine.generate(PROMPT, n_predict=64, ignore_eos=True).read().text
    stop = text[20:24]
    result = engine.generate(PROMPT, n_predict=64, ignore_eos=True, stop=stop).read()
    assert (result.text, result.finish_reason) == (text[: text.index(stop)], "stop")


def test_result_comes_at_the_end_only(engine: Engine) -> None:
    generation = engine.generate(PROMPT, n_predict=8)
    with pytest.raises(RuntimeError, match="not ended"):
        _ = generation.result
    assert not generation.finished
    assert generation.read() is generation.result
    assert list(generation) == []


def test_generation_is_an_iterator(engine: Engine) -> None:
    generation = engine.generate(PROMPT, n_predict=3)
    assert isinstance(generation, Generation)
    assert iter(generation) is generation
    generation.close()


def test_cancel_keeps_what_was_written(engine: Engine, plain: Engine) -> None:
    whole = plain.generate(PROMPT, n_predict=64, ignore_eos=True).read().text
    generation = engine.generate(PROMPT, ignore_eos=True)
    text = next(generation)
    generation.cancel()
    result = generation.read()
    assert (result.finish_reason, result.text[: len(text)]) == ("cancel", text)
    assert whole.startswith(result.text)
    check(result)
    assert engine.generate(PROMPT, n_predict=64, ignore_eos=True).read().text == whole


def test_cancel_from_another_thread(engine: Engine) -> None:
    generation = engine.generate(PROMPT, ignore_eos=True)
    next(generation)
    thread = threading.Thread(target=generation.cancel)
    thread.start()
    thread.join()
    assert generation.read().finish_reason == "cancel"


def test_a_new_reply_ends_the_one_before(engine: Engine) -> None:
    first = engine.generate(PROMPT, ignore_eos=True)
    text = next(first)
    second = engine.generate("another", n_predict=8, ignore_eos=True)
    assert first.result.finish_reason == "cancel"
    assert first.result.text.startswith(text)
    assert second.read().completion_tokens == 8


def test_a_with_block_closes_its_reply(engine: Engine) -> None:
    with engine.generate(PROMPT, ignore_eos=True) as generation:
        next(generation)
    assert generation.result.finish_reason == "cancel"


def test_threads_take_turns(engine: Engine, plain: Engine) -> None:
    expected = plain.generate(PROMPT, n_predict=48, ignore_eos=True).read()
    generation = engine.generate(PROMPT, n_predict=48, ignore_eos=True)
    readers = [threading.Thread(target=generation.read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert generation.result.text == expected.text


def test_a_conversation_remembers(engine: Engine, plain: Engine) -> None:
    chat = engine.chat("Be brief.", n_predict=12, ignore_eos=True)
    first = chat.send("one").read()
    second = chat.send("two").read()
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "two"},
    ]
    assert chat.messages == [*messages, {"role": "assistant", "content": second.text}]
    assert plain.generate(messages, n_predict=12, ignore_eos=True).read().text == second.text
    assert second.reused_tokens > 0
    assert chat.undo() == "two"
    assert chat.messages == messages[:3]
    chat.clear()
    assert chat.messages == messages[:1]
    assert chat.undo() is None


def test_a_message_sent_over_an_open_reply_comes_behind_it(engine: Engine) -> None:
    chat = engine.chat(n_predict=40, ignore_eos=True)
    first = chat.send("one")
    next(first)
    second = chat.send("two")
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]
    assert chat.messages[1]["content"] == first.result.text
    next(second)
    assert chat.undo() == "two"
    assert [message["content"] for message in chat.messages] == ["one", first.result.text]
    next(chat.send("three"))
    chat.clear()
    assert chat.messages == []
    engine.generate(PROMPT, n_predict=2).read()
    assert chat.messages == []


def test_prompt_forms(plain: Engine) -> None:
    as_text = plain.tokenize("hi", system="Be brief.")
    assert as_text == plain.tokenize([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    assert plain.tokenize("<|im_end|>hi", raw=True)[0] == plain.target.eos_token
    eos = plain.target.eos_token
    assert plain.tokenize("<|im_end|>hi").count(eos) == plain.tokenize("hi").count(eos)
    with pytest.raises(ValueError, match="prompt is empty"):
        plain.generate("", raw=True)
    with pytest.raises(ValueError, match="one text"):
        plain.tokenize([{"role": "user", "content": "hi"}], raw=True)
    with pytest.raises(ValueError, match="empty"):
        plain.generate([])
    assert plain.generate("", n_predict=2).read().prompt_tokens > 0  # a template makes something of it
    assert plain.generate("   ", raw=True, n_predict=2, ignore_eos=True).read().completion_tokens == 2


def test_wrong_options_are_errors_of_the_package(engine: Engine, models: ModelFiles) -> None:
    target = models.target_path(SPEC)
    foreign = "caf\udce9"
    uses: list[Any] = [
        lambda: engine.generate(foreign),
        lambda: engine.generate(foreign, raw=True),
        lambda: engine.generate([{"role": "user", "content": foreign}]),
        lambda: engine.generate([{"role": "user", "content": "hi", "name": [foreign]}]),
        lambda: engine.generate(PROMPT, stop=foreign),
        lambda: engine.generate(PROMPT, system=foreign),
        lambda: engine.generate(PROMPT, n_predict=2**31),
        lambda: engine.generate(PROMPT, n_predict=1.5),
        lambda: engine.generate(PROMPT, top_k=2**40),
        lambda: engine.generate(PROMPT, seed=2**32),
        lambda: engine.generate(PROMPT, temperature=1e39),
        lambda: engine.generate(""[:0], raw=True),
        lambda: Engine(target, n_ctx=2**31 - 1),
        lambda: Engine(target, n_threads=100_000),
        lambda: Engine(target, n_batch=2**31),
        lambda: Engine(target, n_gpu_layers=2**31),
        lambda: Engine(""),
        lambda: Engine(target, ""),
        lambda: Engine(target, store=""),
        lambda: Engine(target, trace=""),
    ]
    for use in uses:
        with pytest.raises(adaspark.OptionError) as caught:
            use()
        assert isinstance(caught.value, ValueError)
        assert str(caught.value).isascii()


def test_a_forked_process_is_told_to_make_its_own(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads do not come along with a fork, so a forward there would wait for ever."""
    monkeypatch.setattr("adaspark.engine.os.getpid", lambda: -1)
    with pytest.raises(adaspark.BackendError, match="forked"):
        plain.generate(PROMPT)


def test_the_default_context_is_at_most_what_the_model_was_trained_on(plain: Engine) -> None:
    assert plain.target.n_ctx == SPEC.n_ctx_train
