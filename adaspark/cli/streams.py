"""The standard streams, which the caller may have closed, or close while the program runs."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def open_streams() -> None:
    """Fill standard descriptors that are closed, so that no file of ours gets their numbers.

    stdin is then empty, what goes to stderr is lost, and stdout is a pipe whose reader has gone: its result is, too.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            _fill(number)
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
            buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace"))


def settle_streams() -> None:
    """Write out what is held back, and let go of a stream that takes nothing: Python tries once more at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                _copy(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill(number: int) -> None:
    if number == 1:
        reader, writer = os.pipe()  # the reader's number may be 1 already
        _copy(writer, number)
        if reader != number:
            os.close(reader)
    else:
        _copy(os.open(os.devnull, os.O_RDWR), number)


def _copy(descriptor: int, number: int) -> None:
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
