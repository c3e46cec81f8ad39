"""Model files from a hub repository, through huggingface-hub (the optional extra ``hub``).

``HF_HOME`` and ``HF_TOKEN`` are read by huggingface-hub itself; ``LLAMA_CACHE`` overrides the folder, as in llama.cpp.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from adaspark.errors import ModelError, OptionError
from adaspark.progress import Progress

# As llama.cpp: this quantisation where none is asked for, else the repository's first file.
_USUAL_QUANT = "Q4_K_M"
_SPEC = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def hub_file(spec: str, progress: Progress) -> Path:
    """The local file of "owner/repo[:quant]", downloaded where it is not cached. Raises ModelError."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        msg = f"{spec!r} is not a hub repository: give owner/repo or owner/repo:quant"
        raise OptionError(msg)
    repository, quant = match[1], match[2]
    hub = _import_hub()
    cache = os.environ.get("LLAMA_CACHE") or None
    try:
        names = hub.HfApi().list_repo_files(repository)
    except Exception as error:  # the library's errors have no common base across its versions
        folder = _local_snapshot(hub, repository, cache)
        if folder is None:
            msg = f"hub repository {repository} cannot be read: {_first_line(error)}"
            raise ModelError(msg) from error
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.gguf"))]
        return folder / choose_file(names, repository, quant)
    chosen = choose_file(names, repository, quant)
    progress.clear()  # the library draws its own bars on stderr
    try:
        paths = [Path(hub.hf_hub_download(repository, name, cache_dir=cache)) for name in parts_of(chosen, names)]
    except Exception as error:
        msg = f"{chosen} of {repository} cannot be downloaded: {_first_line(error)}"
        raise ModelError(msg) from error
    return paths[0]


def choose_file(names: list[str], repository: str, quant: str | None) -> str:
    """The GGUF of a repository that a quantisation names, the first part of a split one. Raises ModelError."""
    files = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower())
    files = [name for name in files if (part := _PART.search(name)) is None or int(part[1]) == 1]
    if not files:
        msg = f"hub repository {repository} holds no GGUF file"
        raise ModelError(msg)
    wanted = re.compile(rf"(^|[-._/]){re.escape(quant or _USUAL_QUANT)}([-./]|$)", re.IGNORECASE)
    matching = [name for name in files if wanted.search(name)]
    if matching:
        return matching[0]
    if quant is None:
        return files[0]
    msg = f"hub repository {repository} has no {quant} file; it has: {', '.join(files)}"
    raise ModelError(msg)


def parts_of(chosen: str, names: list[str]) -> list[str]:
    """Every file of a model that is split over several, in order; the file itself otherwise."""
    part = _PART.search(chosen)
    if part is None:
        return [chosen]
    stem = chosen[: part.start()]
    return sorted(name for name in names if name.startswith(stem + "-") and _PART.search(name))


def _import_hub() -> Any:
    try:
        import huggingface_hub  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        msg = "-hf needs huggingface-hub: pip install 'adaspark[hub]'"
        raise ModelError(msg) from error
    return huggingface_hub


def _local_snapshot(hub: Any, repository: str, cache: str | None) -> Path | None:
    try:
        return Path(hub.snapshot_download(repository, cache_dir=cache, local_files_only=True, allow_patterns="*.gguf"))
    except Exception:  # noqa: BLE001 - nothing cached: the listing's error is the one to report
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
