"""The compiled engine, or a stand-in that says why it is missing.

``from adaspark._native import _engine`` always succeeds; only using the stand-in raises.
"""

from __future__ import annotations

from typing import NoReturn

from adaspark.errors import BackendError


class MissingEngine:
    """Stands for ``adaspark._engine`` where it cannot be imported. Every attribute raises BackendError."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = (
            f"the compiled engine cannot be imported ({self._reason}); "
            "install the package with its build: pip install adaspark, or pip install . in a checkout"
        )
        raise BackendError(msg)


try:
    from adaspark import _engine
except ImportError as error:
    _engine = MissingEngine(str(error))  # type: ignore[assignment]

__all__ = ["_engine"]
