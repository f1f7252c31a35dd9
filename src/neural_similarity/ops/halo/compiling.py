"""The kernels as code for a GPU, by NVRTC, the compiler among torch's own packages for CUDA.

A kernel is compiled for its numbers of channels and its type when it is first used, in a second or
two, and kept in the cache of compiled code.
"""

import ctypes
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from neural_similarity.files import hidden_folder, new_file, read_bytes
from neural_similarity.ops.native.compiling import UNFINISHED, load_cached, seal_file

ARCHITECTURE = "sm_90a"
HEADERS = (
    *("device.cuh", "tile.cuh", "weights.cuh", "taps.cuh", "mixing.cuh", "full_tiles.cuh"),
    *("weight_tiles.cuh", "last.cuh"),
)
_SUFFIX = ".cubin"
_FOLDER = Path(__file__).parent


@cache
def load_compiler() -> ctypes.CDLL | str:
    """NVRTC, or why there is none."""
    try:
        return _open_compiler()
    except OSError as error:
        return f"NVRTC, the compiler of torch's packages for CUDA, does not load: {error}"


def _open_compiler() -> ctypes.CDLL:
    """NVRTC of torch's packages, or else the system's."""
    for folder in sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib")):
        for library in folder.glob("libnvrtc.so.*"):
            for part in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # NVRTC opens it by its name alone
            return ctypes.CDLL(str(library))
    return ctypes.CDLL(f"libnvrtc.so.{(torch.version.cuda or '13').partition('.')[0]}")


@cache
def kernel_code(name: str, definitions: tuple[str, ...]) -> bytes:
    """The machine code of a kernel, from the cache or compiled now.

    Raises:
        RuntimeError: there is no compiler, or it fails.
    """
    compiler = load_compiler()
    if isinstance(compiler, str):
        raise RuntimeError(compiler)
    texts = [read_bytes(_FOLDER / file) for file in (f"{name}.cu", *HEADERS)]
    version = ctypes.c_int(), ctypes.c_int()
    _call_nvrtc(compiler, "Version", *map(ctypes.byref, version))
    words = f"{[number.value for number in version]} {ARCHITECTURE} {definitions}".encode()
    key = hashlib.sha256(b"\0".join((*texts, words))).hexdigest()[:20]

    def build(path: Path) -> None:
        with hidden_folder(path.with_name(UNFINISHED)) as folder:
            built = folder / f"kernel{_SUFFIX}"
            with new_file(built) as file:
                file.write(compile_kernel(compiler, texts, definitions))
            seal_file(built, path)

    code = load_cached(f"halo-{key}", _SUFFIX, read_bytes, build)
    if isinstance(code, str):
        raise RuntimeError(code)
    return code


def compile_kernel(
    compiler: ctypes.CDLL, texts: Sequence[bytes], definitions: Sequence[str]
) -> bytes:
    """The machine code of a source and the `HEADERS` that it includes.

    Raises:
        RuntimeError: the compiler fails; the message is what it says.
    """
    count, program = len(HEADERS), ctypes.c_void_p()
    source, *headers = texts
    names = (ctypes.c_char_p * count)(*(name.encode() for name in HEADERS))
    _call_nvrtc(
        compiler, "CreateProgram", ctypes.byref(program), source, b"kernel.cu", count,
        (ctypes.c_char_p * count)(*headers), names,
    )  # fmt: skip
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17"]
    options += [f"--define-macro={definition}" for definition in definitions]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        failed = compiler.nvrtcCompileProgram(program, len(options), words)
        if failed:
            raise RuntimeError(
                _compiled_bytes(compiler, "ProgramLog", program).decode(errors="replace")
            )
        return _compiled_bytes(compiler, "CUBIN", program)
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _compiled_bytes(compiler: ctypes.CDLL, name: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call_nvrtc(compiler, f"Get{name}Size", program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    _call_nvrtc(compiler, f"Get{name}", program, content)
    return content.raw


def _call_nvrtc(compiler: ctypes.CDLL, name: str, *arguments: object) -> None:
    if code := getattr(compiler, f"nvrtc{name}")(*arguments):
        raise RuntimeError(f"NVRTC's {name} fails with code {code}")
