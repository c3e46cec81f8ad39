"""Opening models with the options the programs share."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import adaspark
from adaspark.arms import set_arm
from adaspark.config import Arm

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Request, Target


@dataclass(frozen=True, slots=True)
class Load:
    """What to load and how. 0 threads = the engine's default."""

    target: str
    drafter: str | None = None
    threads: int = 0
    ctx: int = 4096
    flash_attention: str = "auto"
    kernels: str = "auto"
    draft_kernels: str = "auto"
    gpu_layers: int = -1  # -1 = all, where the build has a GPU
    engine: str | None = None  # another build of the extension module; None = the installed one

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def add_load_options(parser: argparse.ArgumentParser, drafter: bool = True) -> None:
    parser.add_argument("--target", required=True, type=Path, metavar="GGUF")
    parser.add_argument("--drafter", required=drafter, type=Path, metavar="GGUF")
    parser.add_argument("--threads", type=int, default=0, help="0: the engine's default")
    parser.add_argument("--ctx", type=int, default=4096, help="tokens (default %(default)s)")
    parser.add_argument("--flash-attention", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--kernels", default="auto", choices=["auto", "own", "ggml", "llama"])
    parser.add_argument("--draft-kernels", default="auto", choices=["auto", "own", "llama"])
    parser.add_argument("--gpu-layers", type=int, default=-1, metavar="N", help="-1: all (default)")
    parser.add_argument("--engine", type=Path, metavar="FILE", help="another build of adaspark._engine to measure")


def ranges(text: str) -> list[int]:
    """1-8,12 stands for 1 to 8, and 12."""
    out: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def add_output_options(parser: argparse.ArgumentParser, measured: str) -> None:
    """``measured``: what the lock is held for, in words."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--lock", type=Path, metavar="FILE", help=f"hold this file's lock while {measured} is measured")


def load_of(args: argparse.Namespace) -> Load:
    return Load(
        target=str(args.target),
        drafter=None if args.drafter is None else str(args.drafter),
        threads=args.threads,
        ctx=args.ctx,
        flash_attention=args.flash_attention,
        kernels=args.kernels,
        draft_kernels=args.draft_kernels,
        gpu_layers=args.gpu_layers,
        engine=None if args.engine is None else str(args.engine),
    )


NAME = "adaspark._engine"
_builds: dict[str, ModuleType] = {}  # by file: a file is loaded once


def load_engine(path: str | None) -> ModuleType:
    """``adaspark._engine``, or another build of it that takes its place in this process."""
    current = importlib.import_module(NAME)
    _builds.setdefault(str(Path(str(current.__file__)).resolve()), current)
    if path is None:
        return current
    path = str(Path(path).resolve())
    if path not in _builds:
        # pybind11 hands out the module that it made for a name before, whatever the file.
        spec = importlib.util.spec_from_file_location(f"adaspark {path}._engine", path)
        if spec is None or spec.loader is None:
            msg = f"{path} is not an extension module"
            raise ImportError(msg)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _builds[path] = module
    sys.modules[NAME] = adaspark._engine = _builds[path]
    return _builds[path]


def open_models(load: Load) -> tuple[Target, Drafter | None]:
    engine = load_engine(load.engine)
    options = engine.TargetOptions()
    options.n_ctx = load.ctx
    options.n_threads = load.threads
    options.flash_attention = load.flash_attention
    options.kernels = load.kernels
    options.n_gpu_layers = load.gpu_layers
    target: Target = engine.Target(load.target, options)
    drafter: Drafter | None = None
    if load.drafter is not None:
        draft_options = engine.DrafterOptions()
        draft_options.n_gpu_layers = load.gpu_layers
        draft_options.kernels = load.draft_kernels
        drafter = engine.Drafter(load.drafter, target, draft_options)
    return target, drafter


def request_of(arm: str, n_predict: int) -> Request:
    """A greedy request on an arm as the command line writes it."""
    request: Request = load_engine(None).Request()
    set_arm(request, Arm.parse(arm))
    request.n_predict = n_predict
    return request
