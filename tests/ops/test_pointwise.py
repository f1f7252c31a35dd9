"""A predictor's parts between its convolutions, by torch, against float64."""

import pytest
import torch
from pointwise_laws import LAWS, MAPS, check_second_derivatives

from neural_similarity.ops import pointwise, pointwise_torch

every_law = pytest.mark.parametrize("law", LAWS)
on_every_map = pytest.mark.parametrize("maps", MAPS, ids=str)
DTYPES = [torch.float32, torch.bfloat16]


@every_law
@on_every_map
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_by_torch(law, maps, dtype):
    assert pointwise.implementation(torch.empty(1, 1, 1, dtype=dtype)) is pointwise_torch
    LAWS[law](maps, dtype, "cpu")


@on_every_map
def test_norms_are_wide_under_autocast(maps):
    with torch.autocast("cpu", torch.bfloat16):
        LAWS["factors"](maps, torch.float32, "cpu")


def test_second_derivatives():
    check_second_derivatives("cpu")


def test_a_rectifiers_gradient_is_torchs_for_numbers_that_are_none():
    y = torch.tensor([float("nan"), 1.0, 0.0, 2.0, -1.0]).view(1, 5, 1, 1).requires_grad_()
    z = torch.relu(y)
    grad = torch.tensor([1.0, 1.0, float("inf"), 1.0, float("inf")]).view(1, 5, 1, 1)
    (true,) = torch.autograd.grad(z, y, grad)
    found, _ = pointwise_torch.scaled_gradient(grad, z.detach(), torch.ones(1, 1, 1, 1), True)
    assert torch.equal(found, true)
