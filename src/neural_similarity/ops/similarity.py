"""The bilinear similarity as functions: argument checks, then the implementation for its M.

Of a dynamic M every tap has a factor (diagonal, DNS), or a matrix mixes taps (full, UNS).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops import reference, trilinear
from neural_similarity.ops.backend import Backend, declines
from neural_similarity.ops.blocks import Blocks, by_channels, check_blocks
from neural_similarity.ops.kernel import convolve_by_image, fold_kernel, folds_by_image
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.tracing import only_torch_ops
from neural_similarity.ops.window import (
    CONVOLUTIONS,
    Window,
    autocast_dtype,
    make_window,
    require_tensors,
    without_autocast,
)


def similarity_conv2d(
    x: Float[Tensor, "*n c height width"],
    weight: Float[Tensor, "o c_per_group kh kw"],
    similarity: Float[Tensor, "..."],
    bias: Float[Tensor, " o"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    blocks: Blocks | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "*n o h w"]:
    r"""Convolution with a bilinear similarity between kernel and patch, $y = W^\top M X$.

    $$y_o(p) = \sum_c \sum_{s,t} W_{ocs}\, M_{st}(p)\, X_{ct}(p) + b_o$$

    where s runs over the K = kh·kw kernel taps and t over the patch taps (row by row), and X(p) is
    the patch at output position p. M is shared by all channels and kernels, unless there are
    `blocks`. M = I is `torch.nn.functional.conv2d`. A static M folds into the kernel and costs
    nothing per position; a dynamic one adds K·c (diagonal) or K²·c (full) multiplications per
    position, and keeps only x, weight and M for backward. Paper
    (https://arxiv.org/abs/1910.13003): Eq. 1-2, §3.2-3.3; its index order is M[kernel tap, patch
    tap], as here.

    Under autocast x and weight are cast to its type, except float64, and M stays in float32.

    Args:
        x: Input, with or without a batch dimension.
        weight: Kernel, as in `torch.nn.functional.conv2d`.
        similarity: M; static (K,) diagonal, (K, K), or one (c/groups·K, c/groups·K) over channels
            and taps; dynamic (n, K, h, w) or (n, K, K, h, w), one per output position, or with
            h = w = 1 one per image (without n where `x` has none).
        bias: Added to every output position.
        stride: Step of the window.
        padding: Zeros on both sides, or "same" (stride 1) or "valid".
        dilation: Distance between taps.
        groups: Number of channel groups, as in `torch.nn.functional.conv2d`.
        blocks: ("channels", b) or ("filters", b): each of b consecutive groups of the input's
            channels, or of the kernels, has an M of its own, and `similarity` an axis of that
            length before its taps. Blocks of filters cost as much mixing as b convolutions.
        backend: "auto", "triton", "compiled", "eager" or "reference", see
            `neural_similarity.ops.declines`.

    Returns:
        y, channels-last if `x` or `weight` is, as with torch's convolution; contiguous from the
        reference. Differentiable to every order, under `torch.func` as well.

    Raises:
        ValueError: shapes, devices or the type of M do not fit, or the backend declines; with a
            dynamic M also if geometry or dtypes do not. With a static M torch's convolution checks
            these.
    """
    return similarity_conv(
        2, x, weight, similarity, bias, stride, padding, dilation, groups,
        blocks=blocks, backend=backend,
    )  # fmt: skip


def similarity_conv1d(
    x: Float[Tensor, "*n c length"],
    weight: Float[Tensor, "o c_per_group k"],
    similarity: Float[Tensor, "..."],
    bias: Float[Tensor, " o"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    blocks: Blocks | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "*n o l"]:
    """`similarity_conv2d` over one dimension; dynamic M is (n, k, l) or (n, k, k, l).

    An input without a batch dimension cannot have a dynamic diagonal M here: (k, l) would be read
    as one static matrix.

    Returns:
        The output at every position.
    """
    return similarity_conv(
        1, x, weight, similarity, bias, stride, padding, dilation, groups,
        blocks=blocks, backend=backend,
    )  # fmt: skip


def similarity_conv3d(
    x: Float[Tensor, "*n c depth height width"],
    weight: Float[Tensor, "o c_per_group kd kh kw"],
    similarity: Float[Tensor, "..."],
    bias: Float[Tensor, " o"] | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    blocks: Blocks | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "*n o d h w"]:
    """`similarity_conv2d` over three dimensions; dynamic M is (n, K, d, h, w) or with K, K.

    Returns:
        The output at every position.
    """
    return similarity_conv(
        3, x, weight, similarity, bias, stride, padding, dilation, groups,
        blocks=blocks, backend=backend,
    )  # fmt: skip


def similarity_conv(
    dims: int,
    x: Tensor,
    weight: Tensor,
    similarity: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
    *,
    blocks: Blocks | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """`similarity_conv2d` over `dims` dimensions."""
    there = {} if bias is None else {"bias": bias}
    require_tensors(x=x, weight=weight, similarity=similarity, **there)
    _check_input(dims, x, weight, bias, groups)
    for name, tensor in (("weight", weight), ("similarity", similarity), ("bias", bias)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"`{name}` must be on {x.device}, as `x`, got {tensor.device}")
    if similarity.is_complex():
        raise ValueError(f"`similarity` must be real, got {similarity.dtype}")
    check_blocks(blocks, x.shape[-dims - 1], weight.shape[0], groups)
    asks = backend != "auto" or not x.is_floating_point()
    if asks and (reason := declines(backend, x, weight[0, 0].numel())):
        raise ValueError(f"the {backend} backend declines this input: {reason}")
    if similarity.dim() <= 2 + (blocks is not None):
        _check_static(similarity, weight, blocks)
        kernel = fold_kernel(weight, similarity, blocks, groups)
        return CONVOLUTIONS[dims](x, kernel, bias, stride, padding, dilation, groups)
    if x.dim() == dims + 1:
        y = similarity_conv(
            dims, x[None], weight, similarity[None], bias, stride, padding, dilation, groups,
            blocks=blocks, backend=backend,
        )  # fmt: skip
        return y[0]
    x, frame = _frame_input(x, weight, stride, padding, dilation)
    given = Operands(x, weight, similarity, frame, groups)
    return dynamic_conv(given, frame.output_size(x.shape[2:]), bias, blocks, backend)


def dynamic_conv(
    given: Operands,
    output: tuple[int, ...],
    bias: Tensor | None,
    blocks: Blocks | None,
    backend: Backend = "auto",
) -> Tensor:
    """`similarity_conv` of a batch whose x, weight, bias and blocks are checked already.

    Args:
        given: The operands; without `blocks`, M has no axis for them.
        output: Number of positions along every dimension of y.
        bias: (o,), or None.
        blocks: As in `similarity_conv2d`.
        backend: One that does not decline x.

    Raises:
        ValueError: M is not one matrix per output position or image, or the dtypes of x and weight
            differ.
    """
    x, weight, m, window, _ = given
    diagonal = _checked_is_diagonal(m, x, window, output, blocks)
    if autocast_dtype(x) != autocast_dtype(weight):
        raise ValueError(f"`weight` must have the input's dtype {x.dtype}, got {weight.dtype}")
    given = given._replace(x=x.to(autocast_dtype(x)))
    with without_autocast(x):
        return _typed_conv(given, output, bias, blocks, backend, diagonal)


def _typed_conv(
    given: Operands,
    output: tuple[int, ...],
    bias: Tensor | None,
    blocks: Blocks | None,
    backend: Backend,
    diagonal: bool,
) -> Tensor:
    """`dynamic_conv` of an x in the type of the result, outside autocast."""
    x, weight, m, window, groups = given
    m = m.to(torch.promote_types(torch.float32, x.dtype))
    if m.shape[-len(output) :] != output:
        if backend == "auto" and blocks is None and folds_by_image(x, weight, output, groups):
            return convolve_by_image(given._replace(m=m), bias)
        m = m.expand(*m.shape[: m.dim() - len(output)], *output)
    weight = weight.to(x.dtype)
    by_definition = backend == "reference" or only_torch_ops()
    if by_definition:
        m = m.flatten(-len(output))
    x, m, groups = by_channels(x, m, blocks, groups)
    geometry = (window.stride, window.padding, window.dilation, groups)
    if by_definition:
        y = reference.similarity_conv(x, weight, m, *geometry)
    else:
        y = (diagonal_conv if diagonal else full_conv)(x, weight, m, *geometry, backend)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * len(output))


def _frame_input(x: Tensor, weight: Tensor, stride, padding, dilation) -> tuple[Tensor, Window]:
    """`x` and the window over it; x is padded here only if its two sides need different padding."""
    kernel_size = weight.shape[2:]
    if not isinstance(padding, str):
        return x, make_window(kernel_size, stride, padding, dilation)
    if padding not in ("same", "valid"):
        raise ValueError(f'`padding` must be integers, "same" or "valid", got {padding!r}')
    frame = make_window(kernel_size, stride, 0, dilation)
    if padding == "valid":
        return x, frame
    if any(step != 1 for step in frame.stride):
        raise ValueError(f'`padding` "same" needs `stride` 1, got {stride!r}')
    total = [d * (k - 1) for k, d in zip(frame.kernel_size, frame.dilation, strict=True)]
    if any(t % 2 for t in total):
        return F.pad(x, [side for t in reversed(total) for side in (t // 2, t - t // 2)]), frame
    return x, frame._replace(padding=tuple(t // 2 for t in total))


_SIZES = {1: "w", 2: "h, w", 3: "d, h, w"}
_TAPS = {1: "kw", 2: "kh, kw", 3: "kd, kh, kw"}


def _check_input(dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if weight.dim() != dims + 2:
        raise ValueError(
            f"`weight` must be (o, c/groups, {_TAPS[dims]}), got {_plain_shape(weight)}"
        )
    if x.dim() not in (dims + 1, dims + 2):
        size = _SIZES[dims]
        raise ValueError(f"`x` must be (n, c, {size}) or (c, {size}), got {_plain_shape(x)}")
    out_channels, channels_per_group = weight.shape[:2]
    if not isinstance(groups, int) or groups < 1 or out_channels % groups:
        raise ValueError(f"`groups` must divide the {out_channels} kernels, got {groups!r}")
    channels = x.shape[-dims - 1]
    if channels != channels_per_group * groups:
        raise ValueError(
            f"`x` must have {channels_per_group * groups} channels for `weight` "
            f"{_plain_shape(weight)} and `groups` {groups}, got {channels}"
        )
    if bias is not None and bias.shape != (out_channels,):
        raise ValueError(f"`bias` must be ({out_channels},), got {_plain_shape(bias)}")


def _check_static(similarity: Tensor, weight: Tensor, blocks: Blocks | None) -> None:
    taps, entries = weight[0, 0].numel(), weight[0].numel()
    lead = () if blocks is None else (blocks[1],)
    shapes = [(*lead, taps), (*lead, taps, taps)]
    if blocks is None and entries != taps:
        shapes.append((entries, entries))
    if similarity.shape not in shapes:
        raise ValueError(
            f"`similarity` must be {' or '.join(map(str, shapes))} for a kernel of {taps} taps, "
            f"got {_plain_shape(similarity)}"
        )


def _checked_is_diagonal(
    similarity: Tensor, x: Tensor, frame: Window, output: tuple[int, ...], blocks: Blocks | None
) -> bool:
    """Whether M is diagonal; an error unless it has one matrix per output position or image."""
    if min(output) < 1:
        raise ValueError(f"the window {frame} is larger than `x`, {_plain_shape(x)}")
    lead = (x.shape[0],) if blocks is None else (x.shape[0], blocks[1])
    diagonal = similarity.dim() <= len(lead) + 1 + len(output)
    taps = (frame.taps,) * (1 if diagonal else 2)
    an_image = (*lead, *taps, *[1] * len(output))
    if similarity.shape not in ((*lead, *taps, *output), an_image):
        raise ValueError(
            f"`similarity` must be {(*lead, *taps, *output)}, one per output position, or "
            f"{an_image}, one per image, got {_plain_shape(similarity)}"
        )
    return diagonal


def _plain_shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


diagonal_conv = trilinear.register_trilinear("diagonal_conv", full=False)
"""y_o(p) = Σ_t m_t(p) Σ_c W[o,c,t] X[c,t](p). Paper, §3.3."""
full_conv = trilinear.register_trilinear("full_conv", full=True)
"""y_o(p) = Σ_s Σ_c W[o,c,s] Σ_t M_st(p) X[c,t](p). Paper, Eq. 2 and §3.3."""
