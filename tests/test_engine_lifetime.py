"""``adaspark.Engine`` from loading to closing: files, templates, the context's end, progress, logs, threads, store."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tm
from api_tools import DRAFTER, PROMPT, QUIET, SPEC, check
from conftest import ModelFiles

import adaspark
from adaspark import Engine, Generation
from adaspark.store import Store


def test_loading_and_unloading_again_and_again(models: ModelFiles) -> None:
    texts = set()
    for _ in range(5):
        with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), **QUIET) as engine:
            texts.add(engine.generate(PROMPT, n_predict=8).read().text)
    assert len(texts) == 1


def test_wrong_files_are_typed_errors_and_the_interpreter_lives(models: ModelFiles, tmp_path: Path) -> None:
    target, drafter = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    cut = tm.truncated(target, tmp_path / "cut.gguf", 0.7)
    with pytest.raises(adaspark.ModelError, match=r"cut\.gguf"):
        Engine(cut)
    with pytest.raises(adaspark.ModelError, match="this file is a drafter"):
        Engine(drafter)
    with pytest.raises(adaspark.DrafterError):
        Engine(models.target_path(tm.WIDE), drafter, **QUIET)
    with pytest.raises(ValueError, match="max_rows"):
        Engine(target, max_rows=10**6)
    with pytest.raises(TypeError):
        Engine(target, widht=3)  # type: ignore[call-arg]


def test_a_model_without_a_template_continues_the_text(models: ModelFiles) -> None:
    path = models.write(models.target(SPEC).file.edit(drop_keys=["tokenizer.chat_template"]))
    with Engine(path, **QUIET) as engine:
        assert engine.tokenize("<|im_end|>hi") == engine.target.tokenize("<|im_end|>hi")
        assert engine.tokenize("hi", system="Be brief.") == engine.target.tokenize(
            "Be brief.\n\nUser: hi\n\nAssistant:"
        )


def test_a_template_of_ones_own(models: ModelFiles) -> None:
    with Engine(models.target_path(SPEC), chat_template="{{ messages[0].content }}!", **QUIET) as engine:
        assert engine.tokenize("hi") == engine.target.tokenize("hi!")
    with pytest.raises(adaspark.ModelError, match="does not compile"):
        Engine(models.target_path(SPEC), chat_template="{% if %}", **QUIET)


def test_a_prompt_longer_than_the_context(models: ModelFiles) -> None:
    with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), n_ctx=256, **QUIET) as engine:
        before = engine.generate(PROMPT, n_predict=16, ignore_eos=True).read()
        with pytest.raises(adaspark.ContextFullError) as caught:
            engine.generate("x" * 600)
        assert "256" in str(caught.value)
        chat = engine.chat()
        with pytest.raises(adaspark.ContextFullError):
            chat.send("x" * 600)
        assert chat.messages == []
        after = engine.generate(PROMPT, n_predict=16, ignore_eos=True).read()
        assert after.token_ids == before.token_ids
        whole = engine.generate(PROMPT, ignore_eos=True).read()  # -1 ends with the context
        assert whole.finish_reason == "length"
        assert whole.prompt_tokens + whole.completion_tokens <= 256
        check(whole)


class Recorder:
    """Progress that is remembered, and that stops what matches ``stop``."""

    def __init__(self, stop: str = "nothing") -> None:
        self.seen: list[tuple[str, float]] = []
        self.stop, self.cleared = stop, 0

    def show(self, label: str, done: float, total: float | None, unit: str) -> bool:
        assert unit in ("bytes", "tokens", "share")
        assert total is None or done <= total
        self.seen.append((label, done))
        return self.stop not in label

    def clear(self) -> None:
        self.cleared += 1


def test_progress_of_both_models_and_the_prompt(models: ModelFiles) -> None:
    progress = Recorder()
    with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), progress=progress, **QUIET) as engine:
        assert {"Loading the model", "Loading the drafter"} <= {label for label, _ in progress.seen}
        engine.generate("x" * 1000, n_predict=1)
        assert "Reading the prompt" in {label for label, _ in progress.seen}
    assert progress.cleared >= 2


def test_progress_can_stop_a_load_and_a_prefill(models: ModelFiles) -> None:
    with pytest.raises(adaspark.ModelError):
        Engine(models.target_path(SPEC), progress=Recorder("model"), **QUIET)
    with Engine(models.target_path(SPEC), progress=Recorder("prompt"), n_batch=32, **QUIET) as engine:
        result = engine.generate("x" * 1000).read()
        assert (result.finish_reason, result.completion_tokens) == ("cancel", 0)
        check(result)


def test_llama_cpp_logs_to_logging(models: ModelFiles, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG, "adaspark"):
        Engine(models.target_path(SPEC), **QUIET).close()
    lines = [record for record in caplog.records if record.name == "adaspark.llama"]
    assert lines
    assert all(record.levelno in (10, 20, 30, 40) and not record.getMessage().endswith("\n") for record in lines)
    assert capfd.readouterr().out == ""


def test_after_close_everything_raises(models: ModelFiles) -> None:
    engine = Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), **QUIET)
    done = engine.generate(PROMPT, n_predict=4)
    done.read()
    half = engine.generate(PROMPT, ignore_eos=True)
    next(half)
    engine.close()
    engine.close()
    assert engine.closed
    assert done.result.completion_tokens == 4
    uses: list[Any] = [
        lambda: engine.generate("x"),
        lambda: engine.target,
        lambda: next(half),
        lambda: engine.chat().send("x"),
    ]
    for use in uses:
        with pytest.raises(adaspark.BackendError, match="closed"):
            use()


def read_and_tell(generation: Generation, told: list[BaseException]) -> None:
    try:
        generation.read()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
        told.append(error)


def test_close_from_another_thread_ends_the_reply(models: ModelFiles, tmp_path: Path) -> None:
    """The reader is told, the engine is closed whole, what the reply taught is kept."""
    pair = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    for step in range(10):
        engine = Engine(*pair, n_ctx=60_000, store=tmp_path / "own.sqlite", **QUIET)
        generation = engine.generate(PROMPT, ignore_eos=True)
        for _ in range(step):
            next(generation)
        told: list[BaseException] = []

        reader = threading.Thread(target=read_and_tell, args=(generation, told))
        reader.start()
        while len(generation.text) < 40 and reader.is_alive():
            pass
        engine.close()
        reader.join()
        assert engine.closed
        assert [type(error) for error in told] == [adaspark.BackendError] or generation.finished
        assert "closed" in str(told[0]) if told else generation.result.finish_reason == "cancel"
        engine.close()
    with Store(tmp_path / "own.sqlite") as store:
        assert store.rows()[0].requests == 10


def test_close_from_another_thread_while_a_prompt_is_read(models: ModelFiles) -> None:
    class Closer(Recorder):
        def show(self, label: str, done: float, total: float | None, unit: str) -> bool:
            if "prompt" in label and self.thread is None:
                self.thread = threading.Thread(target=engine.close)
                self.thread.start()
                while not engine._closing:
                    pass
            return super().show(label, done, total, unit)

        thread: threading.Thread | None = None

    closer = Closer()
    engine = Engine(models.target_path(SPEC), progress=closer, n_batch=32, **QUIET)
    generation = engine.generate("x" * 1000)
    assert closer.thread is not None
    closer.thread.join()
    assert engine.closed
    assert max(done for label, done in closer.seen if "prompt" in label) < 1000
    with pytest.raises(adaspark.BackendError, match="closed"):
        generation.read()


def test_an_abandoned_reply_is_saved_by_what_comes_next(models: ModelFiles, tmp_path: Path) -> None:
    pair, path = (models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)), tmp_path / "own.sqlite"
    with Engine(*pair, store=path, **QUIET) as engine:
        for expected in (0, 0, 1):
            with Store(path) as store:
                assert sum(row.requests for row in store.rows()) == expected
            for _ in zip(range(4), engine.generate(PROMPT, ignore_eos=True), strict=False):
                pass
    with Store(path) as store:
        assert sum(row.requests for row in store.rows()) == 3
