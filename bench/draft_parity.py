"""Does our drafter pick what llama.cpp's own draft-dspark picks, on the same files and context?

Plain replies are cut into rounds. At each, llama.cpp (the program draft_reference, built with the llama.cpp tools) and our
drafter propose a block after the same tokens, which both targets ran in the same batches. Picks must be equal; where
they part, our values must hold the two tokens less than twice the noise apart. Noise: the largest difference between our
values when the target runs the text step by step and when it runs it token by token. Behind a parting the rest of a block
hangs on another pick (Markov head) and is not compared.

Exit status 1 when picks part without being such a near tie, else 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kit.engine import add_load_options, load_engine, load_of, open_models, request_of
from kit.prompts import chat_tokens, read_prompts
from kit.show import Lines
from numpy.typing import NDArray

from adaspark.benchmark.machine import exclusive
from adaspark.benchmark.stats import first_difference
from adaspark.cli.tables import table

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Target


@dataclass(frozen=True, slots=True)
class Text:
    ids: list[int]  # prompt and reply
    n_prompt: int


@dataclass(frozen=True, slots=True)
class Block:
    ids: NDArray[np.int32]  # (n, K), column 0 the picks
    values: NDArray[np.float32]


def main() -> int:
    args = _arguments()
    load = load_of(args)
    target, drafter = open_models(load)
    assert drafter is not None
    n_draft = min(args.n_draft, drafter.n_draft)
    with exclusive(args.lock):
        texts = _texts(target, args)
        ours = [_ours(target, drafter, text, args.step, args.step, n_draft) for text in texts]
        finer = [_ours(target, drafter, text, args.step, 1, n_draft) for text in texts]
        theirs = _theirs(args, target.n_threads, n_draft, texts)
    lines = Lines(args.out)
    noise = max(_noise(a, b) for x, y in zip(ours, finer, strict=True) for a, b in zip(x, y, strict=True))
    rounds = equal_rounds = picks = equal = wrong = 0
    gaps = []
    for number, (blocks, references) in enumerate(zip(ours, theirs, strict=True)):
        for at, (block, reference) in enumerate(zip(blocks, references, strict=True)):
            mine = block.ids[:, 0].tolist()
            parted = first_difference(mine, reference)
            rounds += 1
            equal_rounds += parted is None
            compared = len(mine) if parted is None else parted + 1
            picks += compared
            equal += compared - (parted is not None)
            if parted is None:
                continue
            gap = _gap(block, parted, reference)
            gaps.append(gap)
            wrong += gap >= 2 * noise
            lines.write("parted", text=number, round=at, position=parted, gap=gap, ours=mine, theirs=reference)
    lines.write("sum", n_draft=n_draft, rounds=rounds, equal_rounds=equal_rounds, picks=picks, equal=equal, noise=noise)
    lines.close()
    table(
        f"picks of our drafter against llama.cpp's draft-dspark, blocks of {n_draft}",
        ["rounds", "equal blocks", "picks", "equal picks", "noise", "largest gap", "no near tie"],
        [
            [
                str(rounds), str(equal_rounds), str(picks), str(equal), f"{noise:.4f}",
                f"{max(gaps):.4f}" if gaps else "-", str(wrong),
            ]
        ],
    )  # fmt: skip
    return 1 if wrong or rounds == 0 else 0


def _texts(target: Target, args: argparse.Namespace) -> list[Text]:
    session = load_engine(None).Session(target, None)
    rounds_each = -(-args.rounds // args.n_prompts)
    out = []
    for prompt in read_prompts(args.prompts, args.n_prompts):
        ids = chat_tokens(target, prompt.text)
        target.clear()
        session.begin(ids, request_of("plain", rounds_each * args.step))
        while not session.finished:
            session.step()
        out.append(Text([*ids, *session.token_ids], len(ids)))
    return out


def _ours(target: Target, drafter: Drafter, text: Text, step: int, rows: int, n_draft: int) -> list[Block]:
    """Blocks at every ``step`` tokens behind the prompt; the target runs ``rows`` tokens at a time."""
    target.clear()
    target.prefill(text.ids[: text.n_prompt])
    out = []
    for at in range(text.n_prompt, len(text.ids), step):
        ids, values, _ = drafter.draft(text.ids[at], n_draft)
        out.append(Block(ids.copy(), values.copy()))
        end = min(at + step, len(text.ids))
        for start in range(at, end, rows):
            chunk = text.ids[start : min(start + rows, end)]
            target.verify(chunk, list(range(-1, len(chunk) - 1)))
            target.commit(list(range(len(chunk))))
    return out


def _theirs(args: argparse.Namespace, threads: int, n_draft: int, texts: list[Text]) -> list[list[list[int]]]:
    command = [
        *(str(args.reference), "-m", str(args.target), "-md", str(args.drafter), "-c", str(args.ctx)),
        *("-t", str(threads), "-tb", str(threads), "-fa", args.flash_attention),
        *("--spec-type", "draft-dspark", "--spec-draft-n-max", str(n_draft)),
    ]
    asked = "".join(f"{text.n_prompt} {args.step} {' '.join(map(str, text.ids))}\n" for text in texts)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{args.reference} ended with status {done.returncode}:\n{done.stderr[-2000:]}"
        raise SystemExit(msg)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]


def _noise(a: Block, b: Block) -> float:
    """Largest difference of values at the same token, down to where the picks part."""
    largest = 0.0
    for i in range(len(a.ids)):
        other = dict(zip(b.ids[i].tolist(), b.values[i].tolist(), strict=True))
        for token, value in zip(a.ids[i].tolist(), a.values[i].tolist(), strict=True):
            if token >= 0 and token in other:
                largest = max(largest, abs(value - other[token]))
        if a.ids[i, 0] != b.ids[i, 0]:
            break
    return largest


def _gap(block: Block, position: int, reference: list[int]) -> float:
    """Our value of our pick minus that of the reference's; infinite when that is not among our candidates."""
    if position >= min(len(reference), len(block.ids)):
        return float("inf")
    values = dict(zip(block.ids[position].tolist(), block.values[position].tolist(), strict=True))
    return float(block.values[position, 0]) - float(values.get(reference[position], float("-inf")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--reference", required=True, type=Path, metavar="PROGRAM", help="the built draft_reference")
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=50, help="in all (default %(default)s)")
    parser.add_argument("--step", type=int, default=4, help="tokens between two rounds (default %(default)s)")
    parser.add_argument("--n-draft", type=int, default=7, help="positions of a block (default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock while models run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
