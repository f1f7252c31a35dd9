"""The C sources as a library, compiled for this machine at its first use."""

import atexit
import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from neural_similarity.files import read_bytes, sync_path
from neural_similarity.hidden import hidden_folder, remove_leftovers

log = logging.getLogger(__name__)
_FLAGS = ("-O3", "-march=native", "-fno-strict-aliasing", "-fopenmp", "-fPIC", "-shared")
_INSTEAD: dict[str, dict[str, tuple[str, ...]]] = {
    "Darwin x86_64": {"-fopenmp": ("-Xclang", "-fopenmp")},
    "Darwin arm64": {"-fopenmp": ("-Xclang", "-fopenmp"), "-march=native": ("-mcpu=native",)},
}
"""Replacements for some of the flags on other systems: Apple's clang has its own names."""
_SUFFIX = ".dylib" if platform.system() == "Darwin" else ".so"
_NAME = "operators"
"""What names in the cache begin with; the name of unfinished work there."""
_COMPILERS = ("cc", "gcc")
"""Tried in this order, after CC's compiler; `cc` may be one without GCC's extensions."""
_SECONDS = 600
"""Limit for a compiler; it takes seconds, or minutes if many processes wait for a core."""
_SOURCES = (
    "operators.c", "element.h", "fold.h", "grouped.h", "layer.h", "passes.h", "pointwise.h",
    "pooled.h", "product.h", "vector.h",
)  # fmt: skip


@cache
def load_library() -> ctypes.CDLL | str:
    """The compiled library, or why there is none; compilers that fail cause one warning."""
    if os.name != "posix":
        return "the C code needs Linux or macOS"
    commands = [_chosen_command(), *([name] for name in _COMPILERS)]
    paths = [(shutil.which(name), *words) for name, *words in filter(None, commands)]
    compilers = [(path, *words) for path, *words in paths if path]
    if not compilers:
        return "there is no C compiler (GCC, as cc, gcc or CC)"
    problems: list[str] = []
    for compiler in dict.fromkeys(compilers):
        library = _build_library(compiler)
        if isinstance(library, ctypes.CDLL):
            return library
        problems.append(library)
    reason = "; ".join(problems)
    warnings.warn(f"the dynamic operators run in their slower eager form: {reason}", stacklevel=2)
    return reason


def _chosen_command() -> list[str]:
    """The words of CC, none if it is unset or blank; warns if a shell cannot parse it."""
    chosen = os.environ.get("CC", "")
    try:
        return shlex.split(chosen)
    except ValueError as error:
        warnings.warn(
            f"CC must be the command of a C compiler, got {chosen!r}: {error}; trying "
            f"{' and '.join(_COMPILERS)}",
            stacklevel=3,
        )
        return []


def _build_library(compiler: Sequence[str]) -> ctypes.CDLL | str:
    """The library that this compiler built, now or earlier, or why it failed."""
    try:
        sources = [read_bytes(Path(__file__).parent / name) for name in _SOURCES]
    except FileNotFoundError as error:  # as in an archive
        return str(error)
    machine = " ".join(
        (*compiler, platform.machine(), _processor_features(), *_compiler_flags())
    ).encode()
    key = hashlib.sha256(b"\0".join((*sources, machine))).hexdigest()[:20]
    path = _cache_folder() / f"{_NAME}-{key}"
    remove_leftovers(path.parent, _NAME)
    library = _load_sealed(path)
    if isinstance(library, str):
        return _compile_sources(compiler, path) or _load_sealed(path)
    return library


def _load_sealed(path: Path) -> ctypes.CDLL | str:
    """The library in a file `path`-DIGEST, or why none loads; files that do not are removed.

    The digest is checked, since a truncated library, after a power cut say, would crash the
    process.
    """
    problem = "it is missing"
    sealed_name = re.compile(rf"{re.escape(path.name)}-[0-9a-f]{{64}}{re.escape(_SUFFIX)}")
    for file in filter(lambda file: sealed_name.fullmatch(file.name), path.parent.iterdir()):
        try:
            if _is_ours(file) and file == _seal_name(path, read_bytes(file)):
                return ctypes.CDLL(str(file))
            problem = f"{file} is damaged, or another user can write to it"
        except OSError as error:
            problem = str(error)
        with contextlib.suppress(OSError):
            file.unlink()
    return f"the compiled library does not load: {problem}"


def _is_ours(file: Path) -> bool:
    """Whether a file is a regular one that only this user can have written."""
    status = file.lstat()
    by_others = status.st_mode & 0o22
    return status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and not by_others


def _seal_name(path: Path, content: bytes) -> Path:
    """The path of a library's file, with the digest of its content in its name."""
    return path.with_name(f"{path.name}-{hashlib.sha256(content).hexdigest()}{_SUFFIX}")


def _seal_file(built: Path, path: Path) -> None:
    """Move a library, a file of this user alone, to the name that `_load_sealed` looks for."""
    built.chmod(0o700)
    sync_path(built)
    built.replace(_seal_name(path, read_bytes(built)))
    sync_path(path.parent)


def _compile_sources(compiler: Sequence[str], path: Path) -> str | None:
    """Compile into a file beside `path`, atomically; return the error, or None."""
    log.warning("compiling the C operators for this machine, once, which takes some seconds")
    try:
        return _call_compiler(compiler, path)
    except OSError as error:
        return f"{shlex.join(compiler)} cannot run: {error}"
    except subprocess.TimeoutExpired:
        return f"{shlex.join(compiler)} takes more than {_SECONDS} seconds"


def _call_compiler(compiler: Sequence[str], path: Path) -> str | None:
    openmp = sorted((Path(torch.__file__).parent / "lib").glob("lib[go]omp*"))
    with hidden_folder(path.with_name(_NAME)) as folder:
        built = folder / f"{_NAME}{_SUFFIX}"
        source = Path(__file__).parent / _SOURCES[0]
        error = _run_compiler(
            [*compiler, *_compiler_flags(), str(source), "-o", str(built), *map(str, openmp)]
        )
        if error is not None:
            return f"{shlex.join(compiler)} fails: {error}"
        _seal_file(built, path)
    return None


def _run_compiler(command: list[str]) -> str | None:
    """Run a compiler and its subprocesses, within a time limit; return its first error, if any."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nothing, stdout=nothing, stderr=pipe, text=True, process_group=0
    ) as process:
        try:
            lines = process.communicate(timeout=_SECONDS)[1].strip().splitlines()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if not process.returncode:
        return None
    lines = lines or [f"exit code {process.returncode}"]
    return next((line for line in lines if "error" in line), lines[-1])


def _compiler_flags() -> list[str]:
    """Options of the compiler on this machine."""
    instead = _INSTEAD.get(f"{platform.system()} {platform.machine()}", {})
    return [word for flag in _FLAGS for word in instead.get(flag, (flag,))]


def _cache_folder() -> Path:
    """The folder of compiled libraries: the user's cache, or a temporary one of this process."""
    try:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # A relative one is ignored, as https://specifications.freedesktop.org/basedir-spec has it.
        folder = (named if named.is_absolute() else Path.home() / ".cache") / "neural_similarity"
        if folder.is_symlink():  # What it leads to is another's, which must not get our mode.
            warnings.warn(
                f"compiled code stays in {folder}, which must be a folder, not a link; it is "
                "compiled again by every process until the link is removed",
                stacklevel=2,
            )
            raise NotADirectoryError(f"{folder} is a link")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():  # Who owns a folder can change what is in it.
            raise PermissionError(f"{folder} is another user's")
        folder.chmod(0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # there is no home, or nothing can be written to it
        folder = Path(tempfile.mkdtemp(prefix="neural_similarity-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _processor_features() -> str:
    """The features of this processor: a library built for them may not run on another."""
    try:
        lines = read_bytes(Path("/proc/cpuinfo")).decode("ascii", "replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
