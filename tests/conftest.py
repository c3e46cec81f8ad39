"""Fixtures of the engine's tests: tiny models written once a session, loaded once, used by one test at a time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import cli_tools
import engine_tools
import pytest
import tiny_models as tm

from adaspark import _engine
from adaspark.cli import main
from adaspark.config import KERNELS

# bench/ is part of a checkout, not of a source package.
collect_ignore = [] if (Path(__file__).parents[1] / "bench").is_dir() else ["test_bench_tools.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernels", choices=KERNELS, default="auto", help="what runs targets where a test does not say (default: auto)"
    )
    parser.addoption("--gpu-layers", type=int, default=0, help="layers of targets and drafters there (default: 0)")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with Ctrl-C ignored, and programs that the tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Helpers that compare; not imported here, or a failure of theirs would not show both sides.
    pytest.register_assert_rewrite("api_tools", "drafter_tools", "session_tools")
    engine_tools.DEFAULTS["kernels"] = config.getoption("--kernels")
    engine_tools.DEFAULTS["n_gpu_layers"] = config.getoption("--gpu-layers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when they are asked for: by ``-m`` or by their node id."""
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session", autouse=True)
def away_from_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Python started by a test looks into its folder first: in the checkout it would find a package without its modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("away"))
        yield


@pytest.fixture(scope="session", autouse=True)
def a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test learns from, or writes into, the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADASPARK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class ModelFiles:
    """Writes models into one folder; the same description is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._targets: dict[tm.TargetSpec, tm.TinyTarget] = {}
        self._drafters: dict[tuple[tm.TargetSpec, tm.DrafterSpec], tm.TinyDrafter] = {}
        self._paths: dict[object, Path] = {}

    def target(self, spec: tm.TargetSpec) -> tm.TinyTarget:
        if spec not in self._targets:
            self._targets[spec] = tm.make_target(spec)
        return self._targets[spec]

    def drafter(self, target: tm.TargetSpec, spec: tm.DrafterSpec) -> tm.TinyDrafter:
        key = (target, spec)
        if key not in self._drafters:
            self._drafters[key] = tm.make_drafter(self.target(target), spec)
        return self._drafters[key]

    def target_path(self, spec: tm.TargetSpec) -> Path:
        if spec not in self._paths:
            self._paths[spec] = self.write(self.target(spec).file)
        return self._paths[spec]

    def drafter_path(self, target: tm.TargetSpec, spec: tm.DrafterSpec) -> Path:
        key = (target, spec)
        if key not in self._paths:
            self._paths[key] = self.write(self.drafter(target, spec).file)
        return self._paths[key]

    def write(self, file: tm.Gguf) -> Path:
        """A file of its own, for changed copies."""
        number = len(list(self.folder.iterdir()))
        return file.write(self.folder / f"{number:03d}-{file.architecture}.gguf")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return ModelFiles(tmp_path_factory.mktemp("models"))


LoadTarget = Callable[..., _engine.Target]
LoadDrafter = Callable[..., _engine.Drafter]


@pytest.fixture
def load_target(models: ModelFiles) -> Iterator[LoadTarget]:
    """``load_target(spec or path, n_ctx=..., ...)``; closed at the end of the test."""
    opened: list[_engine.Target] = []

    def load(model: tm.TargetSpec | Path, **options: object) -> _engine.Target:
        path = models.target_path(model) if isinstance(model, tm.TargetSpec) else model
        opened.append(engine_tools.open_target(path, **options))
        return opened[-1]

    yield load
    for target in opened:
        if not target.closed:
            target.close()


@pytest.fixture
def load_drafter(models: ModelFiles) -> LoadDrafter:
    """``load_drafter(target, spec, drafter spec or path, n_ctx=...)``."""

    def load(
        target: _engine.Target, spec: tm.TargetSpec, drafter: tm.DrafterSpec | Path, **options: object
    ) -> _engine.Drafter:
        path = models.drafter_path(spec, drafter) if isinstance(drafter, tm.DrafterSpec) else drafter
        return engine_tools.open_drafter(path, target, **options)

    return load


@pytest.fixture
def cycle(load_target: LoadTarget) -> _engine.Target:
    """The successor model: its text goes round one cycle of tokens."""
    return load_target(tm.CYCLE)


@pytest.fixture
def prompt(models: ModelFiles) -> list[int]:
    """Twelve tokens for ``cycle`` to go on from."""
    return engine_tools.text_prompt(models, tm.CYCLE, 100, 12)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of the program's, an empty cache, no downloads."""
    for name in list(os.environ):
        if name.startswith("ADASPARK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ADASPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def cli(
    environment: None,  # noqa: ARG001
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> cli_tools.Cli:
    """Run the program in this process; ``stdin`` is its input. Captured as descriptors: C code prints there too."""

    def run(*arguments: str | Path, stdin: str = "") -> cli_tools.Run:
        monkeypatch.setattr(sys, "stdin", StringIO(stdin))
        code = main([str(argument) for argument in arguments])
        return cli_tools.Run(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def pair(models: ModelFiles) -> tuple[str, ...]:
    """Flags of a small pair."""
    target, drafter = models.target_path(tm.DENSE), models.drafter_path(tm.DENSE, tm.DrafterSpec())
    return ("-m", str(target), "-md", str(drafter), *cli_tools.SMALL)
