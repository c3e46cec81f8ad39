"""Builds the C++ programs of bench/cpp with CMake, once, into build/scheduler-bench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "scheduler-bench"


def program(name: str) -> Path:
    """Path of ``scheduler_<name>``, built when its sources are newer."""
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(BUILD),
        "-DCMAKE_BUILD_TYPE=Release",
        "-DADASPARK_ENGINE=OFF",
        "-DADASPARK_PYTHON=OFF",
        "-DADASPARK_SCHEDULER_BENCH=ON",
    ]
    for command in (configure, ["cmake", "--build", str(BUILD), "--target", f"scheduler_{name}"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout + done.stderr)
            raise SystemExit(done.returncode)
    return BUILD / f"scheduler_{name}"
