"""The dynamic operators in C, compiled for this machine when they are first used.

The sources are small and need none of torch's headers: they compile in seconds, and the library is
kept in the user's cache folder for later processes. Patches of a few positions at a time, of one
image or several, are gathered, mixed by M and multiplied with the kernel in a core's caches.
bfloat16 is multiplied by the processor's matrix unit (AMX) or dot products (AVX512-BF16) where it
has them. The threads are torch's own, of OpenMP.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle, product
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from neural_similarity.ops.native.compiling import load_library
from neural_similarity.ops.operands import Entry, Gradients, Operands
from neural_similarity.ops.tracing import runs_eagerly
from neural_similarity.ops.window import Window

MOST_TAPS = 64
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_TILE = 32
NARROW_WIDTHS = (1, 2, 4, 8, 16)
"""Numbers of channels per group that are below a tile's, and divide a vector or fill some."""
NARROW = 4
"""Groups of fewer channels that are taken one by one are faster in the eager form."""
_Count = ctypes.c_int64
_Triple = _Count * 3


class Compiled:
    """`operands.Implementation` in C, for a diagonal or a full M."""

    def __init__(self, *, full: bool):
        self.full = full

    def forward(self, given: Operands) -> Tensor:
        x, weight, m, *_ = given
        output = given.output_size
        maps, kernel = _channels_last(x), _rows_by_tap(weight).contiguous()
        matrices = _positions_first(m, len(output)).contiguous()
        y = x.new_empty(x.shape[0], *output, weight.shape[0])
        for group in self._group_operands(given, maps, matrices, kernel, y):
            group.call_native("forward", maps, matrices, kernel, y, None)
        return given.in_format(y.movedim(-1, 1))

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        x, weight, m, *_ = given
        dims = x.dim() - 2
        results = given.empty_gradients(needs)
        matrices, kernel = _positions_first(m, dims).contiguous(), _rows_by_tap(weight).contiguous()
        operands = _channels_last(x), matrices, kernel, _channels_last(grad)
        grad_maps = _output_memory(results[0].movedim(1, -1)) if needs[0] else None
        grad_kernel = _output_memory(_rows_by_tap(results[1])) if needs[1] else None
        grad_matrices = _output_memory(_positions_first(results[2], dims)) if needs[2] else None
        for group in self._group_operands(given, *operands):
            group.call_native("backward", *operands, grad_maps, grad_matrices, grad_kernel)
        if grad_maps is not None:
            _copy_unless_same(results[0], grad_maps.movedim(-1, 1))
        if grad_kernel is not None:
            _copy_unless_same(results[1], grad_kernel.mT.unflatten(-1, weight.shape[2:]))
        if grad_matrices is not None:
            _copy_unless_same(
                results[2], grad_matrices.movedim(tuple(range(1, 1 + dims)), tuple(range(-dims, 0)))
            )
        return results

    def _group_operands(self, given: Operands, *laid_out: Tensor) -> "list[Group]":
        """Every group, for operands in the layout that `Group` describes."""
        shapes, threads = tuple(map(attrgetter("shape"), laid_out)), torch.get_num_threads()
        together = takes_together(*_call_of(given))
        groups = 1 if together else given.groups
        arguments = shapes, given.x.dtype, threads, together
        return [
            _cached_group(self.full, given.window, (number, groups), *arguments)
            for number in range(groups)
        ]


def takes_together(
    kernel: Sequence[int], groups: int, dtype: torch.dtype, one_m: bool = True
) -> bool:
    """Whether C takes all groups in one call.

    It does where they share one M and have 1, 2, 4, 8 or 16 channels and as many filters each. A
    single such group counts in float32 only: in bfloat16, products of matrices are faster.
    """
    several, each = groups > 1 or dtype == torch.float32, kernel[1]
    return one_m and several and kernel[0] == groups * each and each in NARROW_WIDTHS


def suits_groups(
    kernel: Sequence[int], groups: int, dtype: torch.dtype, one_m: bool = True
) -> bool:
    """Whether C is faster than the eager form."""
    return groups == 1 or kernel[1] >= NARROW or takes_together(kernel, groups, dtype, one_m)


def _call_of(given: Operands) -> tuple[Sequence[int], int, torch.dtype, bool]:
    """Kernel, groups, type and whether one M is shared, as the two functions above take them."""
    return given.weight.shape, given.groups, given.x.dtype, given.m.shape[1] == 1


class Frame(ctypes.Structure):
    _fields_ = (
        ("images", _Count),
        *((name, _Triple) for name in ("input", "output", "stride")),
        ("tap", _Triple * MOST_TAPS),
        *((name, _Count) for name in ("taps", "channels", "filters", "blocks", "full")),
        *((name, _Count) for name in ("depth", "width", "image", "x_pixel", "y_pixel", "m")),
        *((name, _Count) for name in ("accumulate", "threads", "group", "row_taps")),
    )


class Group:
    """One group of a grouped operator: its frame, and where its share of every operand begins.

    `together`: it stands for all groups, see `takes_together`.

    The shapes are those of maps (n, *size, c), M (n, *out, b, *taps), kernel (o, K, c/groups) and
    y (n, *out, o).
    """

    def __init__(
        self,
        full: bool,
        window: Window,
        place: tuple[int, int],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype,
        threads: int,
        together: bool,
    ):
        maps, matrices, kernel, y = shapes
        number, groups = place
        filters, channels = kernel[0] // groups, maps[-1] // groups
        # Blocks and groups are both consecutive channels, and one count divides the other: a group
        # has several blocks, or several groups share a block, the group's first one here.
        blocks = matrices[len(maps) - 1]
        block = number * blocks // groups
        entries = window.taps ** (2 if full else 1)
        self._suffix = _TYPES[dtype]
        kernels = number * filters * window.taps * channels
        # Elements before this group's share of maps, M, kernel and y, in the order of operands.
        self._offsets = number * channels, block * entries, kernels, number * filters
        self.frame = frame_of(
            window,
            maps,
            y[1:-1],
            threads,
            channels=channels,
            filters=filters,
            blocks=max(1, blocks // groups),
            full=full,
            depth=_full_size(window.taps * channels),
            width=_full_size(filters),
            y_pixel=y[-1],
            m=blocks * entries,
            # A block that the group before had too: its gradient is added to, not written.
            accumulate=block == (number - 1) * blocks // groups,
            group=kernel[2] if together else 0,
            # Taps of a kernel row that see adjacent pixels; 0 where C must not read them at once.
            row_taps=window.kernel_size[-1] * (groups == blocks == window.dilation[-1] == 1),
        )

    def call_native(self, name: str, *operands: Tensor | None) -> None:
        """Run the C function `name` on this group's part of maps, M, kernel, y and gradients.

        Raises:
            MemoryError: its work space cannot be allocated.
        """
        function = getattr(load_library(), f"{name}_{self._suffix}")
        if function(ctypes.byref(self.frame), *_addresses(operands, self._offsets)):
            raise MemoryError(f"the compiled operators ran out of memory in {name}")


def find_function(name: str, dtype: torch.dtype) -> Any:
    """The C function `name` for maps of this type."""
    return getattr(load_library(), f"{name}_{_TYPES[dtype]}")


_cached_group = lru_cache(maxsize=512)(Group)


def frame_of(
    window: Window, maps: Sequence[int], output: Sequence[int], threads: int, **others: int
) -> Frame:
    """The frame of a window over maps (n, *size, c), and what else an operator needs there."""
    frame = Frame(
        images=maps[0],
        input=_three_sizes(maps[1:-1], 1),
        output=_three_sizes(output, 1),
        stride=_three_sizes(window.stride, 1),
        taps=window.taps,
        image=prod(maps[1:]),
        x_pixel=maps[-1],
        threads=threads,
        **{"channels": maps[-1]} | others,
    )
    # Tap (i, j) of output position p reads input position stride·p + (i, j)·dilation - padding.
    steps = product(*map(range, window.kernel_size))
    for tap, step in zip(frame.tap, steps, strict=False):
        geometry = zip(step, window.dilation, window.padding, strict=True)
        tap[:] = _three_sizes([i * d - p for i, d, p in geometry], 0)
    return frame


def declines_native(x: Tensor, taps: int) -> str | None:
    """Why the compiled operators cannot take `x` and a kernel of `taps` taps, or None."""
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}, not on the CPU"
    if x.dtype not in _TYPES:
        return f"the input is {x.dtype}, neither float32 nor bfloat16"
    if taps > MOST_TAPS:
        return f"the kernel has {taps} taps, more than {MOST_TAPS}"
    return None if isinstance(load_library(), ctypes.CDLL) else str(load_library())


def takes_kernel(kernel: Tensor, m: Tensor, dtype: torch.dtype) -> bool:
    """Whether `fold_kernel` takes a kernel (o, c, K) and M (K, K), for this type of W M."""
    square = m.shape[0] == m.shape[1] == kernel.shape[-1] <= MOST_TAPS
    return (
        square
        and kernel.dtype == m.dtype == torch.float32
        and dtype in _TYPES
        and runs_eagerly(kernel)
        and declines_native(kernel, 1) is None
        and type(m) is Tensor
    )


def fold_kernel(kernel: Tensor, m: Tensor, dtype: torch.dtype) -> Tensor:
    """W M for W (o, c, K) and M (K, K), in W's memory format.

    `takes_kernel` must be True.
    """
    folded, kernel = empty_folded(kernel, m, dtype), _dense_kernel(kernel)
    _call_on_kernel("fold", kernel, dtype, kernel, m.contiguous(), folded)
    return folded


def fold_gradients(
    grad: Tensor, kernel: Tensor, m: Tensor, needs: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """The gradients of W and M, from that of W M; uninitialised where `needs` leaves one out."""
    kernel, m = _dense_kernel(kernel), m.contiguous()
    dense = empty_folded(kernel, m, grad.dtype)
    if grad.stride() != dense.stride():
        grad = dense.copy_(grad)
    results = of_kernel, of_m = empty_folded(kernel, m, kernel.dtype), torch.empty_like(m)
    wanted = (result if need else None for result, need in zip(results, needs, strict=True))
    if _call_on_kernel("fold_backward", kernel, grad.dtype, kernel, m, grad, *wanted):
        raise MemoryError("the compiled operators ran out of memory in fold_backward")
    return of_kernel, of_m


def empty_folded(kernel: Tensor, _m: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised kernel (o, c, K), in the kernel's memory format."""
    filters, channels, taps = kernel.shape
    if kernel.mT.is_contiguous() and not kernel.is_contiguous():
        return kernel.new_empty(filters, taps, channels, dtype=dtype).mT
    return kernel.new_empty(filters, channels, taps, dtype=dtype)


def _dense_kernel(kernel: Tensor) -> Tensor:
    """A kernel (o, c, K) whose taps, or whose channels, are adjacent, and without gaps."""
    return kernel if kernel.mT.is_contiguous() else kernel.contiguous()


def _call_on_kernel(name: str, kernel: Tensor, dtype: torch.dtype, *operands: Tensor | None) -> int:
    """Call a C function of a dense kernel (o, c, K)."""
    sizes = map(_Count, (*kernel.shape, not kernel.is_contiguous(), torch.get_num_threads()))
    return find_function(name, dtype)(*sizes, *_addresses(operands))


def _channels_last(maps: Tensor) -> Tensor:
    """(n, c, *size) as contiguous (n, *size, c)."""
    return maps.movedim(1, -1).contiguous()


def _rows_by_tap(weight: Tensor) -> Tensor:
    """(o, c, *kernel) as (o, K, c)."""
    return weight.flatten(2).mT


def _positions_first(m: Tensor, dims: int) -> Tensor:
    """(n, b, *taps, *out) as (n, *out, b, *taps)."""
    return m.movedim(tuple(range(-dims, 0)), tuple(range(1, 1 + dims)))


def _output_memory(result: Tensor) -> Tensor:
    """Memory to compute `result` in: its own if it is contiguous, else new."""
    if result.is_contiguous():
        return result
    return torch.empty_like(result, memory_format=torch.contiguous_format)


def _copy_unless_same(result: Tensor, computed: Tensor) -> None:
    """Copy, unless the result was written in place."""
    if result.data_ptr() != computed.data_ptr():
        result.copy_(computed)


def _three_sizes(sizes: Sequence[int], missing: int) -> ctypes.Array[ctypes.c_int64]:
    return _Triple(*[missing] * (3 - len(sizes)), *sizes)


def _full_size(size: int) -> int:
    return -(-size // _TILE) * _TILE


def _addresses(
    operands: Sequence[Tensor | None], offsets: Sequence[int] = (0,)
) -> list[ctypes.c_void_p | None]:
    """The addresses of tensors' elements `offsets`, which are repeated."""
    return [
        None if t is None else ctypes.c_void_p(t.data_ptr() + offset * t.element_size())
        for t, offset in zip(operands, cycle(offsets), strict=False)
    ]


ENTRY = Entry(
    "compiled",
    declines_native,
    lambda full: Compiled(full=full),
    lambda given: suits_groups(*_call_of(given)),
)
