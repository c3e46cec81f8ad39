"""AdaSpark: lossless tree speculation for local GGUF models on llama.cpp.

>>> import adaspark
>>> with adaspark.Engine() as engine:
...     for text in engine.generate("Why is the sky blue?", n_predict=64):
...         print(text, end="")
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from adaspark.engine import Engine
    from adaspark.errors import (
        AdaSparkError,
        BackendError,
        ContextFullError,
        DrafterError,
        ModelError,
        OptionError,
        OutOfMemoryError,
    )
    from adaspark.generation import Generation
    from adaspark.result import Result
    from adaspark.scheduler import Scheduler

    __version__: str

__all__ = [
    "AdaSparkError",
    "BackendError",
    "ContextFullError",
    "DrafterError",
    "Engine",
    "Generation",
    "ModelError",
    "OptionError",
    "OutOfMemoryError",
    "Result",
    "Scheduler",
    "__version__",
]

_MODULES = {"Engine": "engine", "Generation": "generation", "Result": "result", "Scheduler": "scheduler"}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are asked for, so that the program can handle Ctrl-C before it loads anything."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module = _MODULES.get(name, "errors")
    value = _version() if name == "__version__" else getattr(import_module(f"adaspark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("adaspark")
    except PackageNotFoundError:  # imported from a checkout that was never installed
        return "0.0.0"
