"""Whether the kernels compute what the operator means, on this GPU and for these channels."""

import torch
from torch import Tensor

from neural_similarity.ops.halo import WINDOW, launch
from neural_similarity.ops.operands import Operands

SIZE, BATCH = (11, 18), 2
"""Of the maps: ragged tiles, and several for each group of few blocks."""
FEW = 2
"""Multiprocessors of the first run."""
_FAULTS: dict[tuple[torch.device, int, int, torch.dtype], str | None] = {}
"""What `find_fault` found."""


def kernel_fault(
    device: torch.device, channels: int, outputs: int, dtype: torch.dtype
) -> str | None:
    """Why the kernels cannot be trusted, or None; found out once per GPU, channels and type."""
    key = device, channels, outputs, dtype
    if key not in _FAULTS:
        if torch.cuda.is_current_stream_capturing():
            return "they are untried here, and a graph is being captured"
        _FAULTS[key] = find_fault(*key)
    return _FAULTS[key]


def find_fault(device: torch.device, channels: int, outputs: int, dtype: torch.dtype) -> str | None:
    """Run the kernels on few and on all multiprocessors, and compare with the definition."""
    given, grad = trial_operands(device, channels, outputs, dtype)
    task = launch.make_task(given)
    try:
        few = kernel_results(task._replace(multiprocessors=FEW), grad)
        many = kernel_results(task, grad)
        return compare_results(few, many, true_results(given, grad))
    except (RuntimeError, OSError) as error:
        words = str(error).strip().partition("\n")[0]
        return f"they do not run here: {words}"


def trial_operands(
    device: torch.device,
    channels: int,
    outputs: int,
    dtype: torch.dtype,
    size: tuple[int, int] = SIZE,
) -> tuple[Operands, Tensor]:
    """Random operands, and a gradient of y."""
    generator = torch.Generator().manual_seed(0)

    def maps(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        values = torch.randn(*shape, generator=generator).to(device, dtype)
        return values.contiguous(memory_format=torch.channels_last)

    x, grad = maps(BATCH, channels, *size), maps(BATCH, outputs, *size)
    weight = maps(outputs, channels, 3, 3) / channels**0.5
    m = maps(BATCH, 9, *size, dtype=torch.float32)
    return Operands(x, weight, m.unsqueeze(1), WINDOW, 1), grad


def kernel_results(task: launch.KernelTask, grad: Tensor) -> list[Tensor]:
    """y and the gradients of x, weight and M."""
    return [task.forward(), *task.backward(grad, (True, True, True))]


def true_results(given: Operands, grad: Tensor) -> list[Tensor]:
    """The same by the operator's eager form, in float64."""
    operators = torch.ops.neural_similarity
    operands = [tensor.double() for tensor in given[:3]]
    arguments = *operands, WINDOW.stride, WINDOW.padding, WINDOW.dilation, given.groups, "eager"
    needs = (True, True, True)
    return [
        operators.diagonal_conv(*arguments),
        *operators.diagonal_conv_backward(grad.double(), *arguments, needs),
    ]


def compare_results(few: list[Tensor], many: list[Tensor], truth: list[Tensor]) -> str | None:
    """Why results are wrong, or None: errors beyond rounding, or bits that change with the grid."""
    for name, one, other, true in zip(("y", "dx", "dW", "dM"), few, many, truth, strict=True):
        error = float((one.double() - true).norm() / true.norm())
        if not error <= torch.finfo(few[0].dtype).eps:  # NaN is an error
            return f"{name} differs from the eager form in float64 by {error:.1e} here"
        # dW is a sum over blocks, and changes with their number.
        if name != "dW" and not torch.equal(one, other):
            return f"{name} differs between two runs here"
    return None
