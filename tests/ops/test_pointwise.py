"""A predictor's parts between its convolutions, in C and by torch, against float64."""

import pytest
import torch
from compiler import in_c
from pointwise_laws import LAWS, MAPS, check_second_derivatives

from neural_similarity.ops import native, pointwise, pointwise_torch
from neural_similarity.ops.native import pointwise as in_native

every_law = pytest.mark.parametrize("law", LAWS)
on_every_map = pytest.mark.parametrize("maps", MAPS, ids=str)
DTYPES = [torch.float32, torch.bfloat16]


@in_c
@every_law
@on_every_map
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_c(law, maps, dtype):
    assert pointwise.implementation(torch.empty(1, 1, 1, dtype=dtype)) is in_native
    LAWS[law](maps, dtype, "cpu")


@every_law
@on_every_map
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_by_torch(law, maps, dtype, monkeypatch):
    monkeypatch.setattr(native, "load_library", lambda: "there is no C compiler")
    assert pointwise.implementation(torch.empty(1, 1, 1, dtype=dtype)) is pointwise_torch
    LAWS[law](maps, dtype, "cpu")


@on_every_map
def test_norms_are_wide_under_autocast(maps, monkeypatch):
    monkeypatch.setattr(native, "load_library", lambda: "there is no C compiler")
    with torch.autocast("cpu", torch.bfloat16):
        LAWS["factors"](maps, torch.float32, "cpu")


@in_c
def test_second_derivatives_in_c():
    check_second_derivatives("cpu")


@in_c
@pytest.mark.parametrize("last", [False, True])
def test_threads_change_nothing(last):
    """Sums of a gain are added over threads, in float64."""
    x = torch.randn(3, 9, 5, 7)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        of_raw, of_gain = in_native.gained_gradient(x, x, torch.ones(9))
        _, of_factors = in_native.scaled_gradient(x, x, torch.ones(3, 1, 5, 7), False)
        found.append((of_raw, of_gain, of_factors))
    torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@in_c
def test_gains_and_factors_of_other_shapes_are_refused():
    maps = torch.randn(2, 9, 4, 4)
    for gain in (torch.ones(1), torch.ones(12)):
        with pytest.raises(ValueError, match=r"`gain` must be \(9,\), got"):
            in_native.apply_gain(maps, gain, 1)
        with pytest.raises(ValueError, match=r"`gain` must be \(9,\)"):
            in_native.gained_gradient(maps, maps, gain)
    for factors in (torch.ones(2, 1, 3, 4), torch.ones(1, 1, 4, 4)):
        with pytest.raises(ValueError, match=r"`factors` must be \(2, 1, 4, 4\), got"):
            in_native.scale_maps(maps, factors, True)
        with pytest.raises(ValueError, match=r"`factors` must be \(2, 1, 4, 4\), got"):
            in_native.scaled_gradient(maps, maps, factors, True)


@in_c
def test_a_rectifiers_gradient_is_torchs_for_numbers_that_are_none():
    y = torch.tensor([float("nan"), 1.0, 0.0, 2.0, -1.0]).view(1, 5, 1, 1).requires_grad_()
    z = torch.relu(y)
    grad = torch.tensor([1.0, 1.0, float("inf"), 1.0, float("inf")]).view(1, 5, 1, 1)
    (true,) = torch.autograd.grad(z, y, grad)
    for functions in (in_native, pointwise_torch):
        found, _ = functions.scaled_gradient(grad, z.detach(), torch.ones(1, 1, 1, 1), True)
        assert torch.equal(found, true)
