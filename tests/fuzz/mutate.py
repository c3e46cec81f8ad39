"""Changes of a GGUF file's parts, drawn at random. What is written need not be a valid file."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import gguf
from choices import ARCHITECTURES, GENERAL, NUMBERS, PRES, REALS, SUFFIXES, TENSORS, TEXTS, TOKENIZERS
from gguf import GGUFValueType as Kv
from parts import FLOATS, FORMATS, INTEGERS, File, Tensor, Value


class Mutator:
    """Draws changes; one of these for one case."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def mutate(self, original: File) -> File:
        file = copy.deepcopy(original)
        changes = (
            (self.key_number, 30), (self.key_drop, 6), (self.key_retype, 8), (self.key_add, 14), (self.key_array, 8),
            (self.key_text, 6), (self.key_rename, 2), (self.key_swap, 2), (self.architecture, 2), (self.vocabulary, 12),
            (self.special_token, 5), (self.tensor_shape, 10), (self.tensor_type, 6), (self.tensor_drop, 4),
            (self.tensor_rename, 4), (self.tensor_add, 4), (self.tensor_offset, 2), (self.tensor_swap, 2),
            (self.tensor_data, 6), (self.header, 2), (self.truncate, 2), (self.head_bytes, 4), (self.data_bytes, 1),
        )  # fmt: skip
        for _ in range(self.rng.choice((1, 1, 1, 1, 2, 2, 3, 5))):
            self.rng.choices([c for c, _ in changes], [w for _, w in changes])[0](file)
        return file

    # ---- values

    def number(self, near: Any = None) -> int:
        if isinstance(near, (int, float)) and abs(near) < 1 << 64 and self.rng.random() < 0.6:
            n = int(near)
            return self.rng.choice((n - 1, n + 1, n * 2, n // 2, n * n, -n, n + 16, n - 16, n * 3, n << 8, n | 1))
        return self.rng.choice(NUMBERS)

    def scalar(self, kind: Kv, near: Any = None) -> Any:
        if kind == Kv.STRING:
            return self.rng.choice(TEXTS)
        if kind == Kv.BOOL:
            return self.rng.random() < 0.5
        if kind in FLOATS:
            return float(self.number(near)) if self.rng.random() < 0.2 else self.rng.choice(REALS)
        return self.number(near)

    def value(self, near: Any = None) -> Value:
        kind = self.rng.choice((*FORMATS, Kv.STRING, Kv.UINT32, Kv.UINT32, Kv.FLOAT32, Kv.ARRAY))
        if kind != Kv.ARRAY:
            return Value(kind, self.scalar(kind, near))
        element = self.rng.choice((*FORMATS, Kv.STRING, Kv.UINT32, Kv.INT32))
        count = self.rng.choice((0, 1, 2, 3, 4, 5, 8, 16, 64, 512, 513, 2000))
        one = self.scalar(element, near)
        return Value(Kv.ARRAY, [one if count > 16 else self.scalar(element, near) for _ in range(count)], element)

    # ---- keys

    def _key(self, file: File, *kinds: Kv) -> int | None:
        found = [i for i, (_, v) in enumerate(file.keys) if not kinds or v.kind in kinds]
        return self.rng.choice(found) if found else None

    def key_number(self, file: File) -> None:
        if (i := self._key(file, *FORMATS)) is not None:
            file.keys[i][1].value = self.scalar(file.keys[i][1].kind, file.keys[i][1].value)

    def key_drop(self, file: File) -> None:
        if (i := self._key(file)) is not None:
            del file.keys[i]

    def key_retype(self, file: File) -> None:
        if (i := self._key(file)) is None:
            return
        name, old = file.keys[i]
        if old.kind in INTEGERS and self.rng.random() < 0.4:  # the same number in another type, or for every block
            kind = self.rng.choice((*INTEGERS, *FLOATS))
            blocks = next((v.value for k, v in file.keys if k.endswith(b".block_count")), 2)
            blocks = blocks if isinstance(blocks, int) and 0 < blocks < 600 else 2
            as_array = self.rng.random() < 0.4
            file.keys[i] = (name, Value(Kv.ARRAY, [old.value] * blocks, kind) if as_array else Value(kind, old.value))
        else:
            file.keys[i] = (name, self.value(old.value))

    def key_add(self, file: File) -> None:
        own = file.architecture + b"." + self.rng.choice(SUFFIXES)
        name = own if self.rng.random() < 0.75 else self.rng.choice(GENERAL)
        if self.rng.random() < 0.9:
            file.keys = [(k, v) for k, v in file.keys if k != name]
        file.keys.append((name, self.value()))

    def key_array(self, file: File) -> None:
        if (i := self._key(file, Kv.ARRAY)) is None:
            return
        v = file.keys[i][1]
        element = Kv.UINT8 if v.element is None else v.element
        if v.value and self.rng.random() < 0.5:
            at = self.rng.randrange(len(v.value))
            v.value[at] = self.scalar(element, v.value[at])
        elif self.rng.random() < 0.5:
            del v.value[self.rng.choice((0, 1, len(v.value) // 2, max(len(v.value) - 1, 0))) :]
        elif self.rng.random() < 0.5:
            one = self.scalar(element)
            long = isinstance(one, bytes) and len(one) > 1000
            v.value += [one] * self.rng.choice((1, 2, 3) if long else (1, 2, 500, 20_000))
        else:
            v.element = self.rng.choice((*FORMATS, Kv.STRING))

    def key_text(self, file: File) -> None:
        if (i := self._key(file, Kv.STRING)) is None:
            return
        name, v = file.keys[i]
        known = {b"tokenizer.ggml.model": TOKENIZERS, b"tokenizer.ggml.pre": PRES}.get(name, TEXTS)
        v.value = self.rng.choice(known if self.rng.random() < 0.8 else TEXTS)

    def key_rename(self, file: File) -> None:
        if (i := self._key(file)) is not None:
            name = self.rng.choice((*GENERAL, file.architecture + b"." + self.rng.choice(SUFFIXES), *TEXTS))
            file.keys[i] = (name, file.keys[i][1])

    def key_swap(self, file: File) -> None:
        i, j = self._key(file), self._key(file)
        if i is not None and j is not None:
            a, b = file.keys[i], file.keys[j]
            file.keys[i], file.keys[j] = (a[0], b[1]), (b[0], a[1])

    def architecture(self, file: File) -> None:
        """Another architecture, its keys with it."""
        old, new = file.architecture + b".", self.rng.choice(ARCHITECTURES)
        for i, (name, v) in enumerate(file.keys):
            if name == b"general.architecture":
                v.value = new
            elif name.startswith(old):
                file.keys[i] = (new + b"." + name[len(old) :], v)

    # ---- vocabulary

    def _named(self, file: File, name: bytes) -> Value | None:
        return next((v for k, v in file.keys if k == name), None)

    def vocabulary(self, file: File) -> None:
        tokens = self._named(file, b"tokenizer.ggml.tokens")
        if tokens is None or tokens.kind != Kv.ARRAY or not tokens.value:
            return
        words, n = tokens.value, len(tokens.value)
        what = self.rng.randrange(8)
        if what == 0:
            del words[self.rng.choice((0, 1, 2, n // 2, n - 1)) :]
        elif what == 1:
            words += [b"more%d" % i for i in range(self.rng.choice((1, 32, 5000)))]
        elif what == 2:  # duplicates
            for _ in range(self.rng.choice((1, 10, n))):
                words[self.rng.randrange(n)] = self.rng.choice(words)
        elif what == 3:
            for _ in range(self.rng.choice((1, 1, 20, n))):
                words[self.rng.randrange(n)] = self.rng.choice(TEXTS[:10] + TEXTS[-10:])
        elif what == 4:
            self.rng.shuffle(words)
        elif what == 5:  # another kind of tokenizer, with the scores most need
            model = self._named(file, b"tokenizer.ggml.model")
            if model is not None:
                model.kind, model.value = Kv.STRING, self.rng.choice(TOKENIZERS)
            scores = [self.rng.choice(REALS) if self.rng.random() < 0.1 else -float(i) for i in range(n)]
            file.keys.append((b"tokenizer.ggml.scores", Value(Kv.ARRAY, scores, Kv.FLOAT32)))
            if self.rng.random() < 0.5:
                self._some_words(words, [b"<0x%02X>" % b for b in range(256)])
        elif what == 6:
            kinds = self._named(file, b"tokenizer.ggml.token_type")
            if kinds is not None and kinds.kind == Kv.ARRAY:
                kinds.value = [self.rng.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 30)) for _ in kinds.value]
        else:
            merges = self._named(file, b"tokenizer.ggml.merges")
            if merges is not None and merges.kind == Kv.ARRAY:
                for _ in range(self.rng.choice((1, 5, 50))):
                    if merges.value:
                        merges.value[self.rng.randrange(len(merges.value))] = self.rng.choice(TEXTS)

    def _some_words(self, words: list[Any], new: list[bytes]) -> None:
        start = self.rng.randrange(len(words))
        words[start : start + len(new)] = new[: len(words) - start]

    def special_token(self, file: File) -> None:
        name = self.rng.choice([k for k in GENERAL if k.endswith(b"_token_id") or b".add_" in k])
        near = self._named(file, name)
        file.keys = [(k, v) for k, v in file.keys if k != name]
        kind = Kv.BOOL if b".add_" in name else self.rng.choice((Kv.UINT32, Kv.UINT32, Kv.INT32, Kv.UINT64))
        file.keys.append((name, Value(kind, self.scalar(kind, None if near is None else near.value))))

    # ---- tensors

    def _tensor(self, file: File) -> Tensor:
        return self.rng.choice(file.tensors) if file.tensors else Tensor(b"", [1], 0, b"")

    def tensor_shape(self, file: File) -> None:
        t = self._tensor(file)
        what = self.rng.randrange(5)
        if what == 0 and t.shape:
            t.shape.reverse()
        elif what == 1:
            t.shape.append(self.rng.choice((0, 1, 1, 2, 3)))
        elif what == 2 and t.shape:
            t.shape.pop()
        elif t.shape:
            i = self.rng.randrange(len(t.shape))
            t.shape[i] = self.number(t.shape[i])

    def tensor_type(self, file: File) -> None:
        kinds = [int(k) for k in gguf.GGMLQuantizationType]
        some = [self._tensor(file)] if self.rng.random() < 0.7 else [t for t in file.tensors if len(t.shape) > 1]
        kind = self.rng.choice(kinds) if self.rng.random() < 0.9 else self.rng.choice((4, 5, 36, 45, 99, 1 << 31))
        for t in some:
            t.type = kind

    def tensor_drop(self, file: File) -> None:
        if file.tensors:
            file.tensors.remove(self._tensor(file))
        if self.rng.random() < 0.05:
            file.tensors.clear()

    def tensor_rename(self, file: File) -> None:
        self._tensor(file).name = self.rng.choice((*TENSORS, *TEXTS[:8]))

    def tensor_add(self, file: File) -> None:
        t = copy.deepcopy(self._tensor(file))
        t.name = self.rng.choice(TENSORS)
        if self.rng.random() < 0.7:
            file.tensors = [x for x in file.tensors if x.name != t.name]
        if self.rng.random() < 0.4:
            t.shape = [self.number(t.shape[0] if t.shape else 1) % 4096]
        file.tensors.insert(self.rng.randrange(len(file.tensors) + 1), t)

    def tensor_offset(self, file: File) -> None:
        self._tensor(file).shift = self.rng.choice((1, 32, -32, 1 << 20, (1 << 63) - 1, -1, 1 << 62))

    def tensor_swap(self, file: File) -> None:
        a, b = self._tensor(file), self._tensor(file)
        a.name, b.name = b.name, a.name

    def tensor_data(self, file: File) -> None:
        some = [self._tensor(file)] if self.rng.random() < 0.7 else file.tensors
        for t in some:
            pattern = self.rng.choice((b"\xff", b"\x7f", b"\0", b"\0\0\x80\x7f", b"\0\x7c", b"", b"\x80", b"\1"))
            if pattern:
                t.data = (pattern * (len(t.data) // len(pattern) + 1))[: len(t.data)]
            else:
                t.data = self.rng.randbytes(len(t.data))

    # ---- the bytes themselves

    def header(self, file: File) -> None:
        what = self.rng.randrange(3)
        if what == 0:
            file.version = self.rng.choice((0, 1, 2, 4, 3 << 24, (1 << 32) - 1))
        elif what == 1:
            file.more_keys = self.rng.choice((1, -1, 1 << 40, (1 << 63) - 100, -1000))
        else:
            file.more_tensors = self.rng.choice((1, -1, 1 << 40, (1 << 63) - 100, -1000))

    def truncate(self, file: File) -> None:
        file.tail.append(("cut", self.rng.choice((0, 3, 4, 8, 20, 24, self.rng.randrange(1 << 30))), 0))

    def head_bytes(self, file: File) -> None:
        for _ in range(self.rng.choice((1, 1, 4, 32))):
            file.tail.append(
                ("head", self.rng.randrange(1 << 30), self.rng.choice((0, 255, 128, self.rng.randrange(256))))
            )

    def data_bytes(self, file: File) -> None:
        for _ in range(self.rng.choice((1, 64))):
            file.tail.append(("data", self.rng.randrange(1 << 30), self.rng.randrange(256)))
