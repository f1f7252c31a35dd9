"""The kernels of `pointwise.py`: programs take `ROWS` places by all channels, `WIDTH` at a time."""

import triton
import triton.language as tl

from neural_similarity.ops.triton.places import (
    load_tile,
    places_of,
    rows_of,
    seeing_places,
    shift_places,
    store_tile,
)


@triton.jit
def energy(x, energies, sizes, count, FRAME: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """energy = Σ_c x² of every pixel."""
    pixel = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, count, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        values = load_tile(x, pixel, channel, channel < count).to(tl.float32)
        total += tl.sum(values * values, 1)
    at, rows, exists = rows_of(energies, pixel)
    tl.store(at + rows, total, exists)


@triton.jit
def reciprocal(energies, factors, sizes, eps, scale, FRAME: tl.constexpr, ROWS: tl.constexpr):
    """scale / √(Σ_t energy + eps) of every patch."""
    place = places_of(tl.program_id(0), sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
    image, row, column, exists, _, _ = place
    corner = image, row * FRAME.sh - FRAME.ph, column * FRAME.sw - FRAME.pw, exists, 0, 0
    total = tl.zeros((ROWS,), tl.float32)
    for t in tl.static_range(FRAME.kh * FRAME.kw):
        down, right = t // FRAME.kw * FRAME.dh, t % FRAME.kw * FRAME.dw
        at, rows, there = rows_of(
            energies, shift_places(corner, down, right, sizes.height, sizes.width)
        )
        total += tl.load(at + rows, there, 0.0)
    at, rows, exists = rows_of(factors, place)
    tl.store(at + rows, scale / tl.sqrt(total + eps), exists)


@triton.jit
def reciprocal_gradient(
    x, factors, grad, grad_x, sizes, count, scale, FRAME: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """dx = -x · Σ_t f³ / scale² · df, over the patches that see a pixel.

    A factor of 0 is of a norm that has overflowed; its own gradient, divided by 0, may be NaN.
    """
    pixel = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    total = tl.zeros((ROWS,), tl.float32)
    for t in tl.static_range(FRAME.kh * FRAME.kw):
        seer = seeing_places(pixel, t, sizes, FRAME)
        at, rows, exists = rows_of(factors, seer)
        factor = tl.load(at + rows, exists, 0.0)
        at, rows, exists = rows_of(grad, seer)
        asked = factor * factor * factor * tl.load(at + rows, exists, 0.0)
        total += tl.where(factor == 0, 0.0, asked)
    total = -total / (scale * scale)
    for start in range(0, count, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        values = load_tile(x, pixel, channel, channel < count).to(tl.float32)
        store_tile(grad_x, pixel, channel, channel < count, values * total[:, None])


@triton.jit
def scale(
    y, factors, z, sizes, count, FRAME: tl.constexpr, RECTIFIED: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """z = y·f at every place, or max(0, y·f)."""
    place = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    at, rows, exists = rows_of(factors, place)
    factor = tl.load(at + rows, exists, 0.0)[:, None]
    for start in range(0, count, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        values = load_tile(y, place, channel, channel < count).to(tl.float32) * factor
        if RECTIFIED:
            values = tl.where(values < 0, 0.0, values)  # NaN stays
        store_tile(z, place, channel, channel < count, values)


@triton.jit
def scale_gradient(
    grad, z, factors, grad_y, grad_factors, sizes, count, FRAME: tl.constexpr,
    RECTIFIED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dy = g·f and df = Σ_c g·y; of a ReLU z is given, y = z / f where it lets g through."""
    place = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    at, rows, exists = rows_of(factors, place)
    factor = tl.load(at + rows, exists, 1.0)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, count, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        incoming = load_tile(grad, place, channel, channel < count).to(tl.float32)
        values = load_tile(z, place, channel, channel < count).to(tl.float32)
        if RECTIFIED:
            incoming = tl.where(values <= 0, 0.0, incoming)  # NaN stays
        store_tile(grad_y, place, channel, channel < count, incoming * factor[:, None])
        total += tl.sum(incoming * values, 1)
    at, rows, exists = rows_of(grad_factors, place)
    tl.store(at + rows, total / factor if RECTIFIED else total, exists)


@triton.jit
def affine(
    raw, gain, m, sizes, count, FRAME: tl.constexpr, EVERY: tl.constexpr, PERIOD: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """m = raw·gain, plus 1 in every `EVERY`-th channel from the first on, unless that is 0.

    Programs: places, channels. Gains and ones repeat after `PERIOD` channels.
    """
    place = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside, own = channel < count, channel % PERIOD
    gains = tl.load(gain + own, inside, 0.0)[None, :]
    values = load_tile(raw, place, channel, inside).to(tl.float32) * gains
    if EVERY:
        values += tl.where(own % EVERY == 0, 1.0, 0.0)[None, :]
    store_tile(m, place, channel, inside, values)


@triton.jit
def affine_gradient(
    grad, raw, gain, grad_raw, parts, sizes, count, FRAME: tl.constexpr, PERIOD: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """d raw = g·gain, and a part, over this program's places, of d gain = Σ g·raw.

    Programs: places, channels.
    """
    program = tl.program_id(0)
    place = places_of(program, sizes.height, sizes.width, sizes, ROWS, FRAME)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < count
    gains = tl.load(gain + channel % PERIOD, inside, 0.0)[None, :]
    incoming = load_tile(grad, place, channel, inside)
    values = load_tile(raw, place, channel, inside).to(tl.float32)
    store_tile(grad_raw, place, channel, inside, incoming * gains)
    tl.store(parts + program * count + channel, tl.sum(incoming * values, 0), inside)
