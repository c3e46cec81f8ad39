"""GGUF files taken apart and put together again.

A file is kept as its parts, so that a change stays where it was made: offsets and the sizes of the data follow from the
tensors' descriptions, unless it is these that are damaged. What is written need not be a valid file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import gguf
from gguf import GGUFValueType as Kv

FORMATS = {
    Kv.UINT8: "B", Kv.INT8: "b", Kv.UINT16: "H", Kv.INT16: "h", Kv.UINT32: "I", Kv.INT32: "i", Kv.FLOAT32: "f",
    Kv.BOOL: "?", Kv.UINT64: "Q", Kv.INT64: "q", Kv.FLOAT64: "d",
}  # fmt: skip
FLOATS = (Kv.FLOAT32, Kv.FLOAT64)
INTEGERS = tuple(kind for kind in FORMATS if kind not in (*FLOATS, Kv.BOOL))
_LARGEST = 8 << 20  # bytes of tensor data written: a description that asks for more is of a file cut short


@dataclass
class Value:
    """A metadata value; an array's element type is ``element``. Texts are bytes: they need not be UTF-8."""

    kind: Kv
    value: Any
    element: Kv | None = None


@dataclass
class Tensor:
    name: bytes
    shape: list[int]
    type: int
    data: bytes
    shift: int = 0  # added to its offset


@dataclass
class File:
    keys: list[tuple[bytes, Value]]
    tensors: list[Tensor]
    version: int = 3
    more_keys: int = 0  # that the header counts and the file lacks
    more_tensors: int = 0
    tail: list[tuple[str, int, int]] = field(default_factory=list)  # changes of the bytes written

    @property
    def architecture(self) -> bytes:
        return next((v.value for k, v in self.keys if k == b"general.architecture" and v.kind == Kv.STRING), b"llama")

    @property
    def alignment(self) -> int:
        found = next((v.value for k, v in self.keys if k == b"general.alignment"), 32)
        return found if isinstance(found, int) and 0 < found <= 1 << 20 else 32

    def bytes(self) -> bytes:
        out = [b"GGUF", struct.pack("<I", self.version)]
        out += [_pack(Kv.UINT64, len(self.tensors) + self.more_tensors)]
        out += [_pack(Kv.UINT64, len(self.keys) + self.more_keys)]
        for name, value in self.keys:
            out += [_text(name), struct.pack("<I", value.kind), _value(value)]
        offset, data = 0, []
        for t in self.tensors:
            block, size = block_of(t.type)
            count = 1
            for n in t.shape:
                count *= max(n, 0)
            need = count // block * size
            out += [_text(t.name), struct.pack("<I", len(t.shape)), *(_pack(Kv.INT64, n) for n in t.shape)]
            out += [struct.pack("<I", t.type & 0xFFFFFFFF), _pack(Kv.UINT64, offset + t.shift)]
            pad = -need % self.alignment
            if offset + need <= _LARGEST:
                repeats = need // len(t.data) + 1 if t.data else 1
                data.append((t.data or bytes(need)) * repeats if len(t.data) != need else t.data)
                data[-1] = data[-1][:need] + bytes(pad)
            offset += need + pad
        head = b"".join(out)
        head += bytes(-len(head) % self.alignment)
        whole = bytearray(head + b"".join(data))
        for what, a, b in self.tail:
            if what == "cut":
                del whole[a % (len(whole) + 1) :]
            elif whole:  # a byte of the head or, "data", of all
                whole[a % (len(head) if what == "head" else len(whole)) % len(whole)] = b
        return bytes(whole)


def block_of(kind: int) -> tuple[int, int]:
    """Weights and bytes of a block of a ggml type."""
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        return 1, 4


def _pack(kind: Kv, value: Any) -> bytes:
    if kind in FLOATS:
        try:
            return struct.pack("<" + FORMATS[kind], float(value))
        except (OverflowError, ValueError, TypeError):
            return struct.pack("<" + FORMATS[kind], float("inf"))
    if kind == Kv.BOOL:
        return bytes([int(bool(value))])
    size = struct.calcsize(FORMATS[kind])
    try:
        number = int(value)
    except (OverflowError, ValueError, TypeError):
        number = 0
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _text(value: bytes) -> bytes:
    return _pack(Kv.UINT64, len(value)) + value


def _scalar(kind: Kv, value: Any) -> bytes:
    if kind == Kv.STRING:
        return _text(value if isinstance(value, bytes) else str(value).encode())
    return _pack(kind, value) if kind in FORMATS else b""


def _value(v: Value) -> bytes:
    if v.kind != Kv.ARRAY:
        return _scalar(v.kind, v.value)
    element = Kv.UINT8 if v.element is None else v.element
    return struct.pack("<I", element) + _pack(Kv.UINT64, len(v.value)) + b"".join(_scalar(element, x) for x in v.value)


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: Kv) -> Any:
        form = "<" + FORMATS[kind]
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.data, self.at - struct.calcsize(form))[0]

    def text(self) -> bytes:
        size = self.number(Kv.UINT64)
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, kind: Kv) -> Any:
        return self.text() if kind == Kv.STRING else self.number(kind)


def parse(data: bytes) -> File:
    """The parts of a valid file."""
    c = _Cursor(data)
    c.at = 8
    n_tensors, n_keys = c.number(Kv.UINT64), c.number(Kv.UINT64)
    keys: list[tuple[bytes, Value]] = []
    for _ in range(n_keys):
        name, kind = c.text(), Kv(c.number(Kv.UINT32))
        if kind == Kv.ARRAY:
            element = Kv(c.number(Kv.UINT32))
            keys.append((name, Value(kind, [c.scalar(element) for _ in range(c.number(Kv.UINT64))], element)))
        else:
            keys.append((name, Value(kind, c.scalar(kind))))
    described = []
    for _ in range(n_tensors):
        name = c.text()
        shape = [c.number(Kv.INT64) for _ in range(c.number(Kv.UINT32))]
        described.append((name, shape, c.number(Kv.UINT32), c.number(Kv.UINT64)))
    file = File(keys, [])
    start = c.at + -c.at % file.alignment
    for name, shape, kind, offset in described:
        block, size = block_of(kind)
        count = 1
        for n in shape:
            count *= n
        file.tensors.append(Tensor(name, shape, kind, data[start + offset : start + offset + count // block * size]))
    return file


def differences(before: File, after: File) -> list[str]:
    """What was changed, for people."""
    old, new = dict(before.keys), dict(after.keys)
    out = [f"key {k!r}: gone" for k in old if k not in new]
    out += [f"key {k!r}: {v}" for k, v in new.items() if old.get(k) != v]
    if len(new) != len(after.keys):
        out.append("a key twice")
    was = {t.name: t for t in before.tensors}
    out += [f"tensor {name!r}: gone" for name in was if name not in {t.name for t in after.tensors}]
    for t in after.tensors:
        o = was.get(t.name, Tensor(b"", [], 0, b""))
        if (o.shape, o.type, o.shift) != (t.shape, t.type, t.shift):
            out.append(f"tensor {t.name!r}: {o.shape} of type {o.type} -> {t.shape} of type {t.type}, shift {t.shift}")
        elif o.data != t.data:
            out.append(f"tensor {t.name!r}: other data, {t.data[:16].hex()}...")
    out += [f"{what} {a} {b}" for what, a, b in after.tail]
    header = (after.version, after.more_keys, after.more_tensors)
    return [text[:300] for text in out] + ([f"header {header}"] if header != (3, 0, 0) else [])
