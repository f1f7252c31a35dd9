"""The compiled operators on 64-bit Arm: cross-compiled, and run by an emulator."""

import shutil

import pytest
import torch
from emulated import Emulated, address, compile_for
from kernel_laws import Case, check
from problems import KINDS, PROBLEMS, Problem
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity.ops import batch_norm, native

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason=f"needs {COMPILER} and {EMULATOR} (Debian: gcc-aarch64-linux-gnu, qemu-user)",
    ),
]


@pytest.fixture(scope="module", params=["armv8-a", "armv8.4-a+sve+bf16"])
def arm(request, tmp_path_factory):
    program = tmp_path_factory.mktemp("arm") / "operators"
    compile_for(COMPILER, [f"-march={request.param}"], program)
    return Emulated(EMULATOR, str(program))


@pytest.fixture(autouse=True)
def _on_arm(arm, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: arm)
    monkeypatch.setattr(native, "_address", address)


WIDTHS = [
    Case(Problem(f"wide-{channels}", channels=channels, size=(5, 6)), layout="contiguous")
    for channels in ((32, 16), (64, 8), (50, 3))
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((Case(problem, layout="contiguous"), torch.float32) for problem in PROBLEMS),
        *((case, dtype) for case in WIDTHS for dtype in (torch.float32, torch.bfloat16)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_at_most_twice_those_of_the_eager_form(case, dtype, kind):
    check(case, kind, dtype, backend="compiled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalisation_and_pool(dtype):
    x = torch.randn(3, 21, 7, 6).to(dtype)
    mean, variance = batch_norm.moments(x)
    exact = x.double().transpose(0, 1).flatten(1)
    assert_close(mean.double(), exact.mean(1), rtol=1e-5, atol=1e-6)
    assert_close(variance.double(), exact.var(1, correction=0), rtol=1e-5, atol=1e-6)
    line = torch.randn(2, 21)
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    pooled = batch_norm.pooled_relu(ours, line)
    slope, offset = line.view(2, 1, -1, 1, 1)
    right = F.relu(F.max_pool2d(theirs.float() * slope + offset, 2)).to(dtype)
    grad = torch.randn(right.shape).to(dtype)
    assert_close(pooled, right)
    found, wanted = (
        torch.autograd.grad(y, t, grad)[0] for y, t in ((pooled, ours), (right, theirs))
    )
    assert_close(found, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
