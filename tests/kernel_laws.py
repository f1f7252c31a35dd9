"""What the kernels in C and Triton must obey: on a CPU, on a GPU or under Triton's interpreter."""

from dataclasses import dataclass

import torch
from problems import Problem
from torch import Tensor

from neural_similarity.functional import similarity_conv1d, similarity_conv2d
from neural_similarity.ops.backend import choose_backend
from neural_similarity.ops.blocks import Blocks
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.window import make_window


def auto_backend(x: Tensor, taps: int = 9, filters: int = 6, groups: int = 1) -> str:
    """The backend that "auto" takes for x and an M of one block; the numbers do not matter."""
    dims = x.dim() - 2
    weight = torch.zeros(filters, x.shape[1] // groups, taps, *[1] * (dims - 1))
    m = torch.zeros(len(x), 1, taps, *x.shape[2:])
    window = make_window(weight.shape[2:], 1, 0, 1)
    return choose_backend("auto", Operands(x, weight, m, window, groups))


@dataclass(frozen=True)
class Case:
    """An awkward convolution: sizes that no tile divides, every axis with a size of its own."""

    problem: Problem
    blocks: Blocks | None = None
    line: bool = False
    layout: str = "channels_last"

    def __str__(self) -> str:
        return self.problem.name

    def operands(self, kind: str) -> list[Tensor]:
        """x, weight and M in float64, M near I so that low precision is a matter of rounding."""
        x, weight = self.problem.operands()
        count = 1 if self.blocks is None else self.blocks[1]
        m = torch.stack([self.problem.similarity(kind) for _ in range(count)], 1) * 0.3
        m += 1 if kind == "diagonal" else torch.eye(m.shape[2], dtype=m.dtype)[..., None, None]
        m = m[:, 0] if self.blocks is None else m
        if self.line:
            return [x[:, :, 0], weight[:, :, 0], m[..., 0, :]]
        return [x, weight, m]

    def arranged(self, x: Tensor, weight: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same operands in the layout; conversions to other types would undo it."""
        if self.layout == "channels_last" and not self.line:
            x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
        if self.layout == "strided":
            x = x.repeat_interleave(2, 3)[..., ::2]
            weight = weight.transpose(2, 3).contiguous().transpose(2, 3)
            m = m.movedim(1, -1).contiguous().movedim(-1, 1)
        if self.layout == "expanded":
            x, m = x[:1].expand_as(x), m[:1].expand_as(m)
        return x, weight, m

    def __call__(self, *operands: Tensor, backend: str) -> Tensor:
        geometry = self.problem.geometry
        if self.line:
            geometry = (*(side[1] for side in geometry[:3]), geometry[3])
        convolution = similarity_conv1d if self.line else similarity_conv2d
        return convolution(*operands, None, *geometry, blocks=self.blocks, backend=backend)

    def results(self, operands, outgoing, dtype, backend, device="cpu") -> list[Tensor]:
        """y and the gradients of x, weight and M, from operands of a dtype on a device."""
        types = dtype, dtype, torch.promote_types(dtype, torch.float32)
        pairs = zip(operands, types, strict=True)
        copies = self.arranged(*(t.to(device, type).detach() for t, type in pairs))
        copies = [t.requires_grad_() for t in copies]
        y = self(*copies, backend=backend)
        return [y, *torch.autograd.grad(y, copies, outgoing.to(device, dtype))]


def _steps(tensor: Tensor) -> list[int]:
    """Strides of the dimensions along which there is a step to take: the memory format."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def check(case: Case, kind: str, dtype: torch.dtype, device="cpu", backend="triton") -> None:
    """Errors are at most twice those of the eager form, or float32's rounding.

    In 16 bits, or that type's: of a few numbers the roundings of the columns and of the result are
    sometimes more than twice the eager form's, which takes float16 in float32.
    """
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 1e-5
    x, weight, m = (t.float() for t in case.operands(kind))
    operands = [x.to(dtype).double(), weight.to(dtype).double(), m.double()]
    outgoing = torch.randn_like(case(*operands, backend="reference")).to(dtype)
    truth = case.results(operands, outgoing, torch.float64, "reference")
    eager = case.results(operands, outgoing, dtype, "eager")
    ours = case.results(operands, outgoing, dtype, backend, device)
    for name, a, e, t in zip(("y", "x", "weight", "m"), ours, eager, truth, strict=True):
        assert a.dtype == e.dtype, name
        if t.numel():
            assert _steps(a) == _steps(e), name
            limit = max(2 * (e - t).abs().max(), rounding * t.abs().max())
            assert (a.cpu() - t).abs().max() <= limit, name


KINDS = ("diagonal", "full")
CASES = [
    Case(Problem("tiles", (1, 2), channels=(33, 66), padding=(0, 1), size=(2, 7))),
    Case(Problem("stride", (2, 2), (2, 3), (1, 1), size=(4, 7)), layout="strided"),
    Case(Problem("dilation", (3, 1), (1, 1), (3, 0), (2, 1), size=(3, 4)), layout="contiguous"),
    Case(Problem("both", (1, 3), (1, 2), (0, 1), (1, 3), size=(3, 9), batch=1)),
    Case(Problem("blocks", (1, 2), groups=2, channels=(4, 2), size=(2, 3)), ("channels", 4)),
    Case(Problem("line", (1, 3), size=(1, 9), padding=(0, 1)), line=True),
    Case(Problem("empty", batch=0)),
]
"""Small: an interpreted operation takes a tenth of a millisecond."""
LARGE = [
    Case(Problem("square", channels=(20, 17))),
    Case(Problem("square-stride", (3, 3), (2, 2), channels=(36, 36), size=(8, 7))),
    Case(Problem("even", (2, 4), padding=(1, 2), channels=(5, 130))),
    Case(Problem("many-positions", (1, 2), padding=(0, 0), size=(24, 25))),
    Case(Problem("groups", (1, 2), groups=2, padding=(0, 0), size=(2, 5))),
    Case(Problem("depthwise", (2, 2), groups=4, channels=(4, 8))),
    Case(Problem("cut", (1, 2), groups=2, channels=(12, 6), size=(2, 4)), ("channels", 3)),
    Case(Problem("filters", (2, 2), groups=2, channels=(4, 8)), ("filters", 4)),
    Case(Problem("wide-padding", (2, 3), padding=(3, 4), channels=(70, 3))),
]
