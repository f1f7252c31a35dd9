"""The C sources as a library, compiled for this machine at its first use."""

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

_FLAGS = ("-O3", "-march=native", "-fno-strict-aliasing", "-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("cc", "gcc")
"""Tried in this order, after what CC names; `cc` may be another one, which lacks what GCC has."""
_SOURCES = ("operators.c", "batch_norm.h", "element.h", "product.h", "vector.h")


@cache
def library() -> ctypes.CDLL | str:
    """The compiled library, or why there is none."""
    names = (os.environ.get("CC", ""), *_COMPILERS)
    compilers = [path for name in names if (path := shutil.which(name))]
    if not compilers:
        return "there is no C compiler (GCC, as cc, gcc or CC)"
    problems: list[str] = []
    for compiler in compilers:
        library = _built(compiler)
        if isinstance(library, ctypes.CDLL):
            return library
        problems.append(library)
    return "; ".join(problems)


def _built(compiler: str) -> ctypes.CDLL | str:
    """The library by a compiler, or why it has none."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in _SOURCES]
    machine = " ".join((compiler, platform.machine(), _processor(), *_FLAGS)).encode()
    key = hashlib.sha256(b"\0".join((*sources, machine))).hexdigest()[:20]
    path = _cache_folder() / f"operators-{key}.so"
    if not path.exists():
        error = _compile(compiler, path)
        if error is not None:
            return error
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        return f"the compiled library does not load: {error}"


def _compile(compiler: str, path: Path) -> str | None:
    """Compile into a file that appears at `path` whole; what went wrong, or None."""
    try:
        return _call_compiler(compiler, path)
    except OSError as error:
        return f"{compiler} cannot run: {error}"


def _call_compiler(compiler: str, path: Path) -> str | None:
    openmp = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        source = Path(__file__).parent / _SOURCES[0]
        command = [compiler, *_FLAGS, str(source), "-o", str(built), *map(str, openmp)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
            return f"{compiler} fails: {lines[-1]}"
        built.replace(path)
    return None


def _cache_folder() -> Path:
    """Where compiled libraries stay: the user's cache, or a temporary folder of this process."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "neural_similarity"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # there is no home, or nothing can be written to it
        folder = Path(tempfile.mkdtemp(prefix="neural_similarity-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _processor() -> str:
    """What this processor can: libraries built for it may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
