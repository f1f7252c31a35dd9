"""Pictures of what a network learned: M of every layer, and dynamic M over images."""

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from neural_similarity.choices import extra_needed, public_names, require_count
from neural_similarity.files import new_file
from neural_similarity.nn import (
    DynamicSimilarity,
    MaskedModule,
    SimilarityLayer,
    StaticSimilarity,
)
from neural_similarity.nn.modes import check_module, evaluation_mode
from neural_similarity.ops import require_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Kernels", "draw", "kernel_shapes", "mean_matrix", "plot_maps", "plot_matrices",
    "plot_shapes", "similarities",
]  # fmt: skip
__dir__ = public_names(__name__)
_CELL = 1.4
"""Side of a small picture in inches."""
Kernels = Mapping[str, Sequence[int]]


@torch.no_grad()
def similarities(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """M of every convolution that has one, by the layer's name, in float32 on the CPU.

    Static: (K,) or (K, K). Dynamic, of `Conv2d` alone: (n, K, h, w) or (n, K, K, h, w) over the
    network's input `x`, (n, c, height, width). Unshared blocks are averaged. The network runs in
    evaluation mode; modes are restored afterwards.

    Returns:
        M of every layer, by name.
    """
    check_module(model)
    require_tensors(x=x)
    found: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_pre_hook(_recording_hook(found, name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, _ConvNd) and isinstance(layer, SimilarityLayer)
    ]
    try:
        with evaluation_mode(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _recording_hook(found: dict[str, Tensor], name: str) -> Any:
    def note(layer: SimilarityLayer, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        part = layer.similarity
        if isinstance(part, StaticSimilarity):
            m, block_axis = part.matrix(), 0
        elif isinstance(part, DynamicSimilarity) and isinstance(layer, nn.Conv2d):
            x = args[0] if args else named["input"]
            m, block_axis = part.matrix(x if x.dim() == 4 else x[None]), 1
        else:
            return
        m = m.mean(block_axis) if part.structure.blocks else m
        found[name] = m.float().cpu()

    return note


@torch.no_grad()
def kernel_shapes(model: nn.Module) -> dict[str, Tensor]:
    """D of every layer that learns its kernel's shape (`ns.Masked`), as large as the kernel.

    Returns:
        Kernel shapes by the names of layers.
    """
    check_module(model)
    return {
        ".".join(word for word in name.split(".") if word != "similarity"): shape.float().cpu()
        for name, part in model.named_modules()
        if isinstance(part, StaticSimilarity | DynamicSimilarity)
        for masked in part.modules()
        if isinstance(masked, MaskedModule)
        for shape in (masked.kernel_shape().view(part.geometry.kernel_size),)
    }


def plot_shapes(shapes: dict[str, Tensor], columns: int = 5) -> "Figure":
    """A picture for every layer, showing which taps its kernel has.

    Returns:
        The figure.

    Raises:
        ValueError: `shapes` does not map names to tensors, or `columns` is below 1.
    """
    figure, grid = _layer_grid("shapes", shapes, columns, frames=True)
    for axis, (name, shape) in zip(grid.flat, shapes.items(), strict=False):
        axis.imshow(shape.reshape(-1, shape.shape[-1]).numpy(), cmap="gray", vmin=0, vmax=1)
        axis.set_title(f"{name}: {int(shape.count_nonzero())} taps", fontsize=7)
    figure.suptitle("kernel shape D (white: in use)", fontsize=9)
    return figure


def mean_matrix(m: Tensor) -> Tensor:
    """(K, K) of any M that `similarities` returns: the mean over images and positions.

    Returns:
        M, averaged over positions and images; of a diagonal one, the matrix.

    Raises:
        ValueError: `m` is not a tensor of real numbers on a device.
    """
    _check_drawable("m", m)
    if m.dim() > 2:
        m = m.movedim(0, -1).flatten(m.dim() - 3).mean(-1)
    mean = torch.diag(m) if m.dim() == 1 else m
    if mean.dim() != 2 or mean.shape[0] != mean.shape[1]:
        raise ValueError(f"`m` must be (K,), (K, K), (n, K, h, w) or so, got {tuple(m.shape)}")
    return mean


def plot_matrices(
    found: dict[str, Tensor], columns: int = 5, kernels: Kernels | None = None
) -> "Figure":
    """A heat map of M - I per layer, on one colour scale: rows are kernel taps, columns patch taps.

    If `kernels` gives the layer's kernel size, taps are drawn at their places in the kernel: a
    diagonal M as one kernel, any other M as a map over the patch's taps for every kernel tap. An M
    over channels and taps stays a matrix.

    Returns:
        The figure.

    Raises:
        ValueError: `found` does not map names to matrices or `kernels` to sizes, or `columns` is
            below 1.
    """
    _check_kernels(kernels)
    figure, grid = _layer_grid("found", found, columns, 2 * _CELL)
    figure.get_layout_engine().set(wspace=0.25)  # pyright: ignore  # wider than between taps
    panels = {name: _draw_panel(m, (kernels or {}).get(name)) for name, m in found.items()}
    limit = max(1e-6, *(panel.nan_to_num().abs().max().item() for panel in panels.values()))
    for axis, (name, panel) in zip(grid.flat, panels.items(), strict=False):
        axis.imshow(panel.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set_title(name, fontsize=8)
    figure.colorbar(grid.flat[0].images[0], ax=grid, shrink=0.8, label="M - I")
    return figure


def _draw_panel(m: Tensor, kernel: Sequence[int] | None) -> Tensor:
    """M - I as an image."""
    mean = mean_matrix(m)
    change = mean - torch.eye(len(mean))
    if kernel is None or len(change) != prod(kernel):  # over channels, too
        return change
    rows, columns = prod(kernel[:-1]), kernel[-1]
    if m.dim() in (1, 4):
        return change.diagonal().view(rows, columns)
    return _arrange_maps(change.view(-1, rows, columns), (rows, columns))


def _arrange_maps(maps: Tensor, places: tuple[int, int]) -> Tensor:
    """Maps (rows * columns, h, w) in their places (rows, columns), with NaN between them."""
    rows, columns = places
    framed = functional.pad(maps, (0, 1, 0, 1), value=torch.nan)
    height, width = framed.shape[1:]
    whole = framed.view(rows, columns, height, width).transpose(1, 2)
    return whole.reshape(rows * height, columns * width)[:-1, :-1]


def plot_maps(
    x: Tensor, m: Tensor, title: str = "", kernel: tuple[int, int] | None = None
) -> "Figure":
    """A dynamic M over images: each image, the distance ‖M - I‖, and M's diagonal tap by tap.

    The taps' maps are drawn at their places in the kernel; all images share the two colour scales.

    Args:
        x: (n, c, height, width), in any range.
        m: (n, K, h, w) or (n, K, K, h, w).
        title: The title above the picture.
        kernel: Height and width of the kernel; None is square where K allows it, else one row.

    Returns:
        The figure.

    Raises:
        ValueError: the shapes do not fit.
    """
    require_tensors(x=x)
    _check_drawable("m", m)
    _check_kernels(None if kernel is None else {"": kernel}, "kernel")
    if x.dim() != 4 or m.dim() not in (4, 5) or len(x) != len(m) or x.is_complex() or x.is_meta:
        raise ValueError(
            "`x` and `m` must be (n, c, height, width) and (n, K, h, w) or (n, K, K, h, w), got "
            f"{tuple(x.shape)} and {tuple(m.shape)}"
        )
    diagonal = m if m.dim() == 4 else m.diagonal(dim1=1, dim2=2).movedim(-1, 1)
    taps, side = diagonal.shape[1], isqrt(diagonal.shape[1])
    places = kernel or ((side, side) if side * side == taps else (1, taps))
    if len(places) != 2 or prod(places) != taps:
        raise ValueError(f"`kernel` must be two numbers whose product is {taps}, got {kernel!r}")
    distance = _identity_distance(m)
    figure, grid = _figure_grid(len(x), 3, 2 * _CELL)
    spread = max((diagonal - 1).abs().max().item(), 1e-6)
    for row, image, far, one in zip(grid, x, distance, diagonal, strict=True):
        row[0].imshow(_displayable_image(image).numpy(), cmap="gray")
        row[1].imshow(far.numpy(), cmap="magma", vmin=0, vmax=max(distance.max().item(), 1e-6))
        mosaic = _arrange_maps(one, places).numpy()
        row[2].imshow(mosaic, cmap="RdBu_r", vmin=1 - spread, vmax=1 + spread)
    for axis, text in zip(grid[0], ("image", "‖M - I‖", "M's diagonal, by tap"), strict=True):
        axis.set_title(text, fontsize=8)
    for column in (1, 2):
        figure.colorbar(grid[0, column].images[0], ax=grid[:, column], shrink=0.8)
    figure.suptitle(title, fontsize=9)
    return figure


def _layer_grid(
    argument: str, tensors: object, columns: int, cell: float = _CELL, *, frames: bool = False
) -> tuple["Figure", Any]:
    """`_figure_grid` for tensors by name, after a check that each can be drawn."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise ValueError(f"`{argument}` must map names of layers to tensors, got {tensors!r}")
    for name, tensor in tensors.items():
        _check_drawable(f"{argument}[{name!r}]", tensor)
    require_count("columns", columns)
    columns = min(columns, len(tensors))
    return _figure_grid(-(-len(tensors) // columns), columns, cell, frames=frames)


def _check_drawable(argument: str, tensor: object) -> None:
    """Check that a tensor holds floating-point numbers that can be drawn."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"`{argument}` must be a tensor, got {tensor!r}")
    none = tensor.is_meta or not tensor.dim() or not tensor.numel()
    if none or not tensor.is_floating_point():
        raise ValueError(
            f"`{argument}` must hold floating-point numbers, got {tensor.dtype} "
            f"{tuple(tensor.shape)} on {tensor.device}"
        )


def _check_kernels(kernels: object, argument: str = "kernels") -> None:
    """Check that these are sizes of kernels."""
    sizes = kernels.values() if isinstance(kernels, Mapping) else [kernels]
    for size in [] if kernels is None else sizes:
        numbers = size if isinstance(size, tuple | list) else ()
        if not numbers or any(not isinstance(n, int) or n < 1 for n in numbers):
            raise ValueError(f"`{argument}` must give sizes of kernels, got {kernels!r}")


def _figure_grid(
    rows: int, columns: int, cell: float = _CELL, *, frames: bool = False
) -> tuple["Figure", Any]:
    """A figure and its axes, (rows, columns), without ticks, `cell` inches each."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise extra_needed(error, "ns.visualize") from None

    figure = Figure((columns * cell, rows * cell + 0.5), layout="constrained")
    look = {"frame_on": frames, "xticks": [], "yticks": []}
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw=look)
    return figure, grid


def _identity_distance(m: Tensor) -> Tensor:
    """Frobenius norm of M - I at every position, (n, h, w)."""
    if m.dim() == 4:
        return (m - 1).square().sum(1).sqrt()
    identity = torch.eye(m.shape[1]).view(m.shape[1], m.shape[1], 1, 1)
    return (m - identity).square().sum((1, 2)).sqrt()


def _displayable_image(image: Tensor) -> Tensor:
    """(c, height, width) as (height, width) or (height, width, 3), stretched to 0..1."""
    image = image.detach().float().cpu()
    image = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-12)
    return image.movedim(0, -1) if len(image) == 3 else image.mean(0)


def draw(model: nn.Module, x: Tensor, folder: str | Path) -> list[Path]:
    """Write `similarities.png`, `maps-LAYER.png` for every dynamic `Conv2d`, and `shapes.png`.

    The last is written only if kernel shapes are learned. Dynamic similarities are drawn for
    two-dimensional convolutions, not for LSTMs and whole maps.

    Args:
        model: A network.
        x: Its input, a few images: (n, c, height, width).
        folder: The folder of the pictures; it is created if it is missing.

    Returns:
        The files; none for a network without similarities that can be drawn.

    Raises:
        ValueError: `x` is not a batch of images.
    """
    check_module(model)
    require_tensors(x=x)
    if not isinstance(folder, str | Path):
        raise ValueError(f"`folder` must be a path, got {folder!r}")
    if x.dim() != 4:
        raise ValueError(f"`x` must be images (n, c, height, width), got {tuple(x.shape)}")
    folder = Path(folder)
    found = similarities(model, x)
    layers = {name: model.get_submodule(name) for name in found}
    kernels: Any = {name: layer.kernel_size for name, layer in layers.items()}
    figures = {"similarities": plot_matrices(found, kernels=kernels)} if found else {}
    for name, m in found.items():
        if m.dim() > 2:
            figures[f"maps-{name}"] = plot_maps(x, m, name, kernels[name])
    if shapes := kernel_shapes(model):
        figures["shapes"] = plot_shapes(shapes)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        with new_file(path) as file:
            figure.savefig(file, format="png", dpi=110)
    return paths
