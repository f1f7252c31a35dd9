"""W M in C, its derivatives and its layouts, beside the same in float64."""

import pytest
import torch
from against_float64 import TOLERANCE, error, gradients, in_float64
from compiler import in_c

from neural_similarity.functional import fold_kernel
from neural_similarity.ops import kernel as module
from neural_similarity.ops import native

SHAPES = [
    (4, 3, 3, 3),
    (5, 40, 3, 3),
    (6, 7, 5, 5),
    (3, 1, 7, 7),
    (2, 33, 1, 4),
    (2, 3, 4),
    (1, 2, 8, 8),
]
LAYOUTS = {
    "rows": lambda w: w,
    "maps": lambda w: w.movedim(1, -1).contiguous().movedim(-1, 1),
    "strided": lambda w: torch.stack([w, w], -1)[..., 0],
}
pytestmark = in_c


def operands(shape, layout, kind):
    taps = torch.Size(shape[2:]).numel()
    w = LAYOUTS[layout](torch.randn(shape)).requires_grad_()
    return w, torch.randn(taps if kind == "diagonal" else (taps, taps), requires_grad=True)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_gradients(shape, layout, dtype, kind, monkeypatch):
    calls = []
    fold = module._fold_op
    monkeypatch.setattr(module, "_fold_op", lambda *given: (calls.append(1), fold(*given))[1])
    given = operands(shape, layout, kind)
    exact = in_float64(given)
    folded, right = fold_kernel(*given, dtype=dtype), fold_kernel(*exact)
    assert calls == [1]
    assert folded.dtype == dtype
    assert layout != "maps" or folded.movedim(1, -1).is_contiguous()
    assert error(folded, right) <= TOLERANCE[dtype]
    grad = LAYOUTS[layout](torch.randn(shape)).to(dtype)
    found = gradients(folded, given, grad)
    for one, other in zip(found, gradients(right, exact, grad.double()), strict=True):
        assert error(one, other) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("frozen", [0, 1])
def test_only_one_gradient(frozen):
    given = operands((4, 3, 3, 3), "rows", "full")
    given[frozen].requires_grad_(False)
    grad = torch.randn(4, 3, 3, 3)
    exact = in_float64(given)
    (found,) = gradients(fold_kernel(*given), [given[1 - frozen]], grad)
    (right,) = gradients(fold_kernel(*exact), [exact[1 - frozen]], grad.double())
    assert error(found, right) <= TOLERANCE[torch.float32]


def test_second_derivatives():
    given = operands((4, 3, 3, 3), "rows", "full")

    def penalty(w, m):
        grads = torch.autograd.grad(fold_kernel(w, m).square().sum(), (w, m), create_graph=True)
        return sum(g.square().sum() for g in grads)

    exact = in_float64(given)
    for found, right in zip(
        gradients(penalty(*given), given, None),
        gradients(penalty(*exact), exact, None),
        strict=True,
    ):
        assert error(found, right) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("shape", [(7, 5, 3, 3), (6, 1, 5, 5), (7, 1, 5, 5), (2, 1, 3, 3)], ids=str)
def test_threads_agree(shape):
    given = operands(shape, "rows", "full")
    grad = torch.randn(shape)
    single = gradients(fold_kernel(*given), given, grad)
    torch.set_num_threads(3)
    several = gradients(fold_kernel(*given), given, grad)
    torch.set_num_threads(1)
    assert torch.equal(single[0], several[0])
    assert error(several[1], single[1].double()) <= TOLERANCE[torch.float32]


def test_registered_operators():
    w, m = (t.detach() for t in operands((4, 3, 9), "rows", "full"))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(module._fold_op, (w, m, torch.bfloat16), test_utils=tests)
    grad = torch.randn_like(w)
    given = grad, w, m, (True, True)
    torch.library.opcheck(module._fold_backward_op, given, test_utils=tests)


def test_what_c_declines():
    w, m = torch.randn(2, 3, 9), torch.randn(9, 9)
    assert native.takes_kernel(w, m, torch.float32)
    assert not native.takes_kernel(w.double(), m.double(), torch.float64)
    assert not native.takes_kernel(w, torch.randn(27, 27), torch.float32)
    assert not native.takes_kernel(torch.randn(2, 3, 65), torch.randn(65, 65), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["in C", "by torch"])
def test_a_channels_last_kernel_stays_channels_last(dtype):
    kernel = torch.randn(4, 3, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
    folded = fold_kernel(kernel, torch.randn(9, 9, dtype=dtype))
    assert folded.is_contiguous(memory_format=torch.channels_last)
