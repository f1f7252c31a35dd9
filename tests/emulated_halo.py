"""The halo kernels on a CPU, in the place of CUDA's driver: tests/emulated_halo.cpp runs them."""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch

from neural_similarity.ops.halo import compiling, driver

SOURCES = Path(compiling.__file__).parent
PROGRAM = Path(__file__).with_suffix(".cpp")
needs_gxx = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"), reason="needs Linux and g++"
)
GUARD = 2**16
"""Bytes around every tensor that nothing may write to."""


class Emulator:
    """`driver.launch_kernel`; kernels are compiled in a folder, from changed sources if `changes`.

    `changes` maps a file to what is replaced in it; `copied` has the bytes that the last run of
    each kernel copied from tensors to shared memory.
    """

    def __init__(self, folder: Path, changes: Mapping[str, tuple[str, str]] | None = None):
        self.folder, self.backwards, self.copied = folder, False, {}
        self.load = cache(self._compile)
        for file in SOURCES.glob("*.cu*"):
            text = file.read_text("utf-8")
            if file.name in (changes or {}):
                old, new = changes[file.name]
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            (folder / file.name).write_text(text, "utf-8")

    def __call__(self, name, definitions, grid, threads, shared_bytes, arguments):
        """Run a kernel; an error if it breaks a rule or writes beyond its tensors."""
        guarded = {i: _guard(t) for i, t in enumerate(arguments) if isinstance(t, torch.Tensor)}
        inner = [_inside(guarded[i]) if i in guarded else one for i, one in enumerate(arguments)]
        library = self.load(name, definitions)
        before = library.copied_bytes()
        problem = library.run(
            *grid, threads, shared_bytes, driver.argument_pointers(inner), self.backwards
        )
        if problem:
            raise RuntimeError(problem.decode())
        self.copied[name] = library.copied_bytes() - before
        for i, memory in guarded.items():
            assert torch.cat([memory[:GUARD], memory[-GUARD:]]).eq(0xFF).all(), f"beyond {i}"
            arguments[i].flatten().view(torch.uint8)[:] = _inside(memory)

    def _compile(self, name, definitions):
        library = self.folder / f"{'-'.join([name, *definitions])}.so"
        words = ["g++", "-std=c++20", "-O2", "-w", "-shared", "-fPIC", f"-I{self.folder}"]
        words += [f"-D{definition}" for definition in definitions]
        words += [f'-DSOURCE="{name}.cu"', f"-DNAME={name}", str(PROGRAM), "-o", str(library)]
        subprocess.run(words, check=True, capture_output=True, text=True)
        loaded = ctypes.CDLL(str(library))
        loaded.run.restype, loaded.copied_bytes.restype = ctypes.c_char_p, ctypes.c_long
        return loaded


def _guard(tensor):
    """The bytes of a dense tensor between two guards."""
    assert tensor.is_contiguous()
    content = tensor.detach().flatten().view(torch.uint8)
    guard = torch.full((GUARD,), 0xFF, dtype=torch.uint8)
    return torch.cat([guard, content, guard])


def _inside(memory):
    return memory[GUARD:-GUARD]
