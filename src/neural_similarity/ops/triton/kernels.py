"""The kernels: implicit matrix products whose tiles meet M on their way in.

Programs take `ROWS` positions, or pixels of the input, by `INPUTS` input channels or `OUTPUTS`
kernels. A piece is up to `INPUTS` consecutive channels of one group and one block. Sums are
float32, products with M are rounded once, into `DTYPE`. M[kernel tap s, patch tap t]; a diagonal
one has s = t.

A place is (image, row, column, exists, down, right): the positions or pixels of a program, and by
how much, the same for all, they are shifted. What differs between taps is the shift alone, so that
offsets of whole tiles are taken once. They are int32 unless `Frame.far`: of int64 ones a kernel
spent more instructions on addresses than on numbers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Images(NamedTuple):
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


class Parts(NamedTuple):
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


class Sizes(NamedTuple):
    images: Any
    height: Any
    width: Any
    out_height: Any
    out_width: Any


class Channels(NamedTuple):
    """Of a group its inputs and outputs, of a block of M, and of a run in one group and block."""

    inputs: Any
    outputs: Any
    block: Any
    run: Any


class Frame(NamedTuple):
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
def forward(
    x, weight, m, y, sizes, channels, FRAME: tl.constexpr, FULL: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = W·(M·patch). Programs: positions, kernels."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    place = _places(tl.program_id(0), sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
    tiles = tl.cdiv(channels.outputs, OUTPUTS)
    group = tl.program_id(1) // tiles
    output, computed = _outputs(group, tl.program_id(1) % tiles, channels, OUTPUTS, FRAME)
    pieces = _pieces(channels.inputs, channels, INPUTS)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for piece in range(group * pieces, (group + 1) * pieces):
        channel, inside, group, block = _piece(piece, channels, INPUTS, FRAME)
        own = (channel - _offset(group, FRAME) * channels.inputs) * weight.c
        filters = _tile(output * weight.o, own)
        wanted = _tile_mask(computed, inside)
        if FULL:
            patches = _patches(x, place, channel, inside, sizes, FRAME)
            for s in range(TAPS):
                columns = _mixed(m, place, block, s, patches, FRAME).to(DTYPE)
                kernel = tl.load(weight.at + s * weight.t + filters, wanted, 0.0)
                total = tl.dot(columns, tl.trans(kernel), total, input_precision=PRECISION)
        else:
            for t in range(TAPS):
                patch = _patch(x, place, channel, inside, t, sizes, FRAME)
                factor = _entry(m, place, block, t, t, FRAME)
                columns = (patch.to(tl.float32) * factor[:, None]).to(DTYPE)
                kernel = tl.load(weight.at + t * weight.t + filters, wanted, 0.0)
                total = tl.dot(columns, tl.trans(kernel), total, input_precision=PRECISION)
    _store(y, place, output, computed, total)


@triton.jit
def diagonal_gradients(
    grad, x, weight, m, grad_x, grad_m, sizes, channels, FRAME: tl.constexpr, NEEDS_X: tl.constexpr,
    NEEDS_M: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of x and of a diagonal M. Programs: pixels, pieces, remainders by the strides.

    A pixel is seen by a tap at one position at most, and all pixels of a program have the same
    remainder by the strides, so the same taps see them. G = Wᵀ·grad at that position gives both
    gradients: dx = Σ m·G, dm = <G, x>. Every sum is taken by one program, every number is written
    once: nothing depends on the order of programs.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    high, wide = tl.cdiv(sizes.height, FRAME.sh), tl.cdiv(sizes.width, FRAME.sw)
    place = _places(tl.program_id(0), high, wide, sizes, ROWS, FRAME)
    top, left = tl.program_id(2) // FRAME.sw, tl.program_id(2) % FRAME.sw
    pixel = _pixels(place, top, left, sizes, FRAME)
    piece = tl.program_id(1)
    channel, inside, group, block = _piece(piece, channels, INPUTS, FRAME)
    own = (channel - _offset(group, FRAME) * channels.inputs) * weight.c
    part = piece % _pieces(channels.block, channels, INPUTS)
    here = _load(x, pixel, channel, inside)
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for t in range(TAPS):
        down = top + FRAME.ph - t // FRAME.kw * FRAME.dh
        right = left + FRAME.pw - t % FRAME.kw * FRAME.dw
        if (down % FRAME.sh == 0) & (right % FRAME.sw == 0):
            seer = _shifted(
                place, down // FRAME.sh, right // FRAME.sw, sizes.out_height, sizes.out_width
            )
            outgoing = _outgoing(
                grad, weight, seer, own, inside, group, t, channels, PRECISION, OUTPUTS, TILES,
                ROWS, FRAME,
            )  # fmt: skip
            if NEEDS_X:
                total += outgoing * _entry(m, seer, block, t, t, FRAME)[:, None]
            if NEEDS_M:
                product = tl.sum(outgoing * here.to(tl.float32), 1)
                _store_entry(grad_m, seer, part, block, t, t, product, FRAME)
    if NEEDS_X:
        _store(grad_x, pixel, channel, inside, total)


@triton.jit
def full_data_gradient(
    grad, weight, m, grad_x, sizes, channels, FRAME: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of x under a full M. Programs: pixels, pieces.

    What the K positions that see a pixel, tap t at p_t, add to it is mixed before W is applied:
    dx = Σ_s W_sᵀ Σ_t M_st(p_t)·grad(p_t). One matrix product as in `forward`, and no sum over
    programs.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    pixel = _places(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    channel, inside, group, block = _piece(tl.program_id(1), channels, INPUTS, FRAME)
    own = (channel - _offset(group, FRAME) * channels.inputs) * weight.c
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for tile in range(tl.cdiv(channels.outputs, OUTPUTS)):
        output, computed = _outputs(group, tile, channels, OUTPUTS, FRAME)
        views = ()
        for t in tl.static_range(TAPS):
            views = views + (_load(grad, _seers(pixel, t, sizes, FRAME), output, computed),)
        kernels = _tile(output * weight.o, own)
        wanted = _tile_mask(computed, inside)
        for s in range(TAPS):
            mixed = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for t in tl.static_range(TAPS):
                factor = _entry(m, _seers(pixel, t, sizes, FRAME), block, s, t, FRAME)
                mixed += views[t].to(tl.float32) * factor[:, None]
            kernel = tl.load(weight.at + s * weight.t + kernels, wanted, 0.0)
            total = tl.dot(mixed.to(DTYPE), kernel, total, input_precision=PRECISION)
    _store(grad_x, pixel, channel, inside, total)


@triton.jit
def full_similarity_gradient(
    grad, x, weight, grad_m, sizes, channels, FRAME: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of a full M: dM_st = <W_sᵀ·grad, x_t>. Programs: positions, pieces."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    WIDTH: tl.constexpr = triton.next_power_of_2(TAPS)
    place = _places(tl.program_id(0), sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
    piece = tl.program_id(1)
    channel, inside, group, block = _piece(piece, channels, INPUTS, FRAME)
    own = (channel - _offset(group, FRAME) * channels.inputs) * weight.c
    part = piece % _pieces(channels.block, channels, INPUTS)
    patches = _patches(x, place, channel, inside, sizes, FRAME)
    tap = tl.arange(0, WIDTH)
    for s in range(TAPS):
        outgoing = _outgoing(
            grad, weight, place, own, inside, group, s, channels, PRECISION, OUTPUTS, TILES, ROWS,
            FRAME,
        )  # fmt: skip
        products = tl.zeros((ROWS, WIDTH), tl.float32)
        for t in tl.static_range(TAPS):
            product = tl.sum(outgoing * patches[t].to(tl.float32), 1)
            products = tl.where(tap[None, :] == t, product[:, None], products)
        _store_entries(grad_m, place, part, block, s, tap, tap < TAPS, products, FRAME)


@triton.jit
def weight_gradient(
    grad, x, m, parts, span, sizes, channels, FRAME: tl.constexpr, FULL: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Partial sums over `span` positions each of dW_s = Σ grad·(M·patch)_s.

    Programs: pieces and `TOGETHER` kernel taps, which divides the taps; kernels; parts.
    """
    RUNS: tl.constexpr = FRAME.kh * FRAME.kw // TOGETHER
    first, part = tl.program_id(0) % RUNS * TOGETHER, tl.program_id(2)
    channel, inside, group, block = _piece(tl.program_id(0) // RUNS, channels, INPUTS, FRAME)
    own = (channel - _offset(group, FRAME) * channels.inputs) * parts.c
    output, computed = _outputs(group, tl.program_id(1), channels, OUTPUTS, FRAME)
    totals = ()
    for _ in tl.static_range(TOGETHER):
        totals = totals + (tl.zeros((OUTPUTS, INPUTS), tl.float32),)
    for step in range(span // ROWS):
        start = part * (span // ROWS) + step
        place = _places(start, sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
        outgoing = tl.trans(_load(grad, place, output, computed))
        sums = ()
        if FULL:
            patches = _patches(x, place, channel, inside, sizes, FRAME)
        for i in tl.static_range(TOGETHER):
            s = first + i
            if FULL:
                columns = _mixed(m, place, block, s, patches, FRAME)
            else:
                patch = _patch(x, place, channel, inside, s, sizes, FRAME).to(tl.float32)
                columns = patch * _entry(m, place, block, s, s, FRAME)[:, None]
            columns = columns.to(DTYPE)
            sums = sums + (tl.dot(outgoing, columns, totals[i], input_precision=PRECISION),)
        totals = sums
    at = parts.at + tl.cast(part, tl.int64) * parts.part
    for i in tl.static_range(TOGETHER):
        there = _tile(output * parts.o, own) + (first + i) * parts.t
        tl.store(at + there, totals[i], _tile_mask(computed, inside))


@triton.jit
def _offset(index, FRAME: tl.constexpr):
    """In the type in which offsets are counted."""
    return tl.cast(index, tl.int64) if FRAME.far else index


@triton.jit
def _places(program, height, width, sizes, ROWS: tl.constexpr, FRAME: tl.constexpr):
    """A program's consecutive places in maps of this size.

    Vectors are divided in int32, which is several times faster.
    """
    start = _offset(program, FRAME) * ROWS
    area = height * width
    image = start // area
    within = (start - image * area).to(tl.int32) + tl.arange(0, ROWS)
    image += within // area
    within %= area
    row, column = _offset(within // width, FRAME), _offset(within % width, FRAME)
    return image, row, column, image < sizes.images, 0, 0


@triton.jit
def _shifted(place, down, right, height, width):
    """Places so far from `place`; they exist in maps of this size."""
    image, row, column, exists, _, _ = place
    exists = exists & (row >= -down) & (row < height - down)
    exists = exists & (column >= -right) & (column < width - right)
    return image, row, column, exists, down, right


@triton.jit
def _pixels(place, top, left, sizes, FRAME: tl.constexpr):
    """The pixels of one remainder by the strides."""
    image, row, column, exists, _, _ = place
    row, column = row * FRAME.sh, column * FRAME.sw
    return _shifted((image, row, column, exists, 0, 0), top, left, sizes.height, sizes.width)


@triton.jit
def _seers(pixel, tap, sizes, FRAME: tl.constexpr):
    """The places at which `tap` sees pixels of the input; they exist where it sees them."""
    down = FRAME.ph - tap // FRAME.kw * FRAME.dh
    right = FRAME.pw - tap % FRAME.kw * FRAME.dw
    if FRAME.sh * FRAME.sw == 1:
        return _shifted(pixel, down, right, sizes.out_height, sizes.out_width)
    image, row, column, exists, _, _ = pixel
    row, column = row + down, column + right
    exists = exists & (row % FRAME.sh == 0) & (column % FRAME.sw == 0)
    exists = exists & (row >= 0) & (column >= 0)
    place = image, row // FRAME.sh, column // FRAME.sw, exists, 0, 0
    return _shifted(place, 0, 0, sizes.out_height, sizes.out_width)


@triton.jit
def _pieces(count, channels, INPUTS: tl.constexpr):
    """Pieces in `count` channels, a multiple of a run."""
    return count // channels.run * tl.cdiv(channels.run, INPUTS)


@triton.jit
def _piece(piece, channels, INPUTS: tl.constexpr, FRAME: tl.constexpr):
    """The channels of a piece, which of them are in it, its group and its block."""
    parts = tl.cdiv(channels.run, INPUTS)
    start = piece // parts * channels.run
    offset = piece % parts * INPUTS + tl.arange(0, INPUTS)
    group, block = start // channels.inputs, start // channels.block
    return _offset(start, FRAME) + offset, offset < channels.run, group, block


@triton.jit
def _outputs(group, tile, channels, OUTPUTS: tl.constexpr, FRAME: tl.constexpr):
    """The kernels of a tile of a group, and whether they are of that group."""
    offset = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    first = _offset(group, FRAME) * channels.outputs
    return first + offset, offset < channels.outputs


@triton.jit
def _patches(x, place, channel, inside, sizes, FRAME: tl.constexpr):
    """The tiles (ROWS, INPUTS) of all taps."""
    patches = ()
    for t in tl.static_range(FRAME.kh * FRAME.kw):
        patches = patches + (_patch(x, place, channel, inside, t, sizes, FRAME),)
    return patches


@triton.jit
def _patch(x, place, channel, inside, tap, sizes, FRAME: tl.constexpr):
    """The tile (ROWS, INPUTS) that `tap` sees."""
    image, row, column, exists, _, _ = place
    corner = image, row * FRAME.sh - FRAME.ph, column * FRAME.sw - FRAME.pw, exists, 0, 0
    down, right = tap // FRAME.kw * FRAME.dh, tap % FRAME.kw * FRAME.dw
    return _load(x, _shifted(corner, down, right, sizes.height, sizes.width), channel, inside)


@triton.jit
def _mixed(m, place, block, s, patches, FRAME: tl.constexpr):
    """Row s of M times the patches, in float32."""
    total = patches[0].to(tl.float32) * _entry(m, place, block, s, 0, FRAME)[:, None]
    for t in tl.static_range(1, FRAME.kh * FRAME.kw):
        total += patches[t].to(tl.float32) * _entry(m, place, block, s, t, FRAME)[:, None]
    return total


@triton.jit
def _outgoing(
    grad, weight, place, own, inside, group, tap, channels, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, FRAME: tl.constexpr,
):  # fmt: skip
    """Wᵀ·grad of one tap: the gradient (ROWS, INPUTS) of its column.

    A loop inside the one over taps would keep Triton from loading for the next tap ahead.
    """
    total = tl.zeros((ROWS, own.shape[0]), tl.float32)
    if TILES == 1:
        output, computed = _outputs(group, 0, channels, OUTPUTS, FRAME)
        values = _load(grad, place, output, computed)
        at = weight.at + tap * weight.t + _tile(output * weight.o, own)
        kernel = tl.load(at, _tile_mask(computed, inside), 0.0)
        total = tl.dot(values, kernel, total, input_precision=PRECISION)
    else:
        for tile in range(TILES):
            output, computed = _outputs(group, tile, channels, OUTPUTS, FRAME)
            values = _load(grad, place, output, computed)
            at = weight.at + tap * weight.t + _tile(output * weight.o, own)
            kernel = tl.load(at, _tile_mask(computed, inside), 0.0)
            total = tl.dot(values, kernel, total, input_precision=PRECISION)
    return total


@triton.jit
def _entry(m, place, block, s, t, FRAME: tl.constexpr):
    """M_st at every place; 0 where there is none."""
    at, rows, exists = _rows(m, place)
    at += _offset(block, FRAME) * m.b + _offset(s, FRAME) * m.s + _offset(t, FRAME) * m.t
    return tl.load(at + rows, exists, 0.0)


@triton.jit
def _store_entry(m, place, part, block, s, t, values, FRAME: tl.constexpr):
    at, rows, exists = _rows(m, place)
    at += tl.cast(part, tl.int64) * m.part + _offset(block, FRAME) * m.b
    at += _offset(s, FRAME) * m.s + _offset(t, FRAME) * m.t
    tl.store(at + rows, values, exists)


@triton.jit
def _store_entries(m, place, part, block, s, taps, known, values, FRAME: tl.constexpr):
    """A row s of M at every place, (places, taps)."""
    at, rows, exists = _rows(m, place)
    at += tl.cast(part, tl.int64) * m.part + _offset(block, FRAME) * m.b + _offset(s, FRAME) * m.s
    tl.store(at + _tile(rows, _offset(taps, FRAME) * m.t), values, _tile_mask(exists, known))


@triton.jit
def _rows(tensor, place):
    """Where a tensor begins, shifted as the places are; their offsets; whether they exist."""
    image, row, column, exists, down, right = place
    at = tensor.at + (down * tensor.h + right * tensor.w)
    return at, image * tensor.n + row * tensor.h + column * tensor.w, exists


@triton.jit
def _load(images, place, channel, inside):
    """The tile (places, channels)."""
    at, rows, exists = _rows(images, place)
    return tl.load(at + _tile(rows, channel * images.c), _tile_mask(exists, inside), 0.0)


@triton.jit
def _store(images, place, channel, inside, values):
    at, rows, exists = _rows(images, place)
    tl.store(at + _tile(rows, channel * images.c), values, _tile_mask(exists, inside))


@triton.jit
def _tile(rows, columns):
    return rows[:, None] + columns[None, :]


@triton.jit
def _tile_mask(rows, columns):
    return rows[:, None] & columns[None, :]
