# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, autotestdict=False, auto_pickle=False
"""The loops over recorded rounds: taking records apart, feeding them to a scheduler of ``adaspark._core``, decoding a
known text anew under another plan. ``adaspark.replay`` is the documented face of it; ``docs/traces.md`` has the format.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

cimport cython

import numpy as np

from adaspark import _core

cdef enum:
    HEADER = 96  # bytes of a record before its arrays
    POSITIONS = 23  # offsets within them
    TOP_K = 24
    ROWS = 25
    PATH = 26


@cython.final
cdef class Rounds:
    """Recorded rounds taken apart. ``*_at`` (n + 1,) say where a round's part of the flat arrays begins."""

    cdef readonly object header  # (n, 96) uint8
    cdef readonly object block_at, tokens, logits  # (sum of B * K,)
    cdef readonly object confidence_at, confidence  # (sum of B,)
    cdef readonly object tree_at, tree_tokens, tree_candidates, tree_parents  # (sum of rows,)
    cdef readonly object path_at, path  # (sum of accepted rows,)

    def __len__(self):
        return len(self.header)

    def block(self, Py_ssize_t i):
        """Tokens, logits and confidence of a round's drafter block."""
        cdef Py_ssize_t a = self.block_at[i], b = self.block_at[i + 1]
        return self.tokens[a:b], self.logits[a:b], self.confidence[self.confidence_at[i] : self.confidence_at[i + 1]]


cdef void check_tree(const uint8_t *parents, Py_ssize_t rows, Py_ssize_t n_path) except *:
    """ValueError unless every row hangs on one before it and the path, right behind the parents, goes down one branch."""
    cdef const int8_t *parent = <const int8_t *> parents
    cdef const uint8_t *path = parents + rows
    cdef Py_ssize_t i
    cdef bint good = parent[0] == -1 and path[0] == 0
    for i in range(1, rows):
        good = good and 0 <= parent[i] < i
    for i in range(1, n_path):
        good = good and path[i] < rows and parent[path[i]] == path[i - 1]
    if not good:
        raise ValueError("a record's tree or path is damaged")


def split(const uint8_t[::1] data):
    """The rounds of a request's records. ValueError when they are not whole."""
    cdef Py_ssize_t at = 0, end = data.shape[0], n = 0, blocks = 0, confidences = 0, rows = 0, paths = 0
    cdef Py_ssize_t b, k, r, p, body
    cdef uint32_t size
    while at < end:
        if end - at < HEADER:
            raise ValueError("a record is cut off")
        memcpy(&size, &data[at], 4)
        b, k, r, p = data[at + POSITIONS], data[at + TOP_K], data[at + ROWS], data[at + PATH]
        body = b * k * 8 + b * 4 + r * 7 + p
        if size > end - at or <Py_ssize_t> size != (HEADER + body + 7) // 8 * 8 or r < 1 or p < 1 or p > r or r > 64:
            raise ValueError("a record is damaged")
        check_tree(&data[at + HEADER + b * k * 8 + b * 4 + r * 6], r, p)
        n += 1
        blocks += b * k
        confidences += b
        rows += r
        paths += p
        at += size

    cdef Rounds out = Rounds()
    out.header = np.empty((n, HEADER), np.uint8)
    out.block_at, out.confidence_at, out.tree_at, out.path_at = (np.zeros(n + 1, np.int64) for _ in range(4))
    out.tokens, out.logits = np.empty(blocks, np.int32), np.empty(blocks, np.float32)
    out.confidence = np.empty(confidences, np.float32)
    out.tree_tokens, out.tree_candidates = np.empty(rows, np.int32), np.empty(rows, np.int16)
    out.tree_parents, out.path = np.empty(rows, np.int8), np.empty(paths, np.uint8)
    cdef uint8_t[:, ::1] header = out.header
    cdef int64_t[::1] block_at = out.block_at, confidence_at = out.confidence_at
    cdef int64_t[::1] tree_at = out.tree_at, path_at = out.path_at
    cdef uint8_t[::1] tokens = out.tokens.view(np.uint8), logits = out.logits.view(np.uint8)
    cdef uint8_t[::1] confidence = out.confidence.view(np.uint8), tree_tokens = out.tree_tokens.view(np.uint8)
    cdef uint8_t[::1] tree_candidates = out.tree_candidates.view(np.uint8)
    cdef uint8_t[::1] tree_parents = out.tree_parents.view(np.uint8), path = out.path
    cdef Py_ssize_t i, from_
    at = 0
    for i in range(n):
        memcpy(&size, &data[at], 4)
        b, k, r, p = data[at + POSITIONS], data[at + TOP_K], data[at + ROWS], data[at + PATH]
        memcpy(&header[i, 0], &data[at], HEADER)
        from_ = at + HEADER
        if b > 0:
            memcpy(&tokens[block_at[i] * 4], &data[from_], b * k * 4)
            from_ += b * k * 4
            memcpy(&logits[block_at[i] * 4], &data[from_], b * k * 4)
            from_ += b * k * 4
            memcpy(&confidence[confidence_at[i] * 4], &data[from_], b * 4)
            from_ += b * 4
        memcpy(&tree_tokens[tree_at[i] * 4], &data[from_], r * 4)
        from_ += r * 4
        memcpy(&tree_candidates[tree_at[i] * 2], &data[from_], r * 2)
        from_ += r * 2
        memcpy(&tree_parents[tree_at[i]], &data[from_], r)
        from_ += r
        memcpy(&path[path_at[i]], &data[from_], p)
        block_at[i + 1] = block_at[i] + b * k
        confidence_at[i + 1] = confidence_at[i] + b
        tree_at[i + 1] = tree_at[i] + r
        path_at[i + 1] = path_at[i] + p
        at += size
    return out


cdef bint same_tree(dict tree, const int32_t[::1] tokens, const int8_t[::1] parents, const int16_t[::1] candidates,
                    Py_ssize_t a, Py_ssize_t b) except -1:
    """Whether a planned tree is the recorded one, rows [a, b) of the flat arrays."""
    cdef const int32_t[::1] token = tree["tokens"], parent = tree["parents"], candidate = tree["candidates"]
    cdef Py_ssize_t i
    if token.shape[0] != b - a:
        return False
    for i in range(b - a):
        if token[i] != tokens[a + i] or parent[i] != parents[a + i] or candidate[i] != candidates[a + i]:
            return False
    return True


def replay(scheduler, Rounds rounds, const int32_t[::1] room, const int32_t[::1] next_token, const uint8_t[::1] last,
           const double[:, ::1] times):
    """Feed recorded rounds to a scheduler whose request has begun: each round is decided and planned anew, then the
    recorded outcome and times are observed.

    ``times`` (n, 3): draft, verify, commit, microseconds. Returns the first round whose decision or tree is not the
    recorded one, -1 when there is none; the scheduler has then observed every round.
    """
    cdef Py_ssize_t i, n = len(rounds)
    cdef const int64_t[::1] block_at = rounds.block_at, tree_at = rounds.tree_at, path_at = rounds.path_at
    cdef const int32_t[::1] tokens = rounds.tree_tokens
    cdef const int16_t[::1] candidates = rounds.tree_candidates
    cdef const int8_t[::1] parents = rounds.tree_parents
    cdef bint drafted
    cdef dict tree
    path = rounds.path.astype(np.int32)
    for i in range(n):
        drafted = block_at[i + 1] > block_at[i]
        if scheduler.decide(room[i])[0] != drafted:
            return i
        tree = scheduler.plan_block(*rounds.block(i)) if drafted else scheduler.plan()
        if not same_tree(tree, tokens, parents, candidates, tree_at[i], tree_at[i + 1]):
            return i
        scheduler.observe(
            path[path_at[i] : path_at[i + 1]], next_token[i], times[i, 0], times[i, 1], times[i, 2], last[i] != 0
        )
    return -1


@cython.final
cdef class Plan:
    """What plans the rounds of a decode: a scheduler, or a fixed arm."""

    cdef object scheduler  # None: a fixed arm
    cdef bint chain  # of the fixed arms: the picks only
    cdef Py_ssize_t size  # drafts of a chain, rows of a tree; 0 = plain
    cdef set stop_tokens

    def __init__(self, scheduler, bint chain, Py_ssize_t size, stop_tokens):
        self.scheduler, self.chain, self.size = scheduler, chain, size
        self.stop_tokens = set(stop_tokens)

    cdef dict fixed(self, int32_t anchor, block, Py_ssize_t room, Py_ssize_t left):
        """The tree of a fixed arm, as ``Session::plan_draft`` makes it. ``block`` None: one row."""
        cdef Py_ssize_t i, k, depth, rows = 1
        if block is None or self.size == 0 or room < 2 or left < 2:
            none = np.empty(0, np.int32)
            return _core.layout_depth_first(anchor, none, none, np.empty(0, np.float32), 1)
        tokens, logits, confidence = block
        k = len(tokens) // len(confidence)
        depth = min(self.size if self.chain else self.size - 1, room - 1, left - 1, len(confidence))
        tokens = tokens[: depth * k]
        parents, q = _core.block_candidates(tokens, logits[: depth * k], confidence[:depth])
        for i in range(depth * k):
            if self.chain:
                q[i] = 1.0 if i % k == 0 and tokens[i] >= 0 else 0.0
            if tokens[i] in self.stop_tokens:
                q[i] = 0.0
        rows = depth + 1 if self.chain else min(self.size, room)
        return _core.layout_depth_first(anchor, tokens, parents, q, rows)


def replay_fixed(Plan plan, Rounds rounds, const int32_t[::1] room, const int32_t[::1] left):
    """The first round of a fixed arm whose tree is not the recorded one, or -1."""
    cdef Py_ssize_t i
    cdef const int64_t[::1] block_at = rounds.block_at, tree_at = rounds.tree_at
    cdef const int32_t[::1] tokens = rounds.tree_tokens
    for i in range(len(rounds)):
        block = rounds.block(i) if block_at[i + 1] > block_at[i] else None
        tree = plan.fixed(tokens[tree_at[i]], block, room[i], left[i])
        if not same_tree(tree, tokens, rounds.tree_parents, rounds.tree_candidates, tree_at[i], tree_at[i + 1]):
            return i
    return -1


def decode(Plan plan, Rounds rounds, const int64_t[::1] block_of, const int32_t[::1] prompt, const int32_t[::1] text,
           Py_ssize_t max_rows, const double[:, ::1] verify_us, Py_ssize_t grid, const double[::1] draft_us,
           const double[::1] commit_us):
    """Decode a known text under a plan, every round at the price of a cost law.

    ``text`` (m,): the reply. ``block_of`` (m,): the round whose block was drafted with that token as the anchor, or -1.
    ``verify_us`` (contexts // grid + 1, 65): by context and rows; ``draft_us`` likewise; ``commit_us`` (2,): without and
    with the drafter. Returns columns over rounds: position in the text, kind (0 plain, 1 text, 2 draft), rows, accepted
    drafts, microseconds, S, whether a block was wanted that the trace does not have; S is 0 for fixed arms.
    """
    cdef Py_ssize_t n = text.shape[0], at = 0, left, room, accepted, g, rows, row, child, depth
    cdef Py_ssize_t context = prompt.shape[0]
    cdef int64_t which
    cdef bint drafted, wanted, last
    cdef double draft, verify, commit
    cdef dict tree
    cdef const int32_t[::1] token, parent
    cdef int32_t[::1] path = np.empty(64, np.int32)
    columns = []
    scheduler = plan.scheduler
    if scheduler is not None and n > 1:
        scheduler.begin_request(np.asarray(prompt), text[0], n - 1)
    while at < n - 1:
        left = n - 1 - at
        room = min(max_rows, left)
        which = block_of[at]
        if scheduler is None:
            wanted = plan.size > 0 and left > 1
            drafted = wanted and which >= 0
            tree = plan.fixed(text[at], rounds.block(which) if drafted else None, max_rows, left)
        else:
            wanted = scheduler.decide(room)[0]
            drafted = wanted and which >= 0
            tree = scheduler.plan_block(*rounds.block(which)) if drafted else scheduler.plan()
        token, parent = tree["tokens"], tree["parents"]
        rows = token.shape[0]
        path[0] = 0
        depth = 1
        row = 0
        while row >= 0:
            child = row + 1
            while child < rows and not (parent[child] == row and token[child] == text[at + depth]):
                child += 1
            row = -1
            if child < rows:
                path[depth] = child
                row = child
                depth += 1
        accepted = depth - 1
        g = min((context + at) // grid, verify_us.shape[0] - 1)
        draft = draft_us[g] if drafted else 0.0
        verify = verify_us[g, rows]
        commit = commit_us[1 if drafted else 0]
        last = at + depth >= n - 1
        expected = 0.0
        if scheduler is not None:
            expected = scheduler.sum_q
            scheduler.observe(np.asarray(path[:depth]), text[at + depth], draft, verify, commit, last)
        columns.append((at, 2 if drafted else 1 if rows > 1 else 0, rows, accepted, draft + verify + commit, expected,
                        wanted and which < 0))
        at += depth
    if scheduler is not None and n > 1:
        scheduler.end_request()
    return np.array(columns, dtype=np.float64).reshape(-1, 7)
