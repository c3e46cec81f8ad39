"""The fuzzer of loading (tests/fuzz) finds nothing: damaged files are refused in words or run, and kill nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "fuzz" / "fuzz_load.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cases are forked, and limited as Linux does it")


def fuzz(seed: int, cases: int) -> None:
    done = subprocess.run(
        [sys.executable, FUZZER, "--seed", str(seed), "--cases", str(cases)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert f"{cases} cases" in done.stdout
    assert " ran" in done.stdout
    assert " refused" in done.stdout


def test_some_hundreds_of_damaged_files() -> None:
    fuzz(7, 200)


@pytest.mark.slow
def test_thousands_of_damaged_files() -> None:
    fuzz(8, 10_000)
