"""``adaspark-run``, also as ``python -m adaspark``.

Loading the program takes a moment in which Ctrl-C has nothing to end but the process; it has to be asked for before that.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from adaspark.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
