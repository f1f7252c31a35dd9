"""The kernels: implicit matrix products that apply M to their tiles, or to a tap's product.

Programs take `ROWS` positions, or pixels of the input, by `INPUTS` input channels or `OUTPUTS`
kernels. A piece is up to `INPUTS` consecutive channels of one group and one block. Sums are
float32, products with M are rounded once, into `DTYPE`. M[kernel tap s, patch tap t]; a diagonal
one has s = t.
"""

import triton
import triton.language as tl

from neural_similarity.ops.triton.places import (
    load_tile,
    mask_of,
    offset_of,
    places_of,
    rows_of,
    seeing_places,
    shift_places,
    store_tile,
    tile_of,
)


@triton.jit
def forward(
    x, weight, m, y, sizes, channels, FRAME: tl.constexpr, FULL: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = W·(M·patch). Programs: positions, kernels."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    place = places_of(tl.program_id(0), sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
    tiles = tl.cdiv(channels.outputs, OUTPUTS)
    # Programs of the second axis are (group, tile of its kernels); a group's pieces follow each
    # other, so that the loop below runs over the group's own channels alone.
    group = tl.program_id(1) // tiles
    output, computed = _tile_outputs(group, tl.program_id(1) % tiles, channels, OUTPUTS, FRAME)
    pieces = _piece_count(channels.inputs, channels, INPUTS)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for piece in range(group * pieces, (group + 1) * pieces):
        channel, inside, group, block = _piece_channels(piece, channels, INPUTS, FRAME)
        own = (channel - offset_of(group, FRAME) * channels.inputs) * weight.c
        filters = tile_of(output * weight.o, own)
        wanted = mask_of(computed, inside)
        if FULL:
            # Row s of M mixes all K taps, so that they stay in registers for the K columns.
            patches = _load_patches(x, place, channel, inside, sizes, FRAME)
            for s in range(TAPS):
                columns = _narrow(_mix_row(m, place, block, s, patches, FRAME), DTYPE)
                kernel = tl.load(weight.at + s * weight.t + filters, wanted, 0.0)
                total = tl.dot(columns, tl.trans(kernel), total, input_precision=PRECISION)
        else:
            for t in range(TAPS):
                patch = _load_patch(x, place, channel, inside, t, sizes, FRAME)
                factor = _load_entry(m, place, block, t, t, FRAME)
                kernel = tl.load(weight.at + t * weight.t + filters, wanted, 0.0)
                # M multiplies the product: on its way there, as an operand, the patch would pass
                # through registers, to be converted twice, in four tenths of the instructions.
                product = tl.dot(patch, tl.trans(kernel), input_precision=PRECISION)
                total += product * factor[:, None]
    store_tile(y, place, output, computed, _widen(total, DTYPE) if FULL else total)


@triton.jit
def diagonal_gradients(
    grad, x, weight, m, grad_x, grad_m, sizes, channels, FRAME: tl.constexpr, NEEDS_X: tl.constexpr,
    NEEDS_M: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of x and of a diagonal M. Programs: pixels, pieces, remainders by the strides.

    A pixel is seen by a tap at one position at most, and all pixels of a program have the same
    remainder by the strides, so the same taps see them. G = Wᵀ·grad at that position gives both
    gradients: dx = Σ m·G, dm = <G, x>. Every sum is taken by one program, every value is written
    once: nothing depends on the order of programs.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    high, wide = tl.cdiv(sizes.height, FRAME.sh), tl.cdiv(sizes.width, FRAME.sw)
    place = places_of(tl.program_id(0), high, wide, sizes, ROWS, FRAME)
    top, left = tl.program_id(2) // FRAME.sw, tl.program_id(2) % FRAME.sw
    image, row, column, exists, _, _ = place
    corner = image, row * FRAME.sh, column * FRAME.sw, exists, 0, 0
    pixel = shift_places(corner, top, left, sizes.height, sizes.width)
    piece = tl.program_id(1)
    channel, inside, group, block = _piece_channels(piece, channels, INPUTS, FRAME)
    own = (channel - offset_of(group, FRAME) * channels.inputs) * weight.c
    part = piece % _piece_count(channels.block, channels, INPUTS)
    here = load_tile(x, pixel, channel, inside)
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for t in range(TAPS):
        # Tap t of position q sees pixel q·s - p + t·d. Pixels here are place·s + (top, left), so
        # q = place + (top + p - t·d) / s, where that division leaves no remainder.
        down = top + FRAME.ph - t // FRAME.kw * FRAME.dh
        right = left + FRAME.pw - t % FRAME.kw * FRAME.dw
        if (down % FRAME.sh == 0) & (right % FRAME.sw == 0):
            seer = shift_places(
                place, down // FRAME.sh, right // FRAME.sw, sizes.out_height, sizes.out_width
            )
            outgoing = _outgoing_gradient(
                grad, weight, seer, own, inside, group, t, channels, PRECISION, OUTPUTS, TILES,
                ROWS, FRAME,
            )  # fmt: skip
            if NEEDS_X:
                total += outgoing * _load_entry(m, seer, block, t, t, FRAME)[:, None]
            if NEEDS_M:
                product = tl.sum(outgoing * here.to(tl.float32), 1)
                _store_entry(grad_m, seer, part, block, t, t, product, FRAME)
    if NEEDS_X:
        store_tile(grad_x, pixel, channel, inside, total)


@triton.jit
def full_data_gradient(
    grad, weight, m, grad_x, sizes, channels, FRAME: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of x under a full M. Programs: pixels, pieces.

    K positions see a pixel, tap t at p_t, and add to its gradient; M mixes their contributions
    before W is applied: dx = Σ_s W_sᵀ Σ_t M_st(p_t)·grad(p_t). It is one matrix product, as in
    `forward`, and needs no sum over programs.
    """
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    pixel = places_of(tl.program_id(0), sizes.height, sizes.width, sizes, ROWS, FRAME)
    channel, inside, group, block = _piece_channels(tl.program_id(1), channels, INPUTS, FRAME)
    own = (channel - offset_of(group, FRAME) * channels.inputs) * weight.c
    total = tl.zeros((ROWS, INPUTS), tl.float32)
    for tile in range(tl.cdiv(channels.outputs, OUTPUTS)):
        output, computed = _tile_outputs(group, tile, channels, OUTPUTS, FRAME)
        views = ()
        for t in tl.static_range(TAPS):
            views = views + (
                load_tile(grad, seeing_places(pixel, t, sizes, FRAME), output, computed),
            )
        kernels = tile_of(output * weight.o, own)
        wanted = mask_of(computed, inside)
        for s in range(TAPS):
            mixed = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for t in tl.static_range(TAPS):
                factor = _load_entry(m, seeing_places(pixel, t, sizes, FRAME), block, s, t, FRAME)
                mixed += views[t].to(tl.float32) * factor[:, None]
            kernel = tl.load(weight.at + s * weight.t + kernels, wanted, 0.0)
            total = tl.dot(mixed.to(DTYPE), kernel, total, input_precision=PRECISION)
    store_tile(grad_x, pixel, channel, inside, total)


@triton.jit
def full_similarity_gradient(
    grad, x, weight, grad_m, sizes, channels, FRAME: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Gradient of a full M: dM_st = <W_sᵀ·grad, x_t>. Programs: positions, pieces."""
    TAPS: tl.constexpr = FRAME.kh * FRAME.kw
    WIDTH: tl.constexpr = triton.next_power_of_2(TAPS)
    place = places_of(tl.program_id(0), sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
    piece = tl.program_id(1)
    channel, inside, group, block = _piece_channels(piece, channels, INPUTS, FRAME)
    own = (channel - offset_of(group, FRAME) * channels.inputs) * weight.c
    part = piece % _piece_count(channels.block, channels, INPUTS)
    patches = _load_patches(x, place, channel, inside, sizes, FRAME)
    tap = tl.arange(0, WIDTH)
    for s in range(TAPS):
        outgoing = _outgoing_gradient(
            grad, weight, place, own, inside, group, s, channels, PRECISION, OUTPUTS, TILES, ROWS,
            FRAME,
        )  # fmt: skip
        # Row s of dM at every position, gathered column by column: Triton has no indexed write into
        # registers, and one store of K numbers is better than K of one.
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
    channel, inside, group, block = _piece_channels(
        tl.program_id(0) // RUNS, channels, INPUTS, FRAME
    )
    own = (channel - offset_of(group, FRAME) * channels.inputs) * parts.c
    output, computed = _tile_outputs(group, tl.program_id(1), channels, OUTPUTS, FRAME)
    # Each program sums over `span` positions of its own; the parts are added up afterwards, in one
    # order, so that the result does not depend on which program ends first.
    totals = ()
    for _ in tl.static_range(TOGETHER):
        totals = totals + (tl.zeros((OUTPUTS, INPUTS), tl.float32),)
    for step in range(span // ROWS):
        start = part * (span // ROWS) + step
        place = places_of(start, sizes.out_height, sizes.out_width, sizes, ROWS, FRAME)
        outgoing = tl.trans(load_tile(grad, place, output, computed))
        sums = ()
        if FULL:
            patches = _load_patches(x, place, channel, inside, sizes, FRAME)
        for i in tl.static_range(TOGETHER):
            s = first + i
            if FULL:
                columns = _mix_row(m, place, block, s, patches, FRAME)
            else:
                patch = _load_patch(x, place, channel, inside, s, sizes, FRAME).to(tl.float32)
                columns = patch * _load_entry(m, place, block, s, s, FRAME)[:, None]
            columns = _narrow(columns, DTYPE)
            sums = sums + (tl.dot(outgoing, columns, totals[i], input_precision=PRECISION),)
        totals = sums
    at = parts.at + tl.cast(part, tl.int64) * parts.part
    for i in tl.static_range(TOGETHER):
        there = tile_of(output * parts.o, own) + (first + i) * parts.t
        tl.store(at + there, _widen(totals[i], DTYPE), mask_of(computed, inside))


@triton.jit
def _piece_count(count, channels, INPUTS: tl.constexpr):
    """Pieces in `count` channels, a multiple of a run."""
    return count // channels.run * tl.cdiv(channels.run, INPUTS)


@triton.jit
def _piece_channels(piece, channels, INPUTS: tl.constexpr, FRAME: tl.constexpr):
    """The channels of a piece, the mask of those in it, its group and its block."""
    # A run is the longest row of channels of one group and one block; `parts` pieces cover it, of
    # which the last may be narrower than INPUTS.
    parts = tl.cdiv(channels.run, INPUTS)
    start = piece // parts * channels.run
    offset = piece % parts * INPUTS + tl.arange(0, INPUTS)
    group, block = start // channels.inputs, start // channels.block
    return offset_of(start, FRAME) + offset, offset < channels.run, group, block


@triton.jit
def _tile_outputs(group, tile, channels, OUTPUTS: tl.constexpr, FRAME: tl.constexpr):
    """The kernels of a tile of a group, and whether they are of that group."""
    offset = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    first = offset_of(group, FRAME) * channels.outputs
    return first + offset, offset < channels.outputs


@triton.jit
def _load_patches(x, place, channel, inside, sizes, FRAME: tl.constexpr):
    """The tiles (ROWS, INPUTS) of all taps."""
    patches = ()
    for t in tl.static_range(FRAME.kh * FRAME.kw):
        patches = patches + (_load_patch(x, place, channel, inside, t, sizes, FRAME),)
    return patches


@triton.jit
def _load_patch(x, place, channel, inside, tap, sizes, FRAME: tl.constexpr):
    """The tile (ROWS, INPUTS) that `tap` sees."""
    # The window's corner may lie in the padding, where `shifted` finds no pixel and `load` gives 0.
    image, row, column, exists, _, _ = place
    corner = image, row * FRAME.sh - FRAME.ph, column * FRAME.sw - FRAME.pw, exists, 0, 0
    down, right = tap // FRAME.kw * FRAME.dh, tap % FRAME.kw * FRAME.dw
    return load_tile(
        x, shift_places(corner, down, right, sizes.height, sizes.width), channel, inside
    )


@triton.jit
def _mix_row(m, place, block, s, patches, FRAME: tl.constexpr):
    """Row s of M times the patches, in float32."""
    total = patches[0].to(tl.float32) * _load_entry(m, place, block, s, 0, FRAME)[:, None]
    for t in tl.static_range(1, FRAME.kh * FRAME.kw):
        total += patches[t].to(tl.float32) * _load_entry(m, place, block, s, t, FRAME)[:, None]
    return total


@triton.jit
def _narrow(columns, DTYPE: tl.constexpr):
    """M times patches in `DTYPE`: a sixteenth in float16, which could not hold the largest."""
    if DTYPE == tl.float16:
        columns = columns / 16
    return columns.to(DTYPE)


@triton.jit
def _widen(total, DTYPE: tl.constexpr):
    """The sum of products with columns of `_narrow`."""
    if DTYPE == tl.float16:
        total = total * 16
    return total


@triton.jit
def _outgoing_gradient(
    grad, weight, place, own, inside, group, tap, channels, PRECISION: tl.constexpr,
    OUTPUTS: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, FRAME: tl.constexpr,
):  # fmt: skip
    """Wᵀ·grad of one tap: the gradient (ROWS, INPUTS) of its column.

    A loop inside the one over taps would keep Triton from prefetching the next tap, hence the case
    of a single tile.
    """
    total = tl.zeros((ROWS, own.shape[0]), tl.float32)
    if TILES == 1:
        output, computed = _tile_outputs(group, 0, channels, OUTPUTS, FRAME)
        values = load_tile(grad, place, output, computed)
        at = weight.at + tap * weight.t + tile_of(output * weight.o, own)
        kernel = tl.load(at, mask_of(computed, inside), 0.0)
        total = tl.dot(values, kernel, total, input_precision=PRECISION)
    else:
        for tile in range(TILES):
            output, computed = _tile_outputs(group, tile, channels, OUTPUTS, FRAME)
            values = load_tile(grad, place, output, computed)
            at = weight.at + tap * weight.t + tile_of(output * weight.o, own)
            kernel = tl.load(at, mask_of(computed, inside), 0.0)
            total = tl.dot(values, kernel, total, input_precision=PRECISION)
    return total


@triton.jit
def _load_entry(m, place, block, s, t, FRAME: tl.constexpr):
    """M_st at every place; 0 where there is none."""
    at, rows, exists = rows_of(m, place)
    at += offset_of(block, FRAME) * m.b + offset_of(s, FRAME) * m.s + offset_of(t, FRAME) * m.t
    return tl.load(at + rows, exists, 0.0)


@triton.jit
def _store_entry(m, place, part, block, s, t, values, FRAME: tl.constexpr):
    at, rows, exists = rows_of(m, place)
    at += tl.cast(part, tl.int64) * m.part + offset_of(block, FRAME) * m.b
    at += offset_of(s, FRAME) * m.s + offset_of(t, FRAME) * m.t
    tl.store(at + rows, values, exists)


@triton.jit
def _store_entries(m, place, part, block, s, taps, known, values, FRAME: tl.constexpr):
    """A row s of M at every place, (places, taps)."""
    at, rows, exists = rows_of(m, place)
    at += (
        tl.cast(part, tl.int64) * m.part + offset_of(block, FRAME) * m.b + offset_of(s, FRAME) * m.s
    )
    tl.store(at + tile_of(rows, offset_of(taps, FRAME) * m.t), values, mask_of(exists, known))
