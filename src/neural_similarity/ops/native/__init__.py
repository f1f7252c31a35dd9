"""The loops of `columns` in C, compiled for this machine when they are first used.

One small file without torch's headers: it compiles in a second, and the library is kept in the
user's cache folder for the next process. Threads are those of torch's own OpenMP.
"""

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from neural_similarity.ops.columns import Wanted
from neural_similarity.ops.window import Window

MOST_TAPS = 64
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
_SOURCES = ("columns.c", "element.h")
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Compiled:
    """`columns.Mixing` by a kernel of `columns.c`, "scale" or "mix"."""

    mirrors = False

    def __init__(self, kernel: str):
        self.kernel = kernel

    def mix(
        self, window: Window, padded: Tensor, m: Tensor, columns: Tensor, scratch: Tensor
    ) -> None:
        """`Mixing.mix`."""
        _run(self.kernel, window, padded, m, columns, None, None, None)

    def derive(
        self,
        window: Window,
        padded: Tensor,
        m: Tensor,
        grad: Tensor,
        wanted: Wanted,
        scratch: Tensor,
    ) -> None:
        """`Mixing.derive`."""
        _run(self.kernel, window, padded, m, wanted.columns, grad, wanted.padded, wanted.m)


class _Frame(ctypes.Structure):
    _fields_ = (
        ("images", ctypes.c_int64),
        ("out", ctypes.c_int64 * 3),
        ("image", ctypes.c_int64),
        ("step", ctypes.c_int64 * 3),
        *((name, ctypes.c_int64) for name in ("taps", "channels", "blocks", "threads")),
        ("offset", ctypes.c_int64 * MOST_TAPS),
    )


def declines(x: Tensor, taps: int) -> str | None:
    """Why the compiled loops cannot take `x` and a kernel of so many taps, or None."""
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}, not on the CPU"
    if x.dtype not in _TYPES:
        return f"the input is {x.dtype}, neither float32 nor bfloat16"
    if taps > MOST_TAPS:
        return f"the kernel has {taps} taps, more than {MOST_TAPS}"
    return None if isinstance(_library(), ctypes.CDLL) else str(_library())


def _run(kernel: str, window: Window, padded: Tensor, m: Tensor, *rest: Tensor | None) -> None:
    """Call a kernel.

    `rest` are columns, their gradient, and the gradients of `padded` and `m`. `padded` is a view
    whose last two dimensions are contiguous, and so is its gradient, of the same strides.
    """
    function = getattr(_library(), f"{kernel}_positions_{_TYPES[padded.dtype]}")
    tensors = (padded, m, *rest)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    function(ctypes.byref(_frame(window, padded, m)), *map(ctypes.c_void_p, pointers))


def _frame(window: Window, padded: Tensor, m: Tensor) -> _Frame:
    sizes = padded.shape[1:-1]
    output = window._replace(padding=(0,) * len(sizes)).output_size(sizes)
    flat = 3 - len(sizes)
    strides = padded.stride()[1:-1]
    steps = [s * stride for s, stride in zip(window.stride, strides, strict=True)]
    frame = _Frame(
        images=padded.shape[0],
        out=(ctypes.c_int64 * 3)(*[1] * flat, *output),
        image=padded.stride(0),
        step=(ctypes.c_int64 * 3)(*[0] * flat, *steps),
        taps=window.taps,
        channels=padded.shape[-1],
        blocks=m.shape[1],
        threads=torch.get_num_threads(),
    )
    for i, offset in enumerate(window.tap_offsets(strides)):
        frame.offset[i] = offset
    return frame


@cache
def _library() -> ctypes.CDLL | str:
    """The compiled library, or why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "there is no C compiler (cc, gcc or clang)"
    sources = [(Path(__file__).parent / name).read_bytes() for name in _SOURCES]
    machine = " ".join((compiler, platform.machine(), _processor(), *_FLAGS)).encode()
    key = hashlib.sha256(b"\0".join((*sources, machine))).hexdigest()[:20]
    path = _cache_folder() / f"columns-{key}.so"
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
    folder = Path.home() / ".cache" / "neural_similarity"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="neural_similarity-"))


def _processor() -> str:
    """What this processor can: libraries built for it may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
