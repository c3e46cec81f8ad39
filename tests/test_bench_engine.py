"""Two builds of the engine side by side in one process: what bench/ compares them with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import adaspark._engine

BENCH = Path(__file__).parents[1] / "bench"

PROGRAM = """
import os
import sys
sys.path.insert(0, sys.argv[1])
from kit.engine import load_engine
first = load_engine(None)
other = load_engine(sys.argv[2])
assert other.__file__ == sys.argv[2], other.__file__
assert load_engine(None) is other, "it takes the first one's place"
assert other.Target is not first.Target
assert type(other.TargetOptions()) is not type(first.TargetOptions())
assert load_engine(first.__file__) is first and load_engine(None) is first
assert load_engine(sys.argv[2]) is other
os.chdir(os.path.dirname(sys.argv[2]))
assert load_engine(os.path.basename(sys.argv[2])) is other, "the same file by another name"
"""


def test_another_build_is_loaded_and_not_the_same_one_again(tmp_path: Path) -> None:
    built = Path(adaspark._engine.__file__)
    other = tmp_path.resolve() / built.name
    shutil.copy(built, other)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, BENCH, other], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
