"""The kernels: implicit matrix products whose tiles meet M on their way in.

Programs take `ROWS` positions, or pixels of the input, by `INPUTS` input channels or `OUTPUTS`
kernels. A piece is up to `INPUTS` consecutive channels of one group and one block. Sums are
float32, products with M are rounded once, into `DTYPE`. M[kernel tap s, patch tap t]; a diagonal
one has s = t. Whatever counts positions or bytes is int64.
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
    """The window; known when a kernel is compiled."""

    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int


@triton.jit
def forward(
    x, weight, m, y, sizes, channels, FRAME: tl.constexpr, FULL: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = W·(M·patch). Programs: positions, kernels."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    place = _places(tl.program_id(0), sizes.images, sizes.out_height, sizes.out_width, ROWS)
    tiles = tl.cdiv(channels.outputs, OUTPUTS)
    group = tl.program_id(1) // tiles
    output, computed = _outputs(group, tl.program_id(1) % tiles, channels, OUTPUTS)
    pieces = _pieces(channels.inputs, channels, INPUTS)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for piece in range(group * pieces, (group + 1) * pieces):
        channel, inside, group, block = _piece(piece, channels, INPUTS)
        own = (channel - _far(group, channels.inputs)) * weight.c
        filters = weight.at + _tile(output * weight.o, own)
        wanted = _tile_mask(computed, inside)
        if FULL:
            patches = _patches(x, place, channel, inside, sizes, FRAME)
            for s in range(TAPS):
                columns = _mixed(m, place, block, s, patches, FRAME).to(DTYPE)
                kernel = tl.load(filters + _far(s, weight.t), wanted, 0.0)
                total = tl.dot(columns, tl.trans(kernel), total, input_precision=PRECISION)
        else:
            for t in range(TAPS):
                patch = _patch(x, place, channel, inside, t, sizes, FRAME)
                factor = _entry(m, place, block, t, t)
                columns = (patch.to(tl.float32) * factor[:, None]).to(DTYPE)
                kernel = tl.load(filters + _far(t, weight.t), wanted, 0.0)
                total = tl.dot(columns, tl.trans(kernel), total, input_precision=PRECISION)
    _store(y, place, output, computed, total)


@triton.jit
def diagonal_gradients(
    grad, x, weight, m, grad_x, grad_m, sizes, channels, FRAME: tl.constexpr, NEEDS_X: tl.constexpr,
    NEEDS_M: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of x and of a diagonal M. Programs: pixels, pieces, remainders by the strides.

    A pixel is seen by a tap at one position at most, and all pixels of a program have the same
    remainder by the strides, so the same taps see them. G = Wᵀ·grad at that position gives both
    gradients: dx = Σ m·G, dm = <G, x>. Every sum is taken by one program, every number is written
    once: nothing depends on the order of programs.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    image, row, column, exists = _places(
        tl.program_id(0),
        sizes.images,
        tl.cdiv(sizes.height, FRAME.sh),
        tl.cdiv(sizes.width, FRAME.sw),
        ROWS,
    )
    top, left = tl.program_id(2) // FRAME.sw, tl.program_id(2) % FRAME.sw
    row, column = row * FRAME.sh + top, column * FRAME.sw + left
    exists = exists & (row < sizes.height) & (column < sizes.width)
    pixel = image, row, column, exists
    piece = tl.program_id(1)
    channel, inside, group, block = _piece(piece, channels, INPUTS)
    own = (channel - _far(group, channels.inputs)) * weight.c
    part = piece % _pieces(channels.block, channels, INPUTS)
    here = _load(x, pixel, channel, inside).to(tl.float32)
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for t in range(TAPS):
        down = top + FRAME.ph - t // FRAME.kw * FRAME.dh
        right = left + FRAME.pw - t % FRAME.kw * FRAME.dw
        if (down % FRAME.sh == 0) & (right % FRAME.sw == 0):
            place = _seers(pixel, t, sizes, FRAME)
            outgoing = _outgoing(
                grad, weight, place, own, inside, group, t, channels, PRECISION, OUTPUTS, ROWS
            )
            if NEEDS_X:
                total += outgoing * _entry(m, place, block, t, t)[:, None]
            if NEEDS_M:
                _store_entry(grad_m, place, part, block, t, t, tl.sum(outgoing * here, 1))
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
    pixel = _places(tl.program_id(0), sizes.images, sizes.height, sizes.width, ROWS)
    channel, inside, group, block = _piece(tl.program_id(1), channels, INPUTS)
    own = (channel - _far(group, channels.inputs)) * weight.c
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for tile in range(tl.cdiv(channels.outputs, OUTPUTS)):
        output, computed = _outputs(group, tile, channels, OUTPUTS)
        views = ()
        for t in tl.static_range(TAPS):
            views = views + (_load(grad, _seers(pixel, t, sizes, FRAME), output, computed),)
        kernels = weight.at + _tile(output * weight.o, own)
        for s in range(TAPS):
            mixed = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for t in tl.static_range(TAPS):
                factor = _entry(m, _seers(pixel, t, sizes, FRAME), block, s, t)
                mixed += views[t].to(tl.float32) * factor[:, None]
            kernel = tl.load(kernels + _far(s, weight.t), _tile_mask(computed, inside), 0.0)
            total = tl.dot(mixed.to(DTYPE), kernel, total, input_precision=PRECISION)
    _store(grad_x, pixel, channel, inside, total)


@triton.jit
def full_similarity_gradient(
    grad, x, weight, grad_m, sizes, channels, FRAME: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of a full M: dM_st = <W_sᵀ·grad, x_t>. Programs: positions, pieces."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    place = _places(tl.program_id(0), sizes.images, sizes.out_height, sizes.out_width, ROWS)
    piece = tl.program_id(1)
    channel, inside, group, block = _piece(piece, channels, INPUTS)
    own = (channel - _far(group, channels.inputs)) * weight.c
    part = piece % _pieces(channels.block, channels, INPUTS)
    patches = _patches(x, place, channel, inside, sizes, FRAME)
    for s in range(TAPS):
        outgoing = _outgoing(
            grad, weight, place, own, inside, group, s, channels, PRECISION, OUTPUTS, ROWS
        )
        for t in tl.static_range(TAPS):
            product = tl.sum(outgoing * patches[t].to(tl.float32), 1)
            _store_entry(grad_m, place, part, block, s, t, product)


@triton.jit
def weight_gradient(
    grad, x, m, parts, span, sizes, channels, FRAME: tl.constexpr, FULL: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Partial sums over `span` positions each of dW_s = Σ grad·(M·patch)_s.

    Programs: pieces and kernel taps, kernels, parts.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    s, part = tl.program_id(0) % TAPS, tl.program_id(2)
    channel, inside, group, block = _piece(tl.program_id(0) // TAPS, channels, INPUTS)
    own = (channel - _far(group, channels.inputs)) * parts.c
    output, computed = _outputs(group, tl.program_id(1), channels, OUTPUTS)
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for step in range(span // ROWS):
        start = part * (span // ROWS) + step
        place = _places(start, sizes.images, sizes.out_height, sizes.out_width, ROWS)
        outgoing = _load(grad, place, output, computed)
        if FULL:
            patches = _patches(x, place, channel, inside, sizes, FRAME)
            columns = _mixed(m, place, block, s, patches, FRAME).to(DTYPE)
        else:
            patch = _patch(x, place, channel, inside, s, sizes, FRAME).to(tl.float32)
            columns = (patch * _entry(m, place, block, s, s)[:, None]).to(DTYPE)
        total = tl.dot(tl.trans(outgoing), columns, total, input_precision=PRECISION)
    at = parts.at + _far(part, parts.part) + _far(s, parts.t)
    tl.store(at + _tile(output * parts.o, own), total, _tile_mask(computed, inside))


@triton.jit
def _places(program, images, height, width, ROWS: tl.constexpr):
    """Image, row and column of a program's consecutive positions, and whether they exist.

    Vectors are divided in int32, which is several times faster: only their start is int64.
    """
    start = program.to(tl.int64) * ROWS
    area = height * width
    image = start // area
    within = (start - image * area).to(tl.int32) + tl.arange(0, ROWS)
    image += within // area
    within %= area
    row, column = within // width, within % width
    return image, row.to(tl.int64), column.to(tl.int64), image < images


@triton.jit
def _seers(pixel, tap, sizes, FRAME: tl.constexpr):
    """The places at which `tap` sees pixels of the input; they exist where it sees them."""
    image, row, column, exists = pixel
    row = row + FRAME.ph - tap // FRAME.kw * FRAME.dh
    column = column + FRAME.pw - tap % FRAME.kw * FRAME.dw
    exists = exists & (row >= 0) & (row % FRAME.sh == 0)
    exists = exists & (column >= 0) & (column % FRAME.sw == 0)
    row, column = row // FRAME.sh, column // FRAME.sw
    exists = exists & (row < sizes.out_height) & (column < sizes.out_width)
    return image, row, column, exists


@triton.jit
def _pieces(count, channels, INPUTS: tl.constexpr):
    """Pieces in `count` channels, a multiple of a run."""
    return count // channels.run * tl.cdiv(channels.run, INPUTS)


@triton.jit
def _piece(piece, channels, INPUTS: tl.constexpr):
    """The channels of a piece, which of them are in it, its group and its block."""
    parts = tl.cdiv(channels.run, INPUTS)
    start = piece // parts * channels.run
    offset = piece % parts * INPUTS + tl.arange(0, INPUTS)
    group, block = start // channels.inputs, start // channels.block
    return tl.cast(start, tl.int64) + offset, offset < channels.run, group, block


@triton.jit
def _outputs(group, tile, channels, OUTPUTS: tl.constexpr):
    """The kernels of a tile of a group, and whether they are of that group."""
    offset = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.cast(group, tl.int64) * channels.outputs
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
    image, row, column, exists = place
    row = row * FRAME.sh - FRAME.ph + tap // FRAME.kw * FRAME.dh
    column = column * FRAME.sw - FRAME.pw + tap % FRAME.kw * FRAME.dw
    exists = exists & (row >= 0) & (row < sizes.height)
    exists = exists & (column >= 0) & (column < sizes.width)
    return _load(x, (image, row, column, exists), channel, inside)


@triton.jit
def _mixed(m, place, block, s, patches, FRAME: tl.constexpr):
    """Row s of M times the patches, in float32."""
    total = patches[0].to(tl.float32) * _entry(m, place, block, s, 0)[:, None]
    for t in tl.static_range(1, FRAME.kh * FRAME.kw):
        total += patches[t].to(tl.float32) * _entry(m, place, block, s, t)[:, None]
    return total


@triton.jit
def _outgoing(
    grad, weight, place, own, inside, group, tap, channels, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Wᵀ·grad of one tap: the gradient (ROWS, INPUTS) of its column."""
    total = tl.zeros((ROWS, own.shape[0]), tl.float32)
    for tile in range(tl.cdiv(channels.outputs, OUTPUTS)):
        output, computed = _outputs(group, tile, channels, OUTPUTS)
        at = weight.at + _tile(output * weight.o, own) + _far(tap, weight.t)
        kernel = tl.load(at, _tile_mask(computed, inside), 0.0)
        values = _load(grad, place, output, computed)
        total = tl.dot(values, kernel, total, input_precision=PRECISION)
    return total


@triton.jit
def _entry(m, place, block, s, t):
    """M_st at every place; 0 where there is none."""
    image, row, column, exists = place
    at = m.at + _far(block, m.b) + _far(s, m.s) + _far(t, m.t)
    return tl.load(at + image * m.n + row * m.h + column * m.w, exists, 0.0)


@triton.jit
def _store_entry(m, place, part, block, s, t, values):
    image, row, column, exists = place
    at = m.at + _far(part, m.part) + _far(block, m.b) + _far(s, m.s) + _far(t, m.t)
    tl.store(at + image * m.n + row * m.h + column * m.w, values, exists)


@triton.jit
def _load(images, place, channel, inside):
    """The tile (places, channels)."""
    image, row, column, exists = place
    rows = image * images.n + row * images.h + column * images.w
    return tl.load(images.at + _tile(rows, channel * images.c), _tile_mask(exists, inside), 0.0)


@triton.jit
def _store(images, place, channel, inside, values):
    image, row, column, exists = place
    rows = image * images.n + row * images.h + column * images.w
    tl.store(images.at + _tile(rows, channel * images.c), values, _tile_mask(exists, inside))


@triton.jit
def _tile(rows, columns):
    return rows[:, None] + columns[None, :]


@triton.jit
def _tile_mask(rows, columns):
    return rows[:, None] & columns[None, :]


@triton.jit
def _far(index, stride):
    """An offset that may exceed int32."""
    return tl.cast(index, tl.int64) * stride
