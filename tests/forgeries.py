"""Files forged in every field of JSON and in every tensor."""

import copy
import json
import struct

import torch
from safetensors.torch import load, save

GONE = object()
DEEP = json.loads("[" * 900 + "]" * 900)
VALUES = [
    GONE, None, True, 0, -1, 2**70, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\ud800",
    "\x00\x1b[2J\x07\u202e<b>$\\frac$", [], [[]], [1, 2], ["x", "x"], {}, {"x": 1}, DEEP,
    "../../x", "Static({[]:1})", "(" * 300,
]  # fmt: skip
BYTES = [
    b"", b"\n", b"null", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", b"\x00" * 100, b"\xff\xfe\n",
    b'"x"\n', b'{"steps": ' + b"9" * 5000 + b"}\n", b"{\n", b"1e999\n", b"9" * 5000,
]  # fmt: skip


def places_in(value, depth=3):
    """The path of every part of a value; of lists, to the first item."""
    yield ()
    if depth and isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else [0]:
            yield from ((key, *rest) for rest in places_in(value[key], depth - 1))


def changed(value, place, other):
    """The value with another one at a place."""
    if not place:
        return other
    value = copy.copy(value)
    key, *rest = place
    if not rest and other is GONE:
        del value[key]
    else:
        value[key] = changed(value[key], rest, other)
    return value


def forged_json(file):
    """What can be in a file in place of its content."""
    yield from BYTES
    text = file.read_text()
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    first, *others = (json.loads(line) for line in lines)
    for place in places_in(first):
        for other in VALUES:
            if place or other is not GONE:
                found = [changed(first, place, other), *others]
                yield "".join(json.dumps(value) + "\n" for value in found).encode()


NUMBERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float8_e5m2]


def with_last(value, dtype):
    """A tensor whose last number is another."""
    return lambda t: torch.cat([t.flatten()[:-1], torch.tensor([value])]).view_as(t).to(dtype)


TENSORS = {
    "longer": lambda t: torch.cat([t, t[:1]]) if t.dim() else t.reshape(1),
    "flat": lambda t: t.reshape(1, -1, 1),
    "empty": lambda t: t.reshape(-1)[:0],
    "deeper": lambda t: t[None],
    "one number": lambda t: t.sum() if t.dim() else t.reshape(1),
    "complex": lambda t: t.to(torch.complex64),
    **{f"of type {d}": lambda t, d=d: t.to(d) for d in (*NUMBERS, torch.bool)},
    **{
        f"not finite: {value} in {dtype}": with_last(value, dtype)
        for value in (torch.nan, torch.inf, -torch.inf)
        for dtype in FLOATS
    },
}
"""Changes of a tensor that leave none that fits."""


def forged_tensors(content):
    """What was done, and contents in which one tensor does not fit, is missing or has no place."""
    (size,) = struct.unpack("<Q", content[:8])
    tensors, metadata = load(content), json.loads(content[8 : 8 + size]).get("__metadata__")
    for name, tensor in tensors.items():
        for kind, change in TENSORS.items():
            if kind != f"of type {tensor.dtype}":
                changed = {**tensors, name: change(tensor).contiguous().clone()}
                yield f"{name} {kind}", save(changed, metadata)
        others = {other: t for other, t in tensors.items() if other != name}
        yield f"{name} missing", save(others, metadata)
        yield f"{name} renamed", save({**others, "\x1b[2J": tensor}, metadata)
