"""Types of flags: what click does not check by itself, and the words for it."""

from __future__ import annotations

from typing import Any

import click

from adaspark.config import MAX_INT, Arm, check_text


class _Type(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.4 only
    pass


class Whole(_Type):
    """A whole number within what the engine takes."""

    name = "integer"

    def __init__(self, low: int, high: int = MAX_INT) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = click.INT.convert(value, param, ctx)
        if not self.low <= number <= self.high:
            self.fail(f"{number} is out of range: give at least {self.low} and at most {self.high}", param, ctx)
        return number


class Layers(Whole):
    """A number of layers, or llama.cpp's words for every one that fits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value in ("all", "auto"):
            return -1
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a number of layers, 'all' or 'auto'", param, ctx)


class Text(_Type):
    """Text for the model."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_text("it", value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ArmName(_Type):
    """An arm in its canonical spelling."""

    name = "arm"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(Arm.parse(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ArmNames(ArmName):
    """Arms separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, list):  # click converts a value it has converted once more
            return value
        return [super(ArmNames, self).convert(text, param, ctx) for text in value.split(",")]


COUNT = Whole(0)
TEXT = Text()
