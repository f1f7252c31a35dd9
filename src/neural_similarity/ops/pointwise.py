r"""The pointwise operations of a predictor, one kernel each on a GPU.

$$f(p) = \frac{s}{\sqrt{\sum X(p)^2 + \varepsilon}}, \qquad
z_c(p) = \max(0,\ y_c(p)\, f(p)), \qquad m_t(p) = g_t\, r_t(p) + i_t$$

the factors of patches X, a scaled and rectified map, and M from the predicted values r. On other
devices, and for derivatives of derivatives, torch's own operations run. The kernels are registered
operators, so that compiled programs use them too: the code that `torch.compile` made of torch's
operations was slower than the operations themselves.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn import grad as convolution_gradients

from neural_similarity.ops import triton
from neural_similarity.ops.operands import channels_last
from neural_similarity.ops.registration import register_operator
from neural_similarity.ops.tracing import by_torch, runs_eagerly
from neural_similarity.ops.window import Window, promote_dtype

_INPUTS = {3: convolution_gradients.conv1d_input, 4: convolution_gradients.conv2d_input}


def takes_maps(x: Tensor) -> bool:
    """Whether the GPU kernels take the maps x (n, c, *size)."""
    if not x.is_cuda or x.dim() not in _INPUTS:
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting() and triton.takes_traced(x)
    return runs_eagerly(x) and triton.declines_triton(x, 1) is None


def patch_factors(x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
    """`factor` over the norm of every patch, (n, 1, *out), float32; `takes(x)` must be True."""
    return _Factors.apply(x, window, eps, factor)


def scale_maps(y: Tensor, factors: Tensor, *, rectified: bool) -> Tensor:
    """y (n, c, *size) times positive factors (n, 1, *size), in y's type, and its ReLU if asked."""
    if takes_maps(y):
        return _Scaled.apply(y, factors, rectified)
    z = (y * factors).to(y.dtype)
    return F.relu(z) if rectified else z


def apply_gain(raw: Tensor, gain: Tensor, every: int) -> Tensor:
    """raw (n, c, *size) times gain (c,), plus 1 in every `every`-th channel (0: in none).

    In float32 at least: bfloat16 would lose predictions that are small against the identity.
    """
    if takes_maps(raw):
        return _Gained.apply(raw, gain, every)
    raw, shape = promote_dtype(raw), (-1, *[1] * (raw.dim() - 2))
    start = torch.full_like(gain, float(every == 1), dtype=raw.dtype)
    if every > 1:
        start = (torch.arange(len(gain), device=gain.device) % every == 0).to(raw.dtype)
    start, gain = start.view(shape), gain.to(raw.dtype).view(shape)
    if by_torch():  # Core ML has no addcmul.
        return start + raw * gain
    return torch.addcmul(start, raw, gain)


class _Factors(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, eps: float, factor: float) -> Tensor:
        factors = _factors_op(x, *window, eps, factor)
        ctx.save_for_backward(x, factors)
        ctx.window, ctx.factor = window, factor
        return factors

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,), (x, factors) = grad_outputs, ctx.saved_tensors
        if _first_order():
            gradient = _factors_backward_op(grad, x, factors, *ctx.window, ctx.factor)
            return gradient, None, None, None
        window = ctx.window
        energy = grad * factors.pow(3) * (-1 / ctx.factor**2)
        box, shape = energy.new_ones(1, 1, *window.kernel_size), (len(x), 1, *x.shape[2:])
        pixels = _INPUTS[x.dim()](
            shape, box, energy, window.stride, window.padding, window.dilation
        )
        return (x * pixels).to(x.dtype), None, None, None


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, factors: Tensor, rectified: bool) -> Tensor:
        z = _scaled_op(y, factors, rectified)
        # Keep a ReLU's output, as torch does; any other output may be changed in place later.
        ctx.save_for_backward(z if rectified else y, factors)
        ctx.rectified = rectified
        return z

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (z, factors) = grad_outputs, ctx.saved_tensors
        if _first_order():
            return *_scaled_backward_op(grad, z, factors, ctx.rectified), None
        grad = grad * (z > 0) if ctx.rectified else grad
        of_factors = (promote_dtype(grad) * z).sum(1, keepdim=True)
        of_factors = of_factors / factors if ctx.rectified else of_factors
        return (grad * factors).to(z.dtype), of_factors, None


class _Gained(Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, gain: Tensor, every: int) -> Tensor:
        ctx.save_for_backward(raw, gain)
        return _gained_op(raw, gain, every)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (raw, gain) = grad_outputs, ctx.saved_tensors
        if _first_order():
            return *_gained_backward_op(grad, raw, gain), None
        shape = (-1, *[1] * (raw.dim() - 2))
        positions = (0, *range(2, raw.dim()))
        of_gain = (grad * raw).sum(positions).to(gain.dtype)
        return (grad * gain.view(shape)).to(raw.dtype), of_gain, None


def _first_order() -> bool:
    """Whether a backward pass is for first derivatives only, as compiled ones are."""
    return torch.compiler.is_compiling() or not torch.is_grad_enabled()


def _load_kernels() -> Any:
    from neural_similarity.ops.triton import pointwise

    return pointwise


def _empty_like(maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(channels_last(maps), dtype=dtype)


_WINDOW = "SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation"
_factors_op = register_operator(
    "patch_factors",
    f"(Tensor x, {_WINDOW}, float eps, float factor) -> Tensor",
    lambda x, *rest: _load_kernels().patch_factors(x, _pair_window(*rest[:4]), *rest[4:]),
    lambda x, *rest: x.new_empty(
        len(x), 1, *_pair_window(*rest[:4]).output_size(x.shape[2:]), dtype=torch.float32
    ),
)
_factors_backward_op = register_operator(
    "patch_factors_backward",
    f"(Tensor grad, Tensor x, Tensor factors, {_WINDOW}, float factor) -> Tensor",
    lambda grad, x, factors, *rest: _load_kernels().patch_factors_gradient(
        grad, x, factors, _pair_window(*rest[:4]), rest[4]
    ),
    lambda _grad, x, *_: _empty_like(x),
)
_scaled_op = register_operator(
    "scaled",
    "(Tensor y, Tensor factors, bool rectified) -> Tensor",
    lambda *given: _load_kernels().scale_maps(*given),
    lambda y, *_: _empty_like(y),
)
_scaled_backward_op = register_operator(
    "scaled_backward",
    "(Tensor grad, Tensor z, Tensor factors, bool rectified) -> (Tensor, Tensor)",
    lambda *given: _load_kernels().scaled_gradient(*given),
    lambda _grad, z, factors, _rectified: (_empty_like(z), torch.empty_like(factors)),
)
_gained_op = register_operator(
    "gained",
    "(Tensor raw, Tensor gain, int every) -> Tensor",
    lambda *given: _load_kernels().apply_gain(*given),
    lambda raw, *_: _empty_like(raw, torch.float32),
)
_gained_backward_op = register_operator(
    "gained_backward",
    "(Tensor grad, Tensor raw, Tensor gain) -> (Tensor, Tensor)",
    lambda *given: _load_kernels().gained_gradient(*given),
    lambda _grad, raw, gain: (_empty_like(raw), torch.empty_like(gain)),
)


def _pair_window(*sides: Any) -> Window:
    return Window(*map(tuple, sides))
