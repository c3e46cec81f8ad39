"""The scheduler's learners in plain Python, written from the paper. Slow, obvious, and independent of csrc/core."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TAU = 0.15
UNIT = 8192.0
CLIP = 1e-7
SLOTS, RUNS = 4, 3


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def logit(p: float) -> float:
    p = clamp(p, CLIP, 1 - CLIP)
    return math.log(p / (1 - p))


def basis(context: float) -> list[float]:
    u = context / UNIT
    return [1.0, u, u * u, math.sqrt(u), math.log(1 + u)]


@dataclass
class Coordinate:
    """FTRL-Proximal on one coordinate, around a centre."""

    alpha: float
    centre: float = 0.0
    z: float = 0.0
    n: float = 0.0

    def accumulate(self, g: float, weight: float) -> None:
        n = min(self.n + g * g, 400.0)
        self.z += g - (math.sqrt(n) - math.sqrt(self.n)) / self.alpha * (weight - self.centre)
        self.n = n

    def weight(self, threshold: float) -> float:
        if abs(self.z) <= threshold:
            return self.centre
        shrunk = self.z - math.copysign(threshold, self.z)
        return self.centre - shrunk / ((1 + math.sqrt(self.n)) / self.alpha + 0.01)


class Law:
    """Eq. (4), online."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float]] = []
        self.coordinates = [Coordinate(0.05) for _ in range(5)]
        self.weights = [0.0] * 5
        self.scale = self.floor = 0.0

    def add(self, context: int, time: float) -> None:
        self.samples.append((context, time))
        if len(self.samples) < 3:
            return
        if len(self.samples) == 3:
            self.start(min(t for _, t in self.samples), 1.0, 0.0)
            for c, t in self.samples:
                self._fold(c, t)
            return
        self._fold(context, time)

    def start(self, scale: float, at_zero: float, slope: float) -> None:
        self.scale, self.floor = scale, 1.0
        for i, w in enumerate((at_zero, slope)):
            self.weights[i] = w
            self.coordinates[i].z = -w * (1 / 0.05 + 0.01) - 0.002 if w > 0 else 0.0

    def raw(self, context: float) -> float:
        return sum(w * x for w, x in zip(self.weights, basis(context), strict=True))

    def _fold(self, context: int, time: float) -> None:
        y = time / self.scale
        self.floor = min(self.floor, y)
        factor = 1 - TAU if y < self.raw(context) else -TAU
        for i, (coordinate, x) in enumerate(zip(self.coordinates, basis(context), strict=True)):
            coordinate.accumulate(factor * x, self.weights[i])
            w = coordinate.weight(0.002)
            self.weights[i] = w if i == 0 else max(w, 0.0)

    def price(self, context: float) -> float:
        return clamp(self.raw(context), 0.5 * self.floor, 16 * self.floor) * self.scale

    def loss(self, samples: list[tuple[int, float]]) -> float:
        total = 0.0
        for c, t in samples:
            v = (t - self.price(c)) / self.scale
            total += v * (TAU - (1.0 if v < 0 else 0.0))
        return total / len(samples)


def typical(samples: list[tuple[int, float]]) -> tuple[int, float]:
    """The sample of a band that a law of the quantile would rest at."""
    return sorted(samples, key=lambda s: s[1])[int(TAU * len(samples))]


def line(points: list[tuple[int, float]]) -> tuple[float, float, float]:
    """Scale, value at zero and slope of the least-squares line through times over context, none of them negative."""
    u = [c / UNIT for c, _ in points]
    t = [us for _, us in points]
    n, su, st = len(points), sum(u), sum(t)
    suu, sut = sum(x * x for x in u), sum(x * y for x, y in zip(u, t, strict=True))
    slope = max(0.0, (n * sut - su * st) / (n * suu - su * su))
    at_zero = (st - slope * su) / n
    if at_zero < 0:
        at_zero, slope = 0.0, sut / suu
    return min(t), at_zero / min(t), slope / min(t)


def refit(law: Law, as_banked: list[tuple[int, float]]) -> Law:
    """The law after a refit on the newest 16 samples of every band of ``as_banked`` (arrival order)."""
    bands: dict[int, list[tuple[int, float]]] = {}
    for c, t in as_banked:
        bands.setdefault(c.bit_length(), []).append((c, t))
    kept = {b: s[-16:] for b, s in sorted(bands.items())}
    train: list[tuple[int, float]] = []
    judged: list[tuple[int, float]] = []
    held_out = 0
    for i in range(16):
        for s in kept.values():
            cut = len(s) - len(s) // 4
            if i < cut:
                train.append(s[i])
                if len(s) < 4:
                    judged.append(s[i])
            elif i < len(s):
                judged.append(s[i])
                held_out += 1
    contexts = [c for s in kept.values() for c, _ in s]
    if len(train) <= 3 or not judged:
        return law
    if held_out == 0 and max(contexts) <= 1.5 * min(contexts):
        return law
    passes = max(24, math.ceil(24 * 12 * len(kept) / len(train)))
    candidate = Law()
    if len(kept) > 1:
        candidate.samples = [(0, 0.0)] * 3  # none is held back
        candidate.start(*line([typical(s) for s in kept.values()]))
    for _ in range(passes):
        for c, t in train:
            candidate.add(c, t)
    return candidate if candidate.loss(judged) < law.loss(judged) else law


class Gain:
    """One gain fit of section 3.4 (ii)."""

    def __init__(self) -> None:
        self.observations: list[tuple[float, float, float]] = []

    def observe(self, predicted: float, realised: float, context: float) -> None:
        if predicted > 1e-3:
            self.observations.append((predicted, realised, context / UNIT - 0.5))

    def at(self, context: float) -> float:
        a = [[0.0, 0.0], [0.0, 0.0]]
        b = [0.0, 0.0]
        for age, (p, y, v) in enumerate(reversed(self.observations)):
            keep = (255 / 256) ** age
            row = (p, p * v)
            for i in range(2):
                b[i] += keep * row[i] * y
                for j in range(2):
                    a[i][j] += keep * row[i] * row[j]
        ridge = [0.02 * a[0][0] + 2.0, 0.02 * a[1][1] + 2.0]
        b[0] += ridge[0]
        a[0][0] += ridge[0]
        a[1][1] += ridge[1]
        determinant = a[0][0] * a[1][1] - a[0][1] * a[1][0]
        intercept = (b[0] * a[1][1] - a[0][1] * b[1]) / determinant
        slope = (a[0][0] * b[1] - a[1][0] * b[0]) / determinant
        return clamp(intercept + slope * (context / UNIT - 0.5), 0.25, 4.0)


class Text:
    """The suffix index, by scanning the whole text every time."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.followers: dict[tuple[int, ...], dict[int, int]] = {}
        self.right = [0] * SLOTS
        self.proposed = [0] * SLOTS

    def propose(self, context: list[int]) -> tuple[int, int, int, int]:
        """(token, slot, copy length, position); slot -1 where there is nothing."""
        if len(context) >= 4:
            matches = [i for i in range(4, len(self.tokens)) if self.tokens[i - 4 : i] == context[-4:]][-8:]
            best = (0, -1)
            for i in reversed(matches):
                n = 0
                while n < min(64, len(context), i) and context[-1 - n] == self.tokens[i - 1 - n]:
                    n += 1
                if n > best[0]:
                    best = (n, i)
            if best[0] >= 4:
                return self.tokens[best[1]], 3 if best[0] >= 16 else 2, best[0], best[1]
        if len(context) >= 3 and tuple(context[-3:]) in self.followers:
            counts = self.followers[tuple(context[-3:])]
            token = min(counts, key=lambda t: (-counts[t], t))
            return token, 1 if counts[token] >= 2 else 0, 0, 0
        return -1, -1, 0, 0

    def append(self, token: int) -> None:
        proposal, slot, _, _ = self.propose(self.tokens)
        if slot >= 0:
            self.proposed[slot] += 1
            self.right[slot] += proposal == token
        if len(self.tokens) >= 3:
            counts = self.followers.setdefault(tuple(self.tokens[-3:]), {})
            if token in counts or len(counts) < 4:
                counts[token] = counts.get(token, 0) + 1
        self.tokens.append(token)

    def precision(self, slot: int) -> float:
        return (self.right[slot] + 1) / (self.proposed[slot] + 2)

    def steps(self, context: list[int], most: int, stop: set[int]) -> list[tuple[int, int]]:
        """Up to ``most`` (token, slot) of a chain below ``context``."""
        context = list(context)
        out: list[tuple[int, int]] = []
        copy = -1
        length = 0
        while len(out) < most:
            if copy >= 0 and copy + 1 < len(self.tokens):
                copy += 1
                length = min(length + 1, 64)
                token, slot = self.tokens[copy], 3 if length >= 16 else 2
            else:
                token, slot, length, position = self.propose(context)
                if slot < 0:
                    break
                copy = position if length else -1
            out.append((token, slot))
            context.append(token)
            if token in stop:
                break
        return out


@dataclass
class Node:
    """One candidate. ``kind``: pick, sibling or text; ``evidence``: none, agreed, contradicted or text."""

    token: int
    parent: int
    kind: str
    position: int = -1
    lane: int = -1
    evidence: str = "none"
    slot: int = -1
    run: int = 0
    depth: int = 1
    q: float = 0.0


def run_bin(run: int) -> int:
    return 0 if run == 0 else 1 if run <= 2 else 2


def merge(text: Text, anchor: int, block: list[list[int]], stop: set[int], depth_limit: int = 32) -> list[Node]:
    """Section 3.3, "N-gram candidates": the block's candidates and the text's chains."""
    nodes = [
        Node(t, -1 if i == 0 else (i - 1) * 8, "pick" if lane == 0 else "sibling", i, lane, depth=i + 1)
        for i, row in enumerate(block)
        for lane, t in enumerate(row)
    ]
    base = [*text.tokens[-64:], anchor]
    spoken: set[int] = set()  # drafter parents a chain has passed

    def chain(start: int) -> None:
        path: list[int] = []
        at = start
        while at >= 0:
            path.append(nodes[at].token)
            at = nodes[at].parent
        below = len(path)
        node = start
        for run, (token, slot) in enumerate(text.steps(base + path[::-1], depth_limit - below, stop)):
            group = next((i for i in range(len(block)) if (-1 if i == 0 else (i - 1) * 8) == node), None)
            if node == -1 or nodes[node].kind == "pick":
                spoken.add(node)
            match = None
            if group is not None:
                for lane in range(8):
                    if block[group][lane] == token and match is None:
                        match = group * 8 + lane
            if match is None and sum(n.kind == "text" for n in nodes) == 63:
                break
            if group is not None:
                for lane in range(8):
                    other = nodes[group * 8 + lane]
                    other.evidence = "agreed" if match == group * 8 + lane else "contradicted"
                    other.slot, other.run = slot, run_bin(run)
            if match is None:
                nodes.append(Node(token, node, "text", evidence="text", slot=slot, run=run_bin(run), depth=below + 1))
                node = len(nodes) - 1
            else:
                node = match
            below += 1

    chain(-1)
    for i in range(len(block)):
        pick = i * 8
        if nodes[pick].token in stop:
            break
        if pick not in spoken and i + 1 < depth_limit:
            chain(pick)
    return nodes


@dataclass
class Acceptance:
    """Eq. (6) with its learning."""

    dense: list[Coordinate] = field(
        default_factory=lambda: [Coordinate(0.05, c) for c in (math.log(2), 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)]
    )
    buckets: dict[tuple[str, int, int], Coordinate] = field(default_factory=dict)
    weights: dict[object, float] = field(default_factory=dict)
    intercept: list[float] = field(default_factory=lambda: [0.0, 0.0])  # with drafter candidates, text alone
    squared: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def begin_request(self) -> None:
        self.intercept, self.squared = [0.0, 0.0], [0.0, 0.0]

    @staticmethod
    def alone(nodes: list[Node], parent: int) -> int:
        """Which intercept a parent's candidates have."""
        return int(all(n.kind == "text" for n in nodes if n.parent == parent))

    def weight(self, key: object) -> float:
        return self.weights.get(key, self.dense[key].centre if isinstance(key, int) else 0.0)

    def terms(self, node: Node, block: Block, base: list[float], context: float) -> tuple[float, dict[object, float]]:
        """(fixed part of the score, coefficient -> its factor)."""
        factors: dict[object, float] = {8: context / UNIT}
        fixed = 0.0
        if node.kind == "text":
            factors[("text", node.slot, node.run)] = 1.0
            return base[node.slot], factors
        i = node.position
        factors[7] = float(i)
        if node.kind == "pick":
            factors |= {0: 1.0, 1: block.logit_head(i), 2: block.logit_share(i)}
        else:
            factors |= {3: 1.0, 4: block.log_r(i, node.lane), 5: block.logit_head(i), 6: block.logit_share(i)}
        if node.evidence == "agreed":
            fixed += max(0.0, base[node.slot])
            factors[(f"agreed {node.kind}", node.slot, node.run)] = 1.0
        elif node.evidence == "contradicted":
            fixed -= max(0.0, base[node.slot])
            factors[(f"contradicted {node.kind}", node.slot, 0)] = 1.0
        return fixed, factors

    def prices(self, nodes: list[Node], block: Block, base: list[float], context: float) -> list[float]:
        scores = []
        for node in nodes:
            fixed, factors = self.terms(node, block, base, context)
            scores.append(
                fixed
                + self.intercept[self.alone(nodes, node.parent)]
                + sum(self.weight(k) * x for k, x in factors.items())
            )
        p = [0.0] * len(nodes)
        for parent in {n.parent for n in nodes}:
            children = [i for i, n in enumerate(nodes) if n.parent == parent]
            top = max(0.0, *(scores[i] for i in children))
            total = math.exp(-top) + sum(math.exp(scores[i] - top) for i in children)
            for i in children:
                p[i] = math.exp(scores[i] - top) / total
        return p

    def learn(
        self,
        nodes: list[Node],
        p: list[float],
        parent: int,
        accepted: int,
        block: Block,
        base: list[float],
        context: float,
    ) -> None:
        gradient: dict[object, float] = {}
        total = 0.0
        for i, node in enumerate(nodes):
            if node.parent != parent:
                continue
            error = p[i] - (1.0 if i == accepted else 0.0)
            total += error
            for key, x in self.terms(node, block, base, context)[1].items():
                gradient[key] = gradient.get(key, 0.0) + error * x
        for key, g in gradient.items():
            c = self.dense[key] if isinstance(key, int) else self.buckets.setdefault(key, Coordinate(0.5))  # type: ignore[arg-type]
            c.accumulate(g, self.weight(key))
            self.weights[key] = c.weight(0.0 if isinstance(key, int) else 3 * math.sqrt(c.n))
        which = self.alone(nodes, parent)
        self.squared[which] = min(self.squared[which] + total * total, 16.0)
        step = 0.15 * total / (1 + math.sqrt(self.squared[which]))
        self.intercept[which] = clamp(self.intercept[which] - step, -2, 2)


@dataclass
class Block:
    """A drafter block: ``values`` are its biased logits."""

    tokens: list[list[int]]
    values: list[list[float]]
    confidence: list[float]

    def logit_head(self, i: int) -> float:
        return logit(self.confidence[i])

    def _siblings(self, i: int) -> float:
        v = self.values[i]
        return math.log(sum(math.exp(x - v[0]) for x in v[1:]))

    def logit_share(self, i: int) -> float:
        return clamp(-self._siblings(i), logit(0), logit(1))

    def log_r(self, i: int, lane: int) -> float:
        v = self.values[i]
        return max(v[lane] - v[0] - self._siblings(i), -30.0)

    def head_q(self, i: int, lane: int) -> float:
        v = self.values[i]
        if lane == 0:
            return clamp(self.confidence[i], CLIP, 1 - CLIP)
        return math.exp(v[lane] - v[0]) / sum(math.exp(x - v[0]) for x in v)
