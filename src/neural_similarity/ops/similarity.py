"""The bilinear similarity as one function: checks, then the plan for its kind of M."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops import reference
from neural_similarity.ops.backend import Backend, declines
from neural_similarity.ops.diagonal import diagonal_conv2d
from neural_similarity.ops.full import full_conv2d
from neural_similarity.ops.kernel import fold_kernel
from neural_similarity.ops.window import Window, promoted, same_padding, window, without_autocast


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
    backend: Backend = "auto",
) -> Float[Tensor, "*n o h w"]:
    r"""Convolution with a bilinear similarity between kernel and patch, $y = W^\top M X$.

    $$y_o(p) = \sum_c \sum_{s,t} W_{ocs}\, M_{st}(p)\, X_{ct}(p) + b_o$$

    where s runs over the K = kh·kw kernel taps and t over the patch taps (row by row), and X(p) is
    the patch at output position p. M is shared by all channels and kernels. M = I is
    `torch.nn.functional.conv2d`. A static M folds into the kernel and costs nothing per position;
    a dynamic one adds K·c (diagonal) or K²·c (full) multiplications per position, and keeps only
    x, weight and M for backward. Paper (https://arxiv.org/abs/1910.13003): Eq. 1-2, §3.2-3.3; its
    index order is M[kernel tap, patch tap], as here.

    Under autocast x and weight take the autocast type and M stays in float32.

    Args:
        x: Input, with or without a batch dimension.
        weight: Kernel, as in `torch.nn.functional.conv2d`.
        similarity: M; static (K,) diagonal or (K, K); dynamic (n, K, h, w) or (n, K, K, h, w),
            one per output position (without n where `x` has none).
        bias: Added to every output position.
        stride: Step of the window.
        padding: Zeros on both sides, or "same" (stride 1) or "valid".
        dilation: Distance between taps.
        groups: Number of channel groups, as in `torch.nn.functional.conv2d`.
        backend: "auto", "eager" or "reference", see `neural_similarity.ops.declines`.

    Returns:
        y, in the memory format of `x`. Differentiable to every order, under `torch.func` as well.

    Raises:
        ValueError: shapes, geometry or dtypes do not fit, or the backend declines.
    """
    _check_input(x, weight, bias, groups)
    if reason := declines(backend, x):
        raise ValueError(f"the {backend} backend declines this input: {reason}")
    if similarity.dim() <= 2:
        _check_static(similarity, weight)
        kernel = fold_kernel(weight, similarity)
        return F.conv2d(x, kernel, bias, stride, padding, dilation, groups)
    if x.dim() == 3:
        y = similarity_conv2d(
            x[None], weight, similarity[None], bias, stride, padding, dilation, groups,
            backend=backend,
        )  # fmt: skip
        return y[0]
    x, frame = _framed(x, weight, stride, padding, dilation)
    _check_dynamic(similarity, x, frame)
    x, weight, similarity = _autocast(x, weight, similarity)
    operator = _operator(similarity, backend)
    with without_autocast(x):
        y = operator(x, weight, similarity, frame.stride, frame.padding, frame.dilation, groups)
        return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1)


def _operator(similarity: Tensor, backend: str):
    if backend == "reference" or torch.compiler.is_exporting():
        return reference.similarity_conv2d
    return diagonal_conv2d if similarity.dim() == 4 else full_conv2d


def _framed(x: Tensor, weight: Tensor, stride, padding, dilation) -> tuple[Tensor, Window]:
    """`x`, padded here only where both sides differ, and the window that goes over it."""
    kernel_size = weight.shape[2:]
    if not isinstance(padding, str):
        return x, window(kernel_size, stride, padding, dilation)
    if padding not in ("same", "valid"):
        raise ValueError(f'`padding` must be integers, "same" or "valid", got {padding!r}')
    frame = window(kernel_size, stride, 0, dilation)
    if padding == "valid":
        return x, frame
    if any(step != 1 for step in frame.stride):
        raise ValueError(f'`padding` "same" needs `stride` 1, got {stride!r}')
    total = [d * (k - 1) for k, d in zip(frame.kernel_size, frame.dilation, strict=True)]
    if any(t % 2 for t in total):
        return same_padding(x, frame.kernel_size, frame.dilation), frame
    return x, frame._replace(padding=tuple(t // 2 for t in total))


def _autocast(x: Tensor, weight: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operands as a convolution under autocast takes them; M in float32 at least."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    if x.dtype != weight.dtype:
        raise ValueError(f"`weight` must have the input's dtype {x.dtype}, got {weight.dtype}")
    m = promoted(similarity)
    return x, weight, m.to(torch.promote_types(m.dtype, x.dtype))


def _check_input(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if weight.dim() != 4:
        raise ValueError(f"`weight` must be (o, c/groups, kh, kw), got {tuple(weight.shape)}")
    if x.dim() not in (3, 4):
        raise ValueError(f"`x` must be (n, c, h, w) or (c, h, w), got {tuple(x.shape)}")
    out_channels, channels_per_group = weight.shape[:2]
    if not isinstance(groups, int) or groups < 1 or out_channels % groups:
        raise ValueError(f"`groups` must divide the {out_channels} kernels, got {groups!r}")
    if x.shape[-3] != channels_per_group * groups:
        raise ValueError(
            f"`x` must have {channels_per_group * groups} channels for `weight` "
            f"{tuple(weight.shape)} and `groups` {groups}, got {x.shape[-3]}"
        )
    if bias is not None and bias.shape != (out_channels,):
        raise ValueError(f"`bias` must be ({out_channels},), got {tuple(bias.shape)}")


def _check_static(similarity: Tensor, weight: Tensor) -> None:
    taps = weight[0, 0].numel()
    if similarity.shape not in ((taps,), (taps, taps)):
        raise ValueError(
            f"`similarity` must be ({taps},) or ({taps}, {taps}) for a kernel of {taps} taps, "
            f"got {tuple(similarity.shape)}"
        )


def _check_dynamic(similarity: Tensor, x: Tensor, frame: Window) -> None:
    output = frame.output_size(x.shape[2:])
    if min(output) < 1:
        raise ValueError(f"the window {frame} is larger than `x`, {tuple(x.shape)}")
    taps = (frame.taps,) * (similarity.dim() - 3)
    if len(taps) > 2 or similarity.shape != (x.shape[0], *taps, *output):
        taps = taps[:2] or (frame.taps,)
        raise ValueError(
            f"`similarity` must be {(x.shape[0], *taps, *output)}, one per output position, "
            f"got {tuple(similarity.shape)}"
        )
