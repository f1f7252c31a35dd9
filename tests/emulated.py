"""A pytest plugin: the compiled operators as those of another processor, run by an emulator.

EMULATED is the command of a program that `compile_for` built.
"""

import ctypes
import os
import shlex
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_similarity.ops import native

SOURCE = Path(__file__).with_suffix(".c")


def compile_for(compiler: str, options: Sequence[str], program: Path) -> None:
    """Build tests/emulated.c, which calls any of the operators' functions."""
    include = Path(native.__file__).parent
    words = [compiler, "-O3", "-fno-strict-aliasing", "-fopenmp", "-static", *options]
    subprocess.run([*words, f"-I{include}", str(SOURCE), "-o", str(program)], check=True)


def pytest_configure() -> None:
    """Call the emulator in the place of the library of this machine."""
    if command := os.environ.get("EMULATED"):
        emulated = Emulated(*shlex.split(command))
        native.load_library, native._addresses = lambda: emulated, _addresses  # type: ignore[assignment]


class Emulated(ctypes.CDLL):
    """What `native.library` returns, of functions that run as `command`.

    It needs operands as `_addresses` here gives them.
    """

    def __init__(self, *command: str):
        self.command = command

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *operands: Any) -> int:
        answer = subprocess.run(
            self.command,
            input=struct.pack("32sq", name.encode(), len(operands))
            + b"".join(map(_sent, operands)),
            capture_output=True,
            check=True,
        ).stdout
        at = 8
        for operand in operands:
            before = _bytes(operand)
            after = answer[at : at + len(before)]
            if after != before:  # Autograd counts what is written to.
                assert isinstance(operand, tuple), "a function changed its frame"
                found = torch.frombuffer(bytearray(after), dtype=torch.uint8)
                operand[0].view(-1).view(torch.uint8)[:] = found
            at += len(before)
        assert at == len(answer)
        return struct.unpack("q", answer[:8])[0]


def _addresses(
    operands: Sequence[Tensor | None], offsets: Sequence[int] = (0,)
) -> list[tuple[Tensor, int] | None]:
    """Every tensor, and the byte of it that its pointer goes to."""
    assert all(t is None or t.is_contiguous() for t in operands)
    return [
        None if t is None else (t, offset * t.element_size())
        for t, offset in zip(operands, cycle(offsets), strict=False)
    ]


def _bytes(operand: Any) -> bytes:
    """Of a tensor, or of what ctypes.byref refers to; of a number or None there are none."""
    if isinstance(operand, tuple):
        return operand[0].detach().view(-1).view(torch.uint8).numpy().tobytes()
    return bytes(operand._obj) if hasattr(operand, "_obj") else b""


def _sent(operand: Any) -> bytes:
    sent = _bytes(operand)
    if isinstance(operand, tuple):
        return struct.pack("q", len(sent)) + sent + struct.pack("q", operand[1])
    if sent:
        return struct.pack("q", len(sent)) + sent + struct.pack("q", 0)
    return struct.pack("qq", -1, operand.value if operand else 0)
