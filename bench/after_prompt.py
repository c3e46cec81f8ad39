"""How long is a verify slow after a prompt? Its times by round from the end of the prompt on: weights and keys have left
the caches that others on the machine share, and come back with the rounds, not with time (``--pause``).
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import TYPE_CHECKING

from kit.engine import add_load_options, load_of, open_models, ranges

from adaspark.cli.tables import table

if TYPE_CHECKING:
    from adaspark._engine import Target

SHOWN = (1, 2, 3, 5, 8, 12, 16, 25)  # rounds


def main() -> None:
    args = _arguments()
    target, _ = open_models(load_of(args))
    rng = random.Random(0)
    text = [rng.randrange(target.n_vocab) for _ in range(max(args.contexts) + target.max_rows)]
    for context in args.contexts:
        rows = []
        for n in args.rows:
            times = [after_prompt(target, text, context, n, args.pause) for _ in range(args.reps)]
            rows.append([str(n), *(f"{median(t[i - 1] for t in times):.2f}" for i in SHOWN)])
        table(
            f"a verify after a prompt of {context} tokens, ms by round",
            ["rows", *map(str, SHOWN)],
            rows,
            f"medians of {args.reps}",
        )


def after_prompt(target: Target, text: list[int], context: int, n: int, pause: float) -> list[float]:
    """Milliseconds of the first rounds of a chain of ``n`` rows behind a prompt that has just been read."""
    target.clear()
    target.prefill(text[:context])
    time.sleep(pause)
    out = []
    for _ in range(max(SHOWN)):
        begin = time.perf_counter()
        target.verify(text[context : context + n], list(range(-1, n - 1)), picks=False)
        out.append((time.perf_counter() - begin) * 1e3)
        target.commit([])
    return out


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser, drafter=False)
    parser.add_argument("--contexts", type=ranges, default=[236, 1936], help="tokens of the prompt (default 236,1936)")
    parser.add_argument("--rows", type=ranges, default=[1, 8], help="default 1,8")
    parser.add_argument("--reps", type=int, default=7, help="prompts a row count (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between prompt and first round")
    return parser.parse_args()


if __name__ == "__main__":
    main()
