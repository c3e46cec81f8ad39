"""The errors of the package: one family, :class:`AdaSparkError`.

Every message names the thing that failed and the remedy. A wrong argument is an :class:`OptionError`, which is a
``ValueError`` as everywhere in Python.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

# Here because every module that logs imports this one: warnings go where the caller's logging sends them, else nowhere.
logging.getLogger("adaspark").addHandler(logging.NullHandler())

try:
    from adaspark._engine import (
        AdaSparkError,
        BackendError,
        ContextFullError,
        DrafterError,
        ModelError,
        OutOfMemoryError,
    )
except ImportError:
    # The classes belong to the engine module. Without it the package still imports, so that a half-installed copy can
    # say what is missing; these stand-ins give that message its type.
    if not TYPE_CHECKING:

        class AdaSparkError(Exception):
            """Base of every error of the package."""

        class ModelError(AdaSparkError):
            """A target file that is missing, damaged, of the wrong kind or architecture."""

        class DrafterError(ModelError):
            """A drafter file that disagrees with the target."""

        class ContextFullError(AdaSparkError):
            """A prompt that does not fit the context."""

        class OutOfMemoryError(AdaSparkError):
            """Weights, cache or compute buffers that do not fit the memory."""

        class BackendError(AdaSparkError):
            """The engine failed in the middle of work, or is not there at all."""


class OptionError(AdaSparkError, ValueError):
    """A wrong argument: an option out of range, an unknown arm, an empty prompt, text that is no text."""


class StoreError(AdaSparkError):
    """What was learned cannot be kept, or not be read back."""


class TraceError(AdaSparkError):
    """A trace that cannot be read or replayed."""


class WrongRoleError(ModelError):
    """A drafter given in the target's place."""


__all__ = [
    "AdaSparkError",
    "BackendError",
    "ContextFullError",
    "DrafterError",
    "ModelError",
    "OptionError",
    "OutOfMemoryError",
    "StoreError",
    "TraceError",
    "WrongRoleError",
]
