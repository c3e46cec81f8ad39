"""AdaSpark: lossless tree speculation for local GGUF models on llama.cpp.

>>> import adaspark
>>> with adaspark.Engine() as engine:
...     for text in engine.generate("Why is the sky blue?", n_predict=64):
...         print(text, end="")
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from adaspark.engine import Engine
from adaspark.errors import (
    AdaSparkError,
    BackendError,
    ContextFullError,
    DrafterError,
    ModelError,
    OutOfMemoryError,
)
from adaspark.generation import Generation
from adaspark.result import Result
from adaspark.scheduler import Scheduler

try:
    __version__ = version("adaspark")
except PackageNotFoundError:  # imported from a checkout that was never installed
    __version__ = "0.0.0"

__all__ = [
    "AdaSparkError",
    "BackendError",
    "ContextFullError",
    "DrafterError",
    "Engine",
    "Generation",
    "ModelError",
    "OutOfMemoryError",
    "Result",
    "Scheduler",
    "__version__",
]

logging.getLogger("adaspark").addHandler(logging.NullHandler())
