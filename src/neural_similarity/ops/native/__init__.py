"""The dynamic operators in C, compiled for this machine when they are first used.

Small files without torch's headers: they compile in seconds, and the library is kept in the
user's cache folder for the next process. Patches of a few positions at a time are gathered, mixed
by M and multiplied with the kernel while they are in a core's first cache. bfloat16 is multiplied
by the processor's matrix unit (AMX) or dot products (AVX512-BF16) where it has them. Threads are
those of torch's own OpenMP.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from neural_similarity.ops.native.compiling import library
from neural_similarity.ops.operands import Gradients, Operands
from neural_similarity.ops.tracing import unwatched
from neural_similarity.ops.window import Window

MOST_TAPS = 64
_TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_TILE = 32
_Count = ctypes.c_int64
_Triple = _Count * 3


class Compiled:
    """`operands.Implementation` in C, of a diagonal or a full M."""

    def __init__(self, *, full: bool):
        self.full = full

    def forward(self, given: Operands) -> Tensor:
        """`Implementation.forward`."""
        x, weight, m, *_ = given
        output = given.output
        maps, kernel, matrices = _last(x), _rows(weight), _positions_first(m, len(output))
        y = x.new_empty(x.shape[0], *output, weight.shape[0])
        for group in self._groups(given, maps, kernel, matrices, y):
            pointers = group.x(maps), group.m(matrices), group.kernel(kernel), group.y(y)
            group.call("forward", *pointers)
        return given.like_convolution(y)

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        """`Implementation.backward`."""
        x, weight, m, *_ = given
        dims = x.dim() - 2
        maps, kernel, matrices = _last(x), _rows(weight), _positions_first(m, dims)
        outgoing = _last(grad)
        results = given.empty_gradients(needs)
        grad_maps = _last(results[0]) if needs[0] else None
        grad_kernel = kernel.new_zeros(kernel.shape, dtype=torch.float32) if needs[1] else None
        grad_matrices = _positions_first(results[2], dims) if needs[2] else None
        for group in self._groups(given, maps, kernel, matrices, outgoing):
            group.call(
                "backward",
                *(group.x(maps), group.m(matrices), group.kernel(kernel), group.y(outgoing)),
                *(group.x(grad_maps), group.m(grad_matrices), group.kernel(grad_kernel)),
            )
        if grad_maps is not None:
            _fill(results[0], grad_maps.movedim(-1, 1))
        if grad_kernel is not None:
            _fill(results[1], grad_kernel.mT.reshape(weight.shape))
        if grad_matrices is not None:
            _fill(
                results[2], grad_matrices.movedim(tuple(range(1, 1 + dims)), tuple(range(-dims, 0)))
            )
        return results

    def _groups(self, given: Operands, *laid_out: Tensor) -> "Iterator[_Group]":
        """Every group, for operands that are laid out as `_Group` has them."""
        shapes, threads = tuple(tensor.shape for tensor in laid_out), torch.get_num_threads()
        for number in range(given.groups):
            place = number, given.groups
            yield _cached_group(self.full, given.window, place, shapes, given.x.dtype, threads)


class _Frame(ctypes.Structure):
    _fields_ = (
        ("images", _Count),
        *((name, _Triple) for name in ("input", "output", "stride")),
        ("tap", _Triple * MOST_TAPS),
        *((name, _Count) for name in ("taps", "channels", "filters", "blocks", "full")),
        *((name, _Count) for name in ("depth", "width", "image", "x_pixel", "y_pixel", "m")),
        *((name, _Count) for name in ("more", "threads")),
    )


class _Group:
    """One group of a grouped operator: its frame, and where its share of every operand begins.

    The shapes are those of maps (n, *size, c), kernel (o, K, c/groups), M (n, *out, b, *taps) and
    y (n, *out, o).
    """

    def __init__(
        self,
        full: bool,
        window: Window,
        place: tuple[int, int],
        shapes: Sequence[torch.Size],
        dtype: torch.dtype,
        threads: int,
    ):
        maps, kernel, matrices, y = shapes
        self._number, groups = place
        filters, self._channels = kernel[0] // groups, kernel[2]
        blocks = matrices[len(maps) - 1]
        self._filters = filters
        self._block = self._number * blocks // groups
        self._entries = window.taps ** (2 if full else 1)
        self._dtype = dtype
        self.frame = _Frame(
            images=maps[0],
            input=_three(maps[1:-1], 1),
            output=_three(y[1:-1], 1),
            stride=_three(window.stride, 1),
            taps=window.taps,
            channels=self._channels,
            filters=filters,
            blocks=max(1, blocks // groups),
            full=full,
            depth=_whole(window.taps * self._channels),
            width=_whole(filters),
            image=prod(maps[1:]),
            x_pixel=maps[-1],
            y_pixel=y[-1],
            m=blocks * self._entries,
            more=self._block == (self._number - 1) * blocks // groups,
            threads=threads,
        )
        steps = product(*map(range, window.kernel_size))
        for tap, step in zip(self.frame.tap, steps, strict=False):
            geometry = zip(step, window.dilation, window.padding, strict=True)
            tap[:] = _three([i * d - p for i, d, p in geometry], 0)

    def call(self, name: str, *pointers: ctypes.c_void_p | None) -> None:
        """Run the C function `name` of this type."""
        function = getattr(library(), f"{name}_{_TYPES[self._dtype]}")
        function(ctypes.byref(self.frame), *pointers)

    def x(self, maps: Tensor | None) -> ctypes.c_void_p | None:
        """This group's channels."""
        return _pointer(maps, self._number * self._channels)

    def y(self, maps: Tensor) -> ctypes.c_void_p | None:
        """This group's filters."""
        return _pointer(maps, self._number * self._filters)

    def kernel(self, kernel: Tensor | None) -> ctypes.c_void_p | None:
        """This group's kernels."""
        return _pointer(kernel, self._number * self._filters * self.frame.taps * self._channels)

    def m(self, matrices: Tensor | None) -> ctypes.c_void_p | None:
        """The first of this group's blocks."""
        return _pointer(matrices, self._block * self._entries)


_cached_group = lru_cache(maxsize=512)(_Group)


def declines(x: Tensor, taps: int) -> str | None:
    """Why the compiled operators cannot take `x` and a kernel of so many taps, or None."""
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}, not on the CPU"
    if x.dtype not in _TYPES:
        return f"the input is {x.dtype}, neither float32 nor bfloat16"
    if taps > MOST_TAPS:
        return f"the kernel has {taps} taps, more than {MOST_TAPS}"
    return None if isinstance(library(), ctypes.CDLL) else str(library())


def available(x: Tensor) -> bool:
    """Whether an opaque function of maps can take `x` here: nothing declines or traces."""
    return unwatched(x) and declines(x, 1) is None


def dot(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    """`positionwise.dot`."""
    d = x.new_empty(x.shape[0], 1, *x.shape[2:], dtype=torch.float32)
    _by_position("dot", x, _last(x), _last(y), _optional(gate), d)
    return d


def scale(d: Tensor, x: Tensor, gate: Tensor | None) -> Tensor:
    """`positionwise.scale`."""
    operands = _last(d), _last(x), _optional(gate)
    return _written(torch.empty_like(x), _by_position, "scale", x, *operands)


def norm_sums(
    d: Tensor | None,
    x: Tensor,
    grad: Tensor | None,
    line: Tensor | None,
    centre: Tensor,
    pool: bool = False,
) -> Tensor:
    """Sums over all positions of every channel, (2, c) in float64: v and v (t - centre).

    t = d x; v is t - centre, or `grad`, that of `norm_relu`, where `line` is above 0 at t. With
    `pool` they are over what 2×2 windows chose, without d.
    """
    found = x.new_zeros(torch.get_num_threads(), 2, x.shape[1], dtype=torch.float64)
    operands = _last(x), _optional(grad), line, centre, found
    if pool:
        _by_window("pool_sums", x, *operands)
    else:
        _by_position("norm_sums", x, _optional(d), *operands)
    return found.sum(0)


def norm_relu(d: Tensor | None, x: Tensor, line: Tensor, pool: bool = False) -> Tensor:
    """The ReLU of `line`, slope and offset of every channel (2, c), at d x.

    With `pool`, that of the largest of every 2×2 window of x (n, c, h, w), without d.
    """
    z, operands = empty_relu(x, pool), (_last(x), line)
    if pool:
        return _written(z, _by_window, "pool_relu", x, *operands)
    return _written(z, _by_position, "norm_relu", x, _optional(d), *operands)


def empty_relu(x: Tensor, pool: bool) -> Tensor:
    """Uninitialised z of `norm_relu`: like x, or (n, c, h // 2, w // 2), channels-last."""
    if not pool:
        return torch.empty_like(x)
    images, channels, height, width = x.shape
    return x.new_empty(images, height // 2, width // 2, channels).movedim(-1, 1)


def norm_relu_backward(
    d: Tensor | None, x: Tensor, grad: Tensor, line: Tensor, pool: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients of d (empty where there is none) and x.

    That of t = d x is slope · grad, where `line` is above 0 at t and, with `pool`, a window chose
    t, + level + tilt t; `line`, (4, c), has slopes, offsets, levels and tilts.
    """
    grad_x, grad_d = torch.empty_like(x), line.new_empty(0 if d is None else d.shape)
    if pool:
        operands = _last(x), _last(grad), torch.cat((line, line[:1]))
        _written(grad_x, _by_window, "pool_relu_backward", x, *operands)
    else:
        operands = _optional(d), _last(x), _last(grad), line, None if d is None else grad_d
        _written(grad_x, _by_position, "norm_relu_backward", x, *operands)
    return grad_d, grad_x


def chosen(maps: Tensor, x: Tensor, line: Tensor) -> Tensor:
    """What of maps (n, c, h, w) the windows of x chose, 0 where pooled `norm_relu` is."""
    operands = _last(x), _last(maps), line
    return _written(empty_relu(maps, pool=True), _by_window, "pool_chosen", x, *operands)


def scattered(pooled: Tensor, x: Tensor, line: Tensor) -> Tensor:
    """The transpose of `chosen`: numbers (n, c, h // 2, w // 2) where they came from, else 0."""
    ends = torch.zeros_like(line), torch.ones_like(line[:1])
    operands = _last(x), _last(pooled), torch.cat((line, *ends))
    return _written(torch.empty_like(x), _by_window, "pool_relu_backward", x, *operands)


def affine(x: Tensor, line: Tensor) -> Tensor:
    """`line`, slope and offset of every channel (2, c), at x, in float32."""
    z = torch.empty_like(x, dtype=torch.float32)
    return _written(z, _by_position, "affine", x, _last(x), line)


def affine_backward(x: Tensor, grad: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x, and in float64 of the slope (c), from that of `affine`."""
    found = x.new_zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float64)
    operands = _last(x), _last(grad), slope, found
    grad_x = _written(torch.empty_like(x), _by_position, "affine_backward", x, *operands)
    return grad_x, found.sum(0)


def _written(z: Tensor, run: Callable[..., None], *operands: Any) -> Tensor:
    """`z`, which `run` writes channels-last, as the last of the operands."""
    target = _last(z)
    run(*operands, target)
    _fill(z, target.movedim(-1, 1))
    return z


def _by_window(name: str, x: Tensor, *operands: Tensor | None) -> None:
    images, channels, height, width = x.shape
    sizes = map(_Count, (images, height, width, channels, torch.get_num_threads()))
    _run(name, x, sizes, operands)


def _by_position(name: str, x: Tensor, *operands: Tensor | None) -> None:
    positions = x.shape[0] * prod(x.shape[2:])
    sizes = map(_Count, (positions, x.shape[1], torch.get_num_threads()))
    _run(name, x, sizes, operands)


def _run(
    name: str, x: Tensor, sizes: Iterable[ctypes.c_int64], operands: Iterable[Tensor | None]
) -> None:
    function = getattr(library(), f"{name}_{_TYPES[x.dtype]}")
    function(*sizes, *(_pointer(tensor, 0) for tensor in operands))


def _last(maps: Tensor) -> Tensor:
    """(n, c, *size) as contiguous (n, *size, c)."""
    return maps.movedim(1, -1).contiguous()


def _optional(maps: Tensor | None) -> Tensor | None:
    return None if maps is None else _last(maps)


def _rows(weight: Tensor) -> Tensor:
    """(o, c, *kernel) as contiguous (o, K, c)."""
    return weight.flatten(2).mT.contiguous()


def _positions_first(m: Tensor, dims: int) -> Tensor:
    """(n, b, *taps, *out) as contiguous (n, *out, b, *taps)."""
    return m.movedim(tuple(range(-dims, 0)), tuple(range(1, 1 + dims))).contiguous()


def _fill(result: Tensor, found: Tensor) -> None:
    """Copy, unless the result was written in place."""
    if result.data_ptr() != found.data_ptr():
        result.copy_(found)


def _three(sizes: Sequence[int], missing: int) -> ctypes.Array[ctypes.c_int64]:
    return _Triple(*[missing] * (3 - len(sizes)), *sizes)


def _whole(size: int) -> int:
    return -(-size // _TILE) * _TILE


def _pointer(tensor: Tensor | None, offset: int) -> ctypes.c_void_p | None:
    if tensor is None:
        return None
    return ctypes.c_void_p(tensor.data_ptr() + offset * tensor.element_size())
