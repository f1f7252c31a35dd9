"""Correctness before speed: every subject against its oracle in float64, gradients included."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from math import inf, isnan, sqrt

import torch
from torch import Tensor, nn

from benchmarks.subject import Subject

CHUNK = 1 << 15
"""Positions that the oracle takes at a time: what it keeps per position is a hundred times x."""


class Checker:
    """Compares subjects with their oracles; what several of them must compute, it computes once.

    Args:
        grad: Gradient of every subject's output.
        dtype: In which the subjects compute.
    """

    def __init__(self, grad: Tensor, dtype: torch.dtype):
        self.grad, self.dtype = grad, dtype
        self.known: list[tuple[Subject, list[Tensor]]] = []

    def errors(self, subject: Subject) -> dict[torch.dtype, float]:
        """The largest error of the output or of a gradient, by the dtype that it was computed in.

        Gradients that rounding may change at will are compared in float64.
        """
        with without_tf32():
            return self._errors(subject)

    def _errors(self, subject: Subject) -> dict[torch.dtype, float]:
        expected = self._expected(subject)
        if subject.smooth:
            found = outcome(subject.module, subject.inputs, trained(subject.module), self.grad)
            return {self.dtype: _largest(found, expected)}
        twin = deepcopy(subject.module).double()
        exact = outcome(twin, _in_float64(subject.inputs), trained(twin), self.grad)
        return {self.dtype: _output_error(subject), torch.float64: _largest(exact, expected)}

    def _expected(self, subject: Subject) -> list[Tensor]:
        for other, expected in self.known:
            if _same(subject, other):
                return expected
        self.known.append((subject, _by_oracle(subject, self.grad)))
        return self.known[-1][1]


@contextmanager
def without_tf32() -> Iterator[None]:
    """A GPU multiplies float32 as float32 within; by default torch's convolutions round it to TF32.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    convolutions = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    kinds = convolutions, torch.backends.cuda.matmul
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "ieee"
        yield
    finally:
        for kind, precision in zip(kinds, before, strict=True):
            kind.fp32_precision = precision


def _output_error(subject: Subject) -> float:
    """Error of the output alone, in the subject's own precision and in evaluation mode."""
    module = deepcopy(subject.module).eval()
    with torch.no_grad():
        found = module(*subject.inputs)
        return relative(found, subject.oracle(module.double(), *_in_float64(subject.inputs)))


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(relative(*pair) for pair in zip(found, expected, strict=True))


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected, float64; NaN counts as infinite."""
    difference, length = (found.double() - expected).norm().item(), expected.norm().item()
    value = difference / length if length else difference
    return inf if isnan(value) else value


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module whose gradients count."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def tolerance(dtype: torch.dtype) -> float:
    """The largest error that is rounding: half of the digits of `dtype` must be right."""
    return sqrt(torch.finfo(dtype).eps)


def problem(errors: Mapping[torch.dtype, float]) -> str | None:
    """What is wrong with a subject of these errors, or None."""
    for dtype, error in errors.items():
        if not error <= tolerance(dtype):
            name, limit = str(dtype).removeprefix("torch."), tolerance(dtype)
            return f"wrong: error {error:.1e} in {name}, allowed {limit:.1e}"
    return None


def outcome(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    grad: Tensor,
) -> list[Tensor]:
    """The output, then the gradients of the inputs that require one and of the parameters."""
    y = function(*inputs)
    wanted = [tensor for tensor in inputs if tensor.requires_grad] + list(parameters)
    gradients = torch.autograd.grad(y, wanted, grad.to(y.dtype)) if wanted else ()
    return [y.detach(), *gradients]


def _same(one: Subject, other: Subject) -> bool:
    """Whether both must compute the same of the same."""
    if one.oracle is not other.oracle or len(one.inputs) != len(other.inputs):
        return False
    ours, theirs = list(one.module.parameters()), list(other.module.parameters())
    return (
        all(a is b for a, b in zip(one.inputs, other.inputs, strict=True))
        and len(ours) == len(theirs)
        and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    )


def _by_oracle(subject: Subject, grad: Tensor) -> list[Tensor]:
    """The outcome by the oracle, in float64: images are taken by chunks, if they can be."""
    twin = deepcopy(subject.module).double()
    parameters = trained(twin)
    inputs = _in_float64(subject.inputs)
    step = max(1, CHUNK // grad[0, 0].numel()) if subject.separable else len(grad)
    function = partial(subject.oracle, twin)
    chunks = []
    for start in range(0, len(grad), step):
        images = slice(start, start + step)
        given = [tensor[images] for tensor in inputs]
        chunks.append(outcome(function, given, parameters, grad[images]))
    parts = list(zip(*chunks, strict=True))
    by_image = len(parts) - len(parameters)
    return [torch.cat(p) for p in parts[:by_image]] + [
        torch.stack(p).sum(0) for p in parts[by_image:]
    ]


def _in_float64(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
