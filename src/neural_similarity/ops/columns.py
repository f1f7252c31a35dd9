"""The eager form of both dynamic operators.

Either the kernel is applied first, and every position takes a weighted sum of its taps' products,
or M is applied first, and the mixed patches (columns) are multiplied by the kernel. The batch is
processed in tiles, so that no tensor of K times the input's size stays in memory, and backward
recomputes the columns of forward.

Letters: n images, *out positions, *kernel taps (K in all), N = n·∏out, c channels, g groups of a
grouped convolution, b blocks of channels that have an M of their own.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.arithmetic import Arithmetic, Diagonal, Full
from neural_similarity.ops.operands import Entry, Gradients, Operands
from neural_similarity.ops.tiles import Tiles, number_positions

COLUMN_BYTES = 1 << 21
"""Size of a tile's columns: about a core's second-level cache."""
PRODUCT_BYTES = 1 << 22
"""Size of a tile's products of the kernel's taps, which are read once: few calls are better."""
MOST_FILTERS = 4
"""Up to this many filters per channel the kernel is applied first; above, columns are smaller."""


class Eager:
    """`operands.Implementation` in torch's operations, for any dtype and device."""

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic

    def forward(self, given: Operands) -> Tensor:
        """`Implementation.forward`, by the cheaper order of the factors."""
        if given.x.dtype == torch.float16:
            return self.forward(_in_float32(given)).half()
        single = given.groups == given.m.shape[1] == max(given.window.stride) == 1
        if single and given.weight.shape[0] <= MOST_FILTERS * given.weight.shape[1]:
            return self._kernel_first(given)
        return self._sweep_tiles(given)[0]

    def backward(self, grad: Tensor, given: Operands, needs: Sequence[bool]) -> Gradients:
        if given.x.dtype == torch.float16:
            of_x, of_weight, of_m = self.backward(grad.float(), _in_float32(given), needs)
            return of_x.half(), of_weight.half(), of_m
        needs_x, needs_weight, needs_m = needs
        mirrored = needs_x and self.arithmetic.mirrors and _has_mirror(given)
        gradients = grad_x, grad_weight, grad_m = given.empty_gradients(needs)
        if mirrored:
            other = given.x if needs_weight else None
            found, grad_kernel = self._sweep_tiles(_mirrored_operands(grad, given), other=other)
            grad_x.copy_(found)
            if needs_weight:
                grad_weight.copy_(_mirror_kernel(grad_kernel, given.groups))
        elif needs_weight:
            _, found = self._sweep_tiles(given, other=grad, joins=False)
            grad_weight.copy_(found)
        if needs_m or (needs_x and not mirrored):
            targets = (None if mirrored or not needs_x else grad_x, grad_m if needs_m else None)
            self._spread_gradient(grad, given, targets)
        return gradients

    def _kernel_first(self, given: Operands) -> Tensor:
        """y as bags over the products of every kernel tap with every input position.

        A position is one bag with all of M; by columns it is K bags, which write K times as much.
        """
        x, weight, m, window, _ = given
        filters, taps = weight.shape[0], window.taps
        tiles = Tiles(given, filters, PRODUCT_BYTES)
        # (o, c, K) to (K·o, c): one product gives what every tap of every filter makes of an input
        # position. Row r of `products` holds input position r as K rows of o numbers, so tap t of
        # it is row K·r + t; row 0 stays zero and stands for positions outside the input.
        kernel = weight.flatten(2).permute(2, 0, 1).flatten(0, 1)
        bags = self._bags_of_rows(tiles.patch_inputs(), m, x.dtype)[:, :, 0] * taps
        bags = (bags + number_positions((taps, 1), x.device)).flatten(1)
        products = x.new_zeros(1 + tiles.most_inputs(), taps * filters)
        y = x.new_empty(x.shape[0] * prod(tiles.output), filters)
        for images in tiles.image_slices():
            for rows in tiles.row_slices():
                start, seen = tiles.seen_positions(x[images], rows)
                torch.mm(seen, kernel.mT, out=products[1 : 1 + len(seen)])
                weights = self._bag_weights(tiles.tile_view(m, images, rows), x.dtype)
                span, first = tiles.position_span(images, rows), rows.start * tiles.row
                some = bags[first : first + len(span)]
                # Bags count from the image's first position, `products` from the tile's.
                if start:
                    some = (some - start * taps).clamp_(min=0)
                y[span.start : span.stop] = _sum_bags(
                    products.view(-1, filters), some, weights.reshape(len(span), -1)
                )
        return given.like_convolution(y.unflatten(0, (x.shape[0], *tiles.output)))

    def _sweep_tiles(
        self, given: Operands, *, other: Tensor | None = None, joins: bool = True
    ) -> tuple[Tensor, Tensor]:
        """y if it `joins` columns and kernel; the kernel's gradient if `other` is that of y."""
        x, weight, m, _, groups = given
        tiles = Tiles(given, x.shape[1], COLUMN_BYTES)
        kernel = _kernel_matrix(weight, groups)
        y = x.new_empty(groups, x.shape[0] * prod(tiles.output), weight.shape[0] // groups)
        grad_kernel = torch.zeros_like(kernel, dtype=_accumulator_dtype(kernel))
        bags = self._bags_of_rows(tiles.patch_rows(), m, x.dtype)
        for images in tiles.image_slices():
            padded = tiles.pad_input(x[images])
            for rows in tiles.row_slices():
                weights = self._bag_weights(tiles.tile_view(m, images, rows), x.dtype)
                columns = _mix_rows(tiles.row_table(padded, rows), bags, weights)
                if joins:
                    span = tiles.position_span(images, rows)
                    _join_columns(columns, kernel, y[:, span.start : span.stop])
                if other is not None:
                    outgoing = _maps_by_group(tiles.tile_view(other, images, rows), groups)
                    grad_kernel += torch.bmm(outgoing.mT, _split_groups(columns, groups))
        if joins:
            # (g, N, o/g) to (n, *out, o): the groups' filters stand side by side again.
            y = y.unflatten(1, (x.shape[0], *tiles.output)).movedim(0, -2).flatten(-2)
            y = given.like_convolution(y)
        return y, _kernel_tensor(grad_kernel, weight)

    def _spread_gradient(
        self, grad: Tensor, given: Operands, targets: tuple[Tensor | None, Tensor | None]
    ) -> None:
        """Write the gradients of x and M into `targets`, by way of the columns' gradient."""
        x, weight, m, window, groups = given
        grad_x, grad_m = targets
        tiles = Tiles(given, x.shape[1], COLUMN_BYTES)
        kernel = _kernel_matrix(weight, groups)
        gradients, patches = tiles.column_buffers(2)
        numbers, transposed = tiles.patch_rows(), self.arithmetic.transpose(m)
        own = None
        if grad_x is not None:
            # The gradient of a tap is a bag over the K columns of its own position, not over rows
            # of the input: position p's are the numbers K·p to K·p + K - 1.
            own = self._bags_of_rows(number_positions(numbers.shape, x.device), m, x.dtype)
        for images in tiles.image_slices():
            padded = tiles.pad_input(x[images])
            sums = None if own is None else torch.zeros_like(padded, dtype=_accumulator_dtype(x))
            for rows in tiles.row_slices():
                size = len(tiles.position_span(images, rows))
                gradient, seen = gradients[:size], patches[:size]
                _expand_gradient(
                    _maps_by_group(tiles.tile_view(grad, images, rows), groups), kernel, gradient
                )
                if own is not None and sums is not None:
                    weights = self._bag_weights(tiles.tile_view(transposed, images, rows), x.dtype)
                    spread = _mix_rows(gradient.flatten(0, 1), own, weights)
                    # Patches overlap: each tap's gradient is added onto the position it came from.
                    window.scatter_columns(window.rows_view(sums, rows), spread)
                if grad_m is not None:
                    table = tiles.row_table(padded, rows)
                    torch.index_select(table, 0, numbers[:size].flatten(), out=seen.flatten(0, 1))
                    found = self.arithmetic.gradient(gradient, seen, m.shape[1])
                    target = tiles.tile_view(grad_m, images, rows)
                    target.copy_(_positions_last(found, target.shape))
            if grad_x is not None and sums is not None:
                grad_x[images] = window.interior_view(sums).movedim(-1, 1)

    def _bags_of_rows(self, patches: Tensor, m: Tensor, dtype: torch.dtype) -> Tensor:
        """Bags (N, K, b, j) of indices of rows of c/b channels; `patches` (N, K) index rows of c.

        Below m's precision a bag holds its own tap once more: see `_weights`.
        """
        # A row of c channels is `blocks` rows of c/b, numbered row·b + block.
        blocks = m.shape[1]
        patches = patches * blocks
        bags = self.arithmetic.bags(patches)
        if dtype != m.dtype:
            bags = torch.cat([bags, patches.unsqueeze(-1)], -1)
        return (bags.unsqueeze(2) + number_positions((blocks, 1), m.device)).contiguous()

    def _bag_weights(self, m: Tensor, dtype: torch.dtype) -> Tensor:
        """Weights (n, *out, K, b, j) of the bags.

        Below m's precision they are M - I, and 1 for the tap itself: the sum x + (M - I)x is
        rounded once, whereas a rounded M would lose small differences from 1.
        """
        weights = self.arithmetic.weights(m)
        if dtype == m.dtype:
            return weights
        *shape, size = weights.shape
        identity = torch.eye(size, dtype=m.dtype, device=m.device).unsqueeze(1)
        low = torch.ones(*shape, size + 1, dtype=dtype, device=m.device)
        low[..., :-1] = weights - identity
        return low


def _in_float32(given: Operands) -> Operands:
    """Operands of float16, in which M times the largest inputs would overflow."""
    return given._replace(x=given.x.float(), weight=given.weight.float())


def _has_mirror(given: Operands) -> bool:
    """Whether the data gradient is cheapest as the operator itself on mirrored arguments.

    This works at stride 1 with one M for all channels; mirroring a full M moves more data than
    adding up the patches.
    """
    m, window = given.m, given.window
    if m.dim() - len(window.kernel_size) > 3 or m.shape[1] > 1:
        return False
    reach = (d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True))
    fits = all(p <= r for p, r in zip(window.padding, reach, strict=True))
    return fits and all(step == 1 for step in window.stride)


def _mirror_kernel(weight: Tensor, groups: int) -> Tensor:
    """The kernel transposed, its taps reversed; its own inverse."""
    # (o, c/g, *kernel) to (c, o/g, *kernel): inputs and outputs change places within each group.
    spatial = tuple(range(2, weight.dim()))
    return weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(spatial)


def _mirrored_operands(grad: Tensor, given: Operands) -> Operands:
    """Operands whose y is the gradient of x, given y's gradient; x is their sweep's `other`.

    An input position meets every tap once, each at another output position: M's taps are reversed,
    and each is read at the position where it is met. M is diagonal and has one block.
    """
    _, weight, m, window, groups = given
    reach = [d * (k - 1) for k, d in zip(window.kernel_size, window.dilation, strict=True)]
    padding = tuple(r - p for r, p in zip(reach, window.padding, strict=True))
    # M of tap t is needed where the mirrored window meets it: pad M as the gradient is padded, view
    # it (n, K, *positions, *kernel) as windows, and take entry t of tap t's windows.
    sides = [p for p in reversed(padding) for _ in range(2)]
    views = F.pad(m[:, 0].flip(1), sides)
    for dim, (k, d) in enumerate(zip(window.kernel_size, window.dilation, strict=True), start=2):
        views = views.unfold(dim, d * (k - 1) + 1, 1)[..., ::d]
    positions = enumerate(product(*map(range, window.kernel_size)))
    own = [views[:, tap][..., *position] for tap, position in positions]
    kernel, mirrored = _mirror_kernel(weight, groups), torch.stack(own, 1).unsqueeze(1)
    return Operands(grad, kernel, mirrored, window._replace(padding=padding), groups)


def _mix_rows(rows: Tensor, bags: Tensor, weights: Tensor) -> Tensor:
    """Columns (N, K, c): weighted sums of `rows` (R, c), of c/b channels each, over `bags`.

    A broadcast product of 32 channels of bfloat16 takes four times as long: its inner loop is one
    row, which is shorter than the two AVX-512 vectors that torch processes at a time.
    """
    # Every (position, tap, block) is one bag of `size` rows; the last tile has fewer positions
    # than `bags`, which were made for the largest.
    taps, blocks, size = bags.shape[1:]
    weights = weights.reshape(-1, size)
    bags = bags.view(-1, size)[: len(weights)]
    rows = rows.view(-1, rows.shape[1] // blocks)
    return _sum_bags(rows, bags, weights).view(-1, taps, blocks * rows.shape[1])


def _sum_bags(rows: Tensor, bags: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (N, c) of `rows` (R, c): `bags` (N, j) of row indices, `weights` (N, j)."""
    return F.embedding_bag(bags, rows, mode="sum", per_sample_weights=weights)


def _maps_by_group(maps: Tensor, groups: int) -> Tensor:
    """(n, c, *out) as (g, N, c/g)."""
    return _split_groups(maps.movedim(1, -1).reshape(-1, 1, maps.shape[1]), groups)


def _positions_last(m: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, b, *taps) as (n, b, *taps, *out) of the given shape."""
    # N is (n, *out): split it, then move the taps before the positions.
    taps = m.dim() - 1
    m = m.view(shape[0], *shape[1 + taps :], *m.shape[1:])
    return m.movedim(tuple(range(-taps, 0)), tuple(range(1, 1 + taps)))


def _split_groups(columns: Tensor, groups: int) -> Tensor:
    """(N, K, c) as (g, N, K·c/g): each group's channels together."""
    if groups == 1:
        return columns.flatten(1).unsqueeze(0)
    return columns.unflatten(2, (groups, -1)).permute(2, 0, 1, 3).flatten(2)


def _join_columns(columns: Tensor, kernel: Tensor, y: Tensor) -> None:
    """Columns (N, K, c) times the kernel (g, o/g, K·c/g) into `y` (g, N, o/g)."""
    if len(kernel) == 1:
        torch.mm(columns.flatten(1), kernel[0].mT, out=y[0])
    else:
        y.copy_(torch.bmm(_split_groups(columns, len(kernel)), kernel.mT))


def _expand_gradient(outgoing: Tensor, kernel: Tensor, out: Tensor) -> None:
    """Multiply y's gradient (g, N, o/g) by the kernel into the columns', `out` (N, K, c)."""
    if len(kernel) == 1:
        torch.mm(outgoing[0], kernel[0], out=out.view(len(out), -1))
    else:
        columns = torch.bmm(outgoing, kernel).unflatten(2, (out.shape[1], -1))
        out.copy_(columns.permute(1, 2, 0, 3).flatten(2))


def _kernel_matrix(weight: Tensor, groups: int) -> Tensor:
    """(o, c/g, *kernel) as contiguous (g, o/g, K·c/g)."""
    return weight.flatten(2).mT.reshape(groups, weight.shape[0] // groups, -1)


def _kernel_tensor(matrix: Tensor, weight: Tensor) -> Tensor:
    """(g, o/g, K·c/g) in the shape of `weight`."""
    return matrix.reshape(weight.shape[0], -1, weight.shape[1]).mT.reshape(weight.shape)


def _accumulator_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of sums over many terms: float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


ENTRY = Entry("eager", lambda _x, _taps: None, lambda full: Eager(Full() if full else Diagonal()))
