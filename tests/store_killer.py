"""Run as a program by test_store: kills processes at random moments of saving, then looks at what they left.

``store_killer.py STORE KILLS SEED``; prints one line a kill: the last write that was confirmed and what the store holds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from adaspark.store import Store, Work

SIZE = 60_000  # bytes of a state, about what a scheduler of some requests has


def state(number: int) -> bytes:
    return number.to_bytes(8, "little") * (SIZE // 8)


def save_for_ever(path: Path, first: int, confirmed: int) -> None:
    store = Store(path)
    number = first
    while True:
        store.put("key", "adaspark", {"n": number}, {}, state(number), Work(1, 1))
        os.write(confirmed, number.to_bytes(8, "little"))
        number += 1


def main() -> None:
    path, kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    number = 1
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            save_for_ever(path, number, writer)
        os.close(writer)
        # Some die while they open the store, most between two writes or in one, however busy the machine is.
        last = int.from_bytes(os.read(reader, 8), "little") if rng.random() < 0.7 else 0
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := os.read(reader, 8 * 1024):
            last = int.from_bytes(data[-8:], "little")
        os.close(reader)
        with Store(path) as store:
            row = store.get("key", "adaspark")
        held = 0 if row is None else int.from_bytes(row.state[:8], "little")
        whole = row is None or (row.state == state(held) and row.identity == {"n": held})
        sys.stdout.write(f"{last} {held} {int(whole)}\n")
        number = max(held, last) + 1


if __name__ == "__main__":
    main()
