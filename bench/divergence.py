"""Is the greedy text of every arm that of plain decoding, up to near ties?

On quantised models llama.cpp's kernels give a row slightly different logits when it runs beside other rows, so greedy
texts may part where two tokens are as good as equal. This program shows that they part nowhere else:

1. Noise e of an arm: over the first replies, and over those that part up to where they do, the largest difference
   between a position's logits computed one row at a time and in rounds like the arm's: verifies of its width and shape
   (chain or tree) in which a random number of rows is right and the rest is dropped, so that the cache is filled, and
   left with holes, as in use.
2. Where an arm's reply first differs from plain's, plain's own logits there (one row at a time) must hold the two
   tokens less than 2 e apart: each of them may be off by e.
3. That e is a maximum over many positions, and where it is large it allows much. So the same prefix is run again at the
   very position, with other numbers of rows: e(chains), the largest difference of the two tokens' logits from plain's
   over one prefill and over chains of every width up to the arm's, from several starts, in which all rows are right: no
   tree, no dropped row and no moved slot is in them. e(rounds), the same over rounds like the arm's. The tokens must lie
   less than twice the larger apart. "ahead" counts the chains that put the arm's token before plain's: there the text
   parts without any of what AdaSpark adds.

Exit status 1 when a difference is not such a near tie, else 0.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kit.engine import add_load_options, load_engine, load_of, open_models, request_of
from kit.prompts import chat_tokens, read_prompts
from kit.show import Bar, Lines
from numpy.typing import NDArray

from adaspark.benchmark.machine import exclusive
from adaspark.benchmark.stats import first_difference
from adaspark.cli.tables import table
from adaspark.config import Arm

if TYPE_CHECKING:
    from adaspark._engine import Session, Target

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first differing token of an arm's reply."""

    prompt: int  # line of the prompts file
    position: int  # of the reply
    gap: float  # plain's logit of its own token minus that of the arm's
    top2: float  # plain's best logit minus its second
    tokens: tuple[int, int]  # plain's, the arm's; -1 = none, the reply ended
    chains: float  # largest difference of the two tokens' logits from plain's at this position
    rounds: float
    ahead: float  # share of the chains that have the arm's token before plain's

    @property
    def noise(self) -> float:
        return max(self.chains, self.rounds)


def main() -> int:
    args = _arguments()
    prompts = read_prompts(args.prompts, args.n_prompts)
    target, drafter = open_models(load_of(args))
    session = load_engine(None).Session(target, drafter)
    lines = Lines(args.out)
    found: dict[str, list[Difference]] = {arm: [] for arm in args.arms}
    tokens_compared = 0
    noise: dict[str, float] = dict.fromkeys(args.arms, 0.0)
    rng = np.random.default_rng(0)
    left, positions = args.noise_positions, 0
    with Bar("divergence", len(prompts)) as bar:
        for prompt in prompts:
            ids = chat_tokens(target, prompt.text)
            with exclusive(args.lock):
                plain = _reply(session, target, ids, "plain", args.n_predict)
                tokens_compared += len(plain)
                noisy = 0
                for arm in args.arms:
                    other = _reply(session, target, ids, arm, args.n_predict)
                    at = first_difference(plain, other)
                    if at is not None:
                        found[arm].append(_look(target, ids, plain, other, at, prompt.line, arm, rng))
                        noisy = max(noisy, at)
                n = min(max(left, noisy), len(plain) - 1)
                if n > 0:
                    _measure_noise(target, ids, plain[:n], noise, rng)
                    positions += n
                    left = max(0, left - n)
            bar.step()
    bad = _report(found, noise, len(prompts), tokens_compared, positions)
    lines.write("noise", positions=positions, e=noise)
    for arm, differences in found.items():
        for d in differences:
            lines.write(
                "difference", arm=arm, prompt=d.prompt, position=d.position, gap=d.gap, top2=d.top2, tokens=d.tokens,
                near_tie=d.gap < 2 * noise[arm], here_chains=d.chains, here_rounds=d.rounds, ahead=d.ahead,
                near_tie_here=d.gap < 2 * d.noise,
            )  # fmt: skip
    lines.close()
    return 1 if bad else 0


def _reply(session: Session, target: Target, ids: list[int], arm: str, n_predict: int) -> list[int]:
    """A greedy reply, from an empty cache so that the prompt's rows are computed alike for all arms.

    An end of generation counts as a token of its own, so that a reply that ends early differs there.
    """
    target.clear()
    session.begin(ids, request_of(arm, n_predict))
    session.step()
    while not session.finished:
        session.step()
    return [*session.token_ids, *([-1] if session.finish_reason == "stop" else [])]


def _one_by_one(target: Target, ids: list[int], text: list[int]) -> Logits:
    """Logits before each token of ``text``, and after the last, computed one row at a time."""
    target.clear()
    out = [target.prefill(ids)[None, :]]
    for token in text:
        out.append(_verify(target, [token], [-1]))
        target.commit([0])
    return np.concatenate(out)


def _verify(target: Target, tokens: list[int], parents: list[int]) -> Logits:
    logits = target.verify(tokens, parents, logits=True)[1]
    assert logits is not None
    return logits


def _measure_noise(
    target: Target, ids: list[int], text: list[int], noise: dict[str, float], rng: np.random.Generator
) -> None:
    single = _one_by_one(target, ids, text)
    for arm, largest in noise.items():
        logits = _in_rounds(target, ids, text, arm, rng)
        noise[arm] = max(largest, float(np.abs(logits - single).max()))


def _in_rounds(target: Target, ids: list[int], text: list[int], arm: str, rng: np.random.Generator) -> Logits:
    """As ``_one_by_one``, computed in rounds like the arm's."""
    target.clear()
    out = [target.prefill(ids)[None, :]]
    at = 0
    while at < len(text):
        right = int(rng.integers(0, min(Arm.parse(arm).rows, len(text) - at, 8)))
        tokens, parents, path = _round(
            text[at : at + right + 1], Arm.parse(arm).rows, arm.startswith("chain"), target, rng
        )
        out.append(_verify(target, tokens, parents)[path])
        target.commit(path)
        at += len(path)
    return np.concatenate(out)


def _in_chains(target: Target, ids: list[int], text: list[int], width: int, first: int) -> Logits:
    """The logits behind ``text``, in chains of ``width`` rows after one of ``first``; every row is right."""
    target.clear()
    target.prefill(ids)
    logits: Logits | None = None
    ends = [*range(first, len(text), width), len(text)]
    for begin, end in zip([0, *ends], ends, strict=False):
        if end > begin:
            logits = _verify(target, text[begin:end], list(range(-1, end - begin - 1)))[-1]
            target.commit(list(range(end - begin)))
    assert logits is not None
    return logits


def _round(
    right: list[int], rows: int, chain: bool, target: Target, rng: np.random.Generator
) -> tuple[list[int], list[int], list[int]]:
    """Rows whose path ``path`` is ``right``; the others are random tokens: behind it (chain), or beside it (tree)."""
    wrong = rng.integers(0, target.n_vocab, rows - len(right)).tolist()
    if chain:
        return right + wrong, list(range(-1, rows - 1)), list(range(len(right)))
    below = rng.integers(0, len(right), len(wrong))
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for depth, token in enumerate(right):
        parents.append(path[-1] if path else -1)
        path.append(len(tokens))
        tokens.append(token)
        for leaf, parent in zip(wrong, below, strict=True):
            if parent == depth:
                tokens.append(leaf)
                parents.append(path[-1])
    return tokens, parents, path


def _look(
    target: Target, ids: list[int], plain: list[int], other: list[int], at: int, line: int, arm: str,
    rng: np.random.Generator,
) -> Difference:  # fmt: skip
    logits = _one_by_one(target, ids, plain[:at])[-1]
    second, best = np.sort(logits)[-2:]
    pair = tuple(reply[at] if at < len(reply) else -1 for reply in (plain, other))

    def of_pair(logits: Logits) -> NDArray[np.float64]:
        return np.array([_end_logit(target, logits) if token < 0 else logits[token] for token in pair], np.float64)

    values = of_pair(logits)
    target.clear()
    chains = [of_pair(target.prefill([*ids, *plain[:at]]))]
    rounds = []
    if at > 0:
        widest = min(Arm.parse(arm).rows, target.max_chain + 1)
        widths = sorted({w for w in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if w < widest} | {widest})
        for width in widths:
            for first in sorted({1, (width + 1) // 2, width}):
                chains.append(of_pair(_in_chains(target, ids, plain[:at], width, first)))
        rounds = [of_pair(_in_rounds(target, ids, plain[:at], arm, rng)[-1]) for _ in range(4)]
    noises = [max((float(np.abs(v - values).max()) for v in runs), default=0.0) for runs in (chains, rounds)]
    ahead = sum(v[1] > v[0] for v in chains) / len(chains)
    gap = float(values[0] - values[1])
    return Difference(line, at, gap, float(best - second), (pair[0], pair[1]), noises[0], noises[1], float(ahead))


def _end_logit(target: Target, logits: Logits) -> float:
    """The best of the tokens that end a reply: the session does not say which of them it drew."""
    return max(float(logits[i]) for i in range(target.n_vocab) if target.is_eog(i))


def _report(
    found: dict[str, list[Difference]], noise: dict[str, float], prompts: int, tokens: int, positions: int
) -> int:
    """Print the tables; the number of differences that are no near ties."""
    rows, bad = [], 0
    for arm, differences in found.items():
        gaps = [d.gap for d in differences]
        wrong = [d for d in differences if d.gap >= 2 * noise[arm] or d.gap >= 2 * d.noise]
        bad += len(wrong)
        rows.append(
            [
                arm,
                str(prompts - len(gaps)),
                str(len(gaps)),
                f"{max(gaps):.4f}" if gaps else "-",
                f"{noise[arm]:.4f}",
                f"{np.median([d.noise for d in differences]):.4f}" if gaps else "-",
                f"{max(d.gap / max(2 * d.noise, 1e-9) for d in differences):.2f}" if gaps else "-",
                f"{np.mean([d.ahead for d in differences]):.0%}" if gaps else "-",
                str(len(wrong)),
            ]
        )
        for d in wrong:
            print(
                f"NOT A NEAR TIE: {arm}, prompt {d.prompt}, token {d.position}: gap {d.gap:.4f}, noise there "
                f"{d.noise:.4f}, tokens {d.tokens}"
            )
    table(
        f"{prompts} prompts, {tokens} tokens of plain text",
        ["arm", "equal", "parted", "largest gap", "noise e", "e there", "gap / 2e there", "ahead", "no near tie"],
        rows,
        "gap: plain's logit of its own token minus that of the arm's, where they part; e: largest noise over "
        f"{positions} positions; e there: median of the noise where texts part; gap / 2e there: the largest; ahead: "
        "chains without trees that put the arm's token first",
    )
    return bad


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=40)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["chain:7", "tree:16"])
    parser.add_argument("--noise-positions", type=int, default=200, help="of the first replies")
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock while a prompt is decoded")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
