"""Files of safetensors forged in every field: of the header, and of every tensor."""

import json
import struct

import torch
from safetensors.torch import load, save

WRONG = [
    None, True, -1, 0.5, 2**70, float("nan"), "", "x", "\x1b[2J\x07\0\u202e", [], [[]], [2**40] * 2,
    [0, 10**12], [324, 0], [-1, 4], {}, {"x": 1}, "F31", "F4", "I8", "C64", ["x"] * 1000,
]  # fmt: skip
"""Values in place of those of the header."""
RAW = [b"", b"{", b"[]", b"null", b"\xff" * 16, b"[" * 100_000]
"""Whole headers."""
TENSORS = {
    "longer": lambda t: torch.cat([t, t[:1]]) if t.dim() else t.reshape(1),
    "flat": lambda t: t.reshape(1, -1, 1),
    "empty": lambda t: t.reshape(-1)[:0],
    "complex": lambda t: t.to(torch.complex64),
    "integers": lambda t: t.to(torch.int32 if t.is_floating_point() else torch.float32),
    "not a number": lambda t: t * float("nan"),
    "infinite": lambda t: t / 0,
    "infinite in eight bits": lambda t: torch.full_like(t, torch.inf, dtype=torch.float8_e5m2),
}
"""Changes of a tensor that leave none that fits."""


def split_header(content):
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(header, rest):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + rest


def forged_headers(content):
    """Contents with one value of the header changed, of all entries and their fields."""
    header, rest = split_header(content)
    for raw in RAW:
        yield with_header(raw, rest)
    for name, entry in header.items():
        for value in WRONG:
            yield with_header(header | {name: value}, rest)
            for field in entry:
                yield with_header(header | {name: entry | {field: value}}, rest)


def cut_contents(content):
    """Contents that are too short or too long, or of another format."""
    yield from (b"", content[:7], content[:100], content[:-1], content + b"\0", bytes(1000))
    yield from (b"PK\x03\x04" + bytes(100), struct.pack("<Q", 2**63) + content[8:])


def forged_tensors(content):
    """What was done, and contents in which one tensor does not fit, is missing or has no place."""
    tensors, metadata = load(content), split_header(content)[0].get("__metadata__")
    for name, tensor in tensors.items():
        for kind, change in TENSORS.items():
            changed = {**tensors, name: change(tensor).contiguous()}
            yield f"{name} {kind}", save(changed, metadata)
        others = {other: t for other, t in tensors.items() if other != name}
        yield f"{name} missing", save(others, metadata)
        yield f"{name} renamed", save({**others, "\x1b[2J": tensor}, metadata)
