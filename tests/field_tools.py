"""What the tests of field reports share: the drafter of ``cycle``, every kind of arm, and an oracle's reply."""

from __future__ import annotations

import tiny_models as tm
from engine_tools import Reply, oracle, request, run

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size
CYCLE_DRAFTER = tm.DrafterSpec(taps=(0, 1, 2))
B = CYCLE_DRAFTER.block_size
ARMS = [("plain", 0), ("chain", 3), ("chain", 7), ("tree", 16), ("tree", 64)]


def oracle_reply(target: _engine.Target, prompt: list[int], plain: Reply, depth: int, **fields: object) -> Reply:
    session = _engine.Session(target)
    session.set_proposer(oracle(prompt, plain.tokens, depth))
    return run(session, target, prompt, request("tree", 64, **fields))
