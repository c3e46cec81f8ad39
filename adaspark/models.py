"""From what the user gave (nothing, a path, a hub repository) to the files of a target and its drafter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adaspark import default_pair
from adaspark._native import _engine
from adaspark.config import check_text, file_path
from adaspark.errors import DrafterError, ModelError, OptionError, WrongRoleError
from adaspark.hub import hub_file
from adaspark.progress import NoProgress, Progress

DRAFTER_ARCHITECTURE = "dflash"

NO_DRAFTER = "none"
"""The drafter name that asks for none."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """The files to load."""

    target: Path
    drafter: Path | None
    source: Literal["default", "file", "hub"]


def resolve(
    model: str | os.PathLike[str] | None = None,
    drafter: str | os.PathLike[str] | None = "auto",
    *,
    hub_model: str | None = None,
    hub_drafter: str | None = None,
    progress: Progress | None = None,
) -> ModelPair:
    """The files of a pair.

    Without ``model`` and ``hub_model`` it is the default pair, fetched where needed. ``drafter`` "auto" finds the drafter
    that belongs to the default target and none for any other; None or "none" asks for none. Hub names are
    "owner/repo" or "owner/repo:quant". Raises ModelError, or WrongRoleError for a drafter in the target's place.
    """
    if model is not None and hub_model is not None:
        msg = "give a model file or a hub repository, not both"
        raise OptionError(msg)
    progress = progress or NoProgress()
    source: Literal["default", "file", "hub"]
    if hub_model is not None:
        target, source = hub_file(hub_model, progress), "hub"
    elif model is not None:
        target, source = _existing(model, "model", ModelError), "file"
        if _same_file(target, default_pair.target_path()):
            source = "default"
    else:
        target, source = default_pair.ensure_target(progress), "default"
    _check_target_role(target)
    found = _resolve_drafter(drafter, hub_drafter, source, progress)
    if found is not None:
        _check_drafter_role(found)
    return ModelPair(target, found, source)


def model_name(path: Path) -> str:
    """The name a file gives the model, for people: its own ``general.name``, else the file's."""
    name = _engine.read_gguf(str(path))["name"]
    return name or path.stem


def _resolve_drafter(
    drafter: str | os.PathLike[str] | None, hub_drafter: str | None, source: str, progress: Progress
) -> Path | None:
    if hub_drafter is not None:
        return hub_file(hub_drafter, progress)
    if drafter is None or drafter == NO_DRAFTER:
        return None
    if drafter == "auto":
        return default_pair.drafter_path() if source == "default" else None
    return _existing(drafter, "drafter", DrafterError)


def _existing(name: str | os.PathLike[str], what: str, kind: type[ModelError]) -> Path:
    path = file_path(name, what).expanduser()
    if path.is_file():
        check_text(f"the name of the {what} file", str(path))
        return path
    if path.is_dir():
        msg = f"{what} {path} is a folder: give the GGUF file in it"
        raise kind(msg)
    msg = f"{what} file {path} does not exist: check the path"
    raise kind(msg)


def _check_target_role(path: Path) -> None:
    if _engine.read_gguf(str(path))["architecture"] == DRAFTER_ARCHITECTURE:
        msg = (
            f"this file is a drafter: {path}. A drafter borrows its target's embeddings and cannot run alone; "
            "give the target with -m and this file with -md"
        )
        raise WrongRoleError(msg)


def _check_drafter_role(path: Path) -> None:
    architecture = _engine.read_gguf(str(path))["architecture"]
    if architecture != DRAFTER_ARCHITECTURE:
        msg = (
            f"this file is not a DSpark drafter: {path} (architecture {architecture!r}, expected "
            f"{DRAFTER_ARCHITECTURE!r}); give a drafter made for the target with -md, or leave -md out"
        )
        raise DrafterError(msg)


def _same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False
