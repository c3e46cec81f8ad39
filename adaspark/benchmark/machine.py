"""The machine: what it is, and whether it is quiet enough to be timed."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

QUIET = 0.10  # busy share of one core's time over the machine's, above which a measurement waits


def describe() -> dict[str, str | int]:
    """Processor, cores, system; no names of hosts or people."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "processor": model,
        "cpus": os.cpu_count() or 1,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def busy_share(seconds: float) -> float | None:
    """Share of all cores' time in use over the next seconds, by anyone; None where the system does not tell."""
    before = _times()
    time.sleep(seconds)
    after = _times()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def wait_quiet(limit_s: float = 60.0) -> float | None:
    """Wait until the machine is quiet, a limit at most; the busy share last seen.

    ggml's threads meet at a barrier after every operation, so one busy neighbour slows them many times over. Our own
    idle arms must not be busy either: this would see them.
    """
    end = time.monotonic() + limit_s
    while True:
        share = busy_share(0.3)
        if share is None or share < QUIET or time.monotonic() > end:
            return share


@contextlib.contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """Hold an exclusive lock on a file, for machines where several programs take turns at being timed."""
    if path is None:
        yield
        return
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _times() -> tuple[float, float] | None:
    """Busy and total time of all cores since the start."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    values = [float(v) for v in line.split()[1:9]]  # user nice system idle iowait irq softirq steal
    total = sum(values)
    return total - values[3] - values[4], total
