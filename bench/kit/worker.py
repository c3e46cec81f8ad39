"""One arm's process: reads JSON requests from stdin, answers on stdout.

The first line is the models to load (:class:`kit.engine.Load`). Each line after it is a prompt to tokenise, a reply to
decode, or the wish that what was learned be forgotten. Between requests the process waits in a read, so it uses no processor time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.engine import Load, load_engine, open_models, request_of
from kit.prompts import chat_tokens


def main() -> None:
    load = Load(**json.loads(sys.stdin.readline()))
    target, drafter = open_models(load)
    session = load_engine(None).Session(target, drafter)
    warnings = [] if drafter is None else drafter.warnings
    _answer(
        {
            "threads": target.n_threads,
            "kernels": target.kernels,
            "draft_kernels": None if drafter is None else drafter.kernels,
            "warnings": warnings,
        }
    )
    for line in sys.stdin:
        asked = json.loads(line)
        if "text" in asked:
            _answer({"tokens": chat_tokens(target, asked["text"])})
            continue
        if "forget" in asked:
            session = load_engine(None).Session(target, drafter)
            _answer({})
            continue
        target.clear()  # every reply starts from an empty cache, on all sides
        start = time.perf_counter()
        session.begin(asked["prompt"], request_of(asked["arm"], asked["n_predict"]))
        session.step()
        while not session.finished:
            session.step()
        wall_ms = (time.perf_counter() - start) * 1e3
        statistics = session.statistics
        _answer(
            {
                "tokens": session.token_ids,
                "finish": session.finish_reason,
                "decode_ms": statistics["decode_us"] / 1e3,
                "prefill_ms": statistics["prefill_us"] / 1e3,
                "wall_ms": wall_ms,
                "steps": statistics["rounds"] + statistics["accepted"],
                "drafted": statistics["drafted"],
                "accepted": statistics["accepted"],
                "rounds": statistics["rounds"],
                "parts_ms": {
                    part: statistics[f"{part}_us"] / 1e3
                    for part in ("inject", "draft", "plan", "verify", "walk", "commit")
                },
            }
        )


def _answer(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
