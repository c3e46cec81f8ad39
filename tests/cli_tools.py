"""Running ``adaspark-run`` inside a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SMALL = ("-t", "1", "-ctk", "f32", "-ctv", "f32")
"""One thread and an F32 cache: a difference is the engine's and not the format's."""


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data


Cli = Callable[..., Run]
