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
