"""Whether the kernels compute what the operator means, on this GPU and for these channels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_similarity.ops.halo import WINDOW, launch
from neural_similarity.ops.halo.whole_layer import LayerTask, make_task
from neural_similarity.ops.operands import LayerTensors, Operands

SIZE, BATCH = (11, 18), 2
"""Of the maps: ragged tiles, and several for each group of few blocks."""
FEW = 2
"""Multiprocessors of the first run."""
SUMS = ("dW", "dW1", "dW2", "db2", "dg")
"""Results that are added up over blocks."""
_FAULTS: dict[tuple, str | None] = {}
"""What `find_fault` found."""


def kernel_fault(given: Operands) -> str | None:
    """Why the kernels cannot be trusted, or None; found out once per GPU, channels, type and M."""
    x, weight, m, *_ = given
    return _known_fault("operator", x.device, x.shape[1], len(weight), x.dtype, m.dim() > 5)


def predictor_fault(x: Tensor, outputs: int, hidden: int) -> str | None:
    """As `kernel_fault`, of the kernels that predict M."""
    return _known_fault("predictor", x.device, x.shape[1], outputs, x.dtype, hidden)


def _known_fault(kind: str, *key: Any) -> str | None:
    if (kind, *key) not in _FAULTS:
        if torch.compiler.is_compiling():
            return "they are untried here, and a program is being traced"
        if torch.cuda.is_current_stream_capturing():
            return "they are untried here, and a graph is being captured"
        find = find_fault if kind == "operator" else find_predictor_fault
        try:
            _FAULTS[kind, *key] = find(*key)
        except (RuntimeError, OSError) as error:
            words = str(error).strip().partition("\n")[0]
            _FAULTS[kind, *key] = f"they do not run here: {words}"
    return _FAULTS[kind, *key]


def find_fault(
    device: torch.device, channels: int, outputs: int, dtype: torch.dtype, full: bool
) -> str | None:
    """Run the kernels on few and on all multiprocessors, and compare with the definition."""
    given, grad = trial_operands(device, channels, outputs, dtype, full)
    task = launch.make_task(given)
    few = kernel_results(task._replace(multiprocessors=FEW), grad)
    many = kernel_results(task, grad)
    return compare_results(few, many, true_results(given, grad))


def trial_operands(
    device: torch.device,
    channels: int,
    outputs: int,
    dtype: torch.dtype,
    full: bool,
    size: tuple[int, int] | None = None,
) -> tuple[Operands, Tensor]:
    """Random operands, and a gradient of y."""
    generator = torch.Generator().manual_seed(0)

    def maps(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        values = torch.randn(*shape, generator=generator).to(device, dtype)
        return values.contiguous(memory_format=torch.channels_last)

    size = size or SIZE
    x, grad = maps(BATCH, channels, *size), maps(BATCH, outputs, *size)
    weight = maps(outputs, channels, 3, 3) / channels**0.5
    m = maps(BATCH, 81 if full else 9, *size, dtype=torch.float32)
    taps = (9, 9) if full else (9,)
    return Operands(x, weight, m.unflatten(1, (1, *taps)), WINDOW, 1), grad


def kernel_results(task: launch.KernelTask, grad: Tensor) -> list[Tensor]:
    """y and the gradients of x, weight and M."""
    return [task.forward(), *task.backward(grad, (True, True, True))]


def true_results(given: Operands, grad: Tensor) -> list[Tensor]:
    """The same by the operator's eager form, in float64."""
    name, operators = "full" if given.m.dim() > 5 else "diagonal", torch.ops.neural_similarity
    operands = [tensor.double() for tensor in given[:3]]
    arguments = *operands, WINDOW.stride, WINDOW.padding, WINDOW.dilation, given.groups, "eager"
    needs = (True, True, True)
    return [
        getattr(operators, f"{name}_conv")(*arguments),
        *getattr(operators, f"{name}_conv_backward")(grad.double(), *arguments, needs),
    ]


def compare_results(
    few: list[Tensor],
    many: list[Tensor],
    truth: list[Tensor],
    names: Sequence[str] = ("y", "dx", "dW", "dM"),
) -> str | None:
    """Why results are wrong, or None: errors beyond rounding, or bits that change with the grid."""
    for name, one, other, true in zip(names, few, many, truth, strict=True):
        error = float((one.double() - true).norm() / true.norm())
        if not error <= torch.finfo(few[0].dtype).eps:  # NaN is an error
            return f"{name} differs from the eager form in float64 by {error:.1e} here"
        # Gradients of weights are sums over blocks, and change with their number.
        if name not in SUMS and not torch.equal(one, other):
            return f"{name} differs between two runs here"
    return None


def find_predictor_fault(
    device: torch.device, channels: int, outputs: int, dtype: torch.dtype, hidden: int
) -> str | None:
    """Run the kernels on few and on all multiprocessors, and compare with float64."""
    with torch.inference_mode(False), torch.enable_grad():  # wherever a layer is first called
        task, grad = predictor_task(device, channels, outputs, dtype, hidden)
        few, many = (predictor_results(one, grad) for one in (task, make_task(task.given)))
        return compare_results(few, many, true_predictor_results(task, grad), PREDICTOR_RESULTS)


EPS, FACTOR = 1e-4, 8.0
"""Of the normalisation in `hidden`."""
PREDICTOR_RESULTS = ("y", "h", "raw", "norms", "dx", "dW", "dW1", "dW2", "db2", "dg")


def predictor_task(
    device: torch.device, channels: int, outputs: int, dtype: torch.dtype, hidden: int
) -> tuple[LayerTask, Tensor]:
    """A layer of random tensors on few multiprocessors, and a gradient of y."""
    given, grad = trial_operands(device, channels, outputs, dtype, full=False)
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    first = numbers(hidden, channels, 3, 3) / channels**0.5
    last, bias = numbers(9, hidden, 3, 3) / hidden**0.5, numbers(9)
    gain, outer_bias = numbers(9, dtype=torch.float32), numbers(outputs)
    tensors = given.x, given.weight, outer_bias, first, last, bias, gain
    return LayerTask(LayerTensors(*tensors), FEW), grad


def predictor_results(task: LayerTask, grad: Tensor) -> list[Tensor]:
    """What forward returns, and the gradients."""
    y, *kept = task.forward(EPS, FACTOR)
    found = task.backward(grad, kept, FACTOR, [True] * 7)
    return [y, *kept, *(one for one in found if one is not None)]


def true_predictor_results(task: LayerTask, grad: Tensor) -> list[Tensor]:
    """The same by torch, in float64."""
    tensors = [t.double().requires_grad_() for t in task.given if isinstance(t, Tensor)]
    x, weight, outer_bias, first, last, bias, gain = tensors
    norms = (F.conv2d(x.square().sum(1, True), x.new_ones(1, 1, 3, 3), padding=1) + EPS).sqrt()
    maps = F.relu(F.conv2d(x, first, padding=1) * FACTOR / norms)
    raw = F.conv2d(maps, last, bias, padding=1)
    m = 1 + gain.view(-1, 1, 1) * raw
    patches = F.unfold(x, 3, padding=1).view(len(x), x.shape[1], 9, *x.shape[2:])
    y = torch.einsum("ock,nkhw,nckhw->nohw", weight.flatten(2), m, patches)
    y = y + outer_bias.view(-1, 1, 1)
    wanted = [tensor for tensor in tensors if tensor is not outer_bias]
    gradients = torch.autograd.grad(y, wanted, grad.double())
    return [one.detach() for one in (y, maps, raw, norms, *gradients)]
