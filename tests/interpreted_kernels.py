"""The Triton kernels under Triton's interpreter: `ops/test_triton.py` runs this in its own process.

The interpreter is chosen when triton is imported, for the whole process; its product of bfloat16
matrices is wrong, so that type is checked on GPUs only.
"""

from functools import partial
from itertools import product

import pytest
import torch
from kernel_laws import CASES, KINDS, LARGE, Case, auto_backend, check
from pointwise_laws import LAWS, MAPS, check_second_derivatives
from problems import Problem
from torch.func import grad
from torch.testing import assert_close

from neural_similarity.nn import Conv2d
from neural_similarity.ops import declines, pointwise, sphere
from neural_similarity.ops.triton import is_interpreted, launch

both_kinds = pytest.mark.parametrize("kind", KINDS)
TINY = Case(Problem("tiny", (1, 2), (1, 1), (0, 1), size=(1, 2), channels=(3, 2), batch=1))


TYPES = torch.float32, torch.float16
SMALL = [*product(CASES, TYPES[:1]), (CASES[1], torch.float16)]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*SMALL, *(pytest.param(*large, marks=pytest.mark.slow) for large in product(LARGE, TYPES))],
    ids=str,
)
@both_kinds
def test_awkward_convolutions(case, kind, dtype):
    check(case, kind, dtype)


@pytest.mark.parametrize("backend", ["triton", "eager"])
@both_kinds
def test_half_precision_near_its_largest_number(kind, backend):
    x, weight, m = CASES[1].operands(kind)
    operands = (3e4 * x).clamp(-6e4, 6e4), weight / 64, m
    outgoing = torch.full_like(CASES[1](*operands, backend="reference"), 1e-3)
    truth = CASES[1].results(operands, outgoing, torch.float64, "reference")
    found = CASES[1].results(operands, outgoing, torch.float16, backend)
    for right, ours in zip(truth, found, strict=True):
        assert (ours - right).abs().max() <= 0.01 * right.abs().max()


@pytest.mark.parametrize("wanted", range(3), ids=["x", "weight", "m"])
@both_kinds
def test_one_gradient_alone_is_the_same(wanted, kind):
    operands = [t.float() for t in TINY.operands(kind)]

    def gradient(backend):
        copies = [t.clone().requires_grad_(i == wanted) for i, t in enumerate(operands)]
        return torch.autograd.grad(TINY(*copies, backend=backend).square().sum(), copies[wanted])

    assert_close(gradient("triton"), gradient("reference"))


@pytest.mark.parametrize("kind", ["diagonal", pytest.param("full", marks=pytest.mark.slow)])
def test_second_derivatives(kind):
    operands = [t.float() for t in TINY.operands(kind)]

    def curvature(backend):
        def norm(*operands):
            loss = grad(lambda *x: TINY(*x, backend=backend).pow(3).sum(), (0, 1, 2))
            return sum(g.square().sum() for g in loss(*operands))

        return grad(norm, (0, 1, 2))(*operands)

    assert_close(curvature("triton"), curvature("reference"), rtol=1e-4, atol=1e-3)


@pytest.fixture
def _processors_maps(monkeypatch):
    monkeypatch.setattr(pointwise, "takes_maps", lambda _: True)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # NumPy's
@pytest.mark.usefixtures("_processors_maps")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("maps", MAPS, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_pointwise_parts(law, maps, dtype):
    LAWS[law](maps, dtype, "cpu")


@pytest.mark.usefixtures("_processors_maps")
def test_second_derivatives_of_pointwise_parts():
    check_second_derivatives("cpu")


@pytest.mark.usefixtures("_processors_maps")
@pytest.mark.parametrize("angle", ["cosine", "linear"])
def test_a_map_without_a_batch_is_one_of_a_batch_and_changes_in_place(angle, monkeypatch):
    monkeypatch.setattr(sphere, "takes_maps", lambda _: True)
    x, weight = torch.randn(3, 4, 5, requires_grad=True), torch.randn(2, 3, 3, 3)
    results = []
    for batch in (False, True):
        y = sphere.sphere_conv2d(x[None] if batch else x, weight, padding=1, angle=angle)
        y = y[0] if batch else y
        results.append([y, *torch.autograd.grad(y.relu_().square().sum(), x)])
    for one, other in zip(*results, strict=True):
        assert_close(one, other)


@pytest.mark.usefixtures("_processors_maps")
def test_a_layer_computes_the_same_with_them(monkeypatch):
    layer = Conv2d(5, 4, 3, padding=1, similarity="dynamic-diagonal")
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(1, 5, 4, 3, requires_grad=True)

    def results(function):
        y = function(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    monkeypatch.setattr(sphere, "takes_maps", lambda _: True)
    found = results(layer)
    monkeypatch.setattr(sphere, "takes_maps", lambda _: False)
    monkeypatch.setattr(pointwise, "takes_maps", lambda _: False)
    for one, expected in zip(found, results(layer), strict=True):
        assert_close(one, expected, rtol=1e-4, atol=1e-4)


def test_tuning_happens_once_per_kernel_and_channels(monkeypatch):
    runs = []

    def clock(kernel, quantiles):
        kernel()
        runs.append(kernel)
        return [1.0] * len(quantiles)

    tune = partial(launch.triton.autotune, do_bench=clock)
    monkeypatch.setattr(launch.triton, "autotune", tune)
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    torch.use_deterministic_algorithms(False)
    for _ in range(2):
        check(TINY, "diagonal", torch.float32)
        assert len(runs) == len(launch.CONFIGS[4, False]) * 3


def test_it_takes_the_processors_tensors_when_asked_only():
    x = torch.zeros(1, 2, 4, 4)
    assert launch.triton.knobs.runtime.interpret
    assert is_interpreted()
    assert declines("triton", x, 9) is None
    assert auto_backend(x) != "triton"
