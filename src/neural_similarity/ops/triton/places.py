"""Tensors as kernels take them, and the places in them that a program works on.

A place is (image, row, column, exists, down, right): the positions or pixels of a program, and the
shift that all of them have. Taps differ in the shift alone, so that the offsets of a tile are
computed once. They are int32 unless `WindowFrame.far`: with int64 a kernel spent more instructions
on addresses than on values.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class ImageLayout(NamedTuple):
    """A tensor (n, c, h, w): its first element and its strides."""

    at: Any
    n: Any
    c: Any
    h: Any
    w: Any


class Filters(NamedTuple):
    """A tensor (o, c, taps), likewise."""

    at: Any
    o: Any
    c: Any
    t: Any


class PartLayout(NamedTuple):
    """A tensor (part, taps, o, c), likewise."""

    at: Any
    part: Any
    t: Any
    o: Any
    c: Any


class Similarities(NamedTuple):
    """A tensor (part, n, block, kernel tap, patch tap, h, w), likewise; s is 0 if diagonal."""

    at: Any
    part: Any
    n: Any
    b: Any
    s: Any
    t: Any
    h: Any
    w: Any


class LaunchSizes(NamedTuple):
    images: Any
    height: Any
    width: Any
    out_height: Any
    out_width: Any


class Channels(NamedTuple):
    """Channels: a group's inputs and outputs, a block of M, and a run in one group and block."""

    inputs: Any
    outputs: Any
    block: Any
    run: Any


class WindowFrame(NamedTuple):
    """The window, and whether offsets exceed int32; known when a kernel is compiled."""

    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int
    far: bool


@triton.jit
def offset_of(index, FRAME: tl.constexpr):
    """The index in the type of offsets."""
    return tl.cast(index, tl.int64) if FRAME.far else index


@triton.jit
def places_of(program, height, width, sizes, ROWS: tl.constexpr, FRAME: tl.constexpr):
    """A program's consecutive places in maps of this size.

    Vectors are divided in int32, which is several times faster.
    """
    start = offset_of(program, FRAME) * ROWS
    area = height * width
    image = start // area
    within = (start - image * area).to(tl.int32) + tl.arange(0, ROWS)
    image += within // area
    within %= area
    row, column = offset_of(within // width, FRAME), offset_of(within % width, FRAME)
    return image, row, column, image < sizes.images, 0, 0


@triton.jit
def shift_places(place, down, right, height, width):
    """The places shifted by (down, right); they exist if they are in maps of this size."""
    image, row, column, exists, _, _ = place
    exists = exists & _is_within(row + down, height) & _is_within(column + right, width)
    return image, row, column, exists, down, right


@triton.jit
def _is_within(index, size):
    """Whether 0 <= index < size; negative numbers are large without their sign: one comparison."""
    return tl.cast(index, tl.uint64 if index.dtype == tl.int64 else tl.uint32) < size


@triton.jit
def seeing_places(pixel, tap, sizes, FRAME: tl.constexpr):
    """The places at which `tap` sees pixels of the input; they exist where it sees them."""
    down = FRAME.ph - tap // FRAME.kw * FRAME.dh
    right = FRAME.pw - tap % FRAME.kw * FRAME.dw
    if FRAME.sh * FRAME.sw == 1:
        return shift_places(pixel, down, right, sizes.out_height, sizes.out_width)
    image, row, column, exists, _, _ = pixel
    row, column = row + down, column + right
    exists = exists & (row % FRAME.sh == 0) & (column % FRAME.sw == 0)
    exists = exists & (row >= 0) & (column >= 0)
    place = image, row // FRAME.sh, column // FRAME.sw, exists, 0, 0
    return shift_places(place, 0, 0, sizes.out_height, sizes.out_width)


@triton.jit
def rows_of(tensor, place):
    """The start of a tensor, shifted like the places; their offsets; whether they exist."""
    image, row, column, exists, down, right = place
    at = tensor.at + (down * tensor.h + right * tensor.w)
    return at, image * tensor.n + row * tensor.h + column * tensor.w, exists


@triton.jit
def load_tile(images, place, channel, inside):
    """The tile (places, channels)."""
    at, rows, exists = rows_of(images, place)
    return tl.load(at + tile_of(rows, channel * images.c), mask_of(exists, inside), 0.0)


@triton.jit
def store_tile(images, place, channel, inside, values):
    at, rows, exists = rows_of(images, place)
    tl.store(at + tile_of(rows, channel * images.c), values, mask_of(exists, inside))


@triton.jit
def tile_of(rows, columns):
    return rows[:, None] + columns[None, :]


@triton.jit
def mask_of(rows, columns):
    return rows[:, None] & columns[None, :]
