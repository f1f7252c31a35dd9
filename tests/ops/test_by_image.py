"""One M an image against the same M written out at every position."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns
from neural_similarity.functional import similarity_conv1d, similarity_conv2d, similarity_conv3d
from neural_similarity.models import macs

CONVS = {1: similarity_conv1d, 2: similarity_conv2d, 3: similarity_conv3d}
FOLDED, POSITIONWISE = 2, 150
"""Kernels: fewer than positions times groups, or more."""


def operands(dims, out, *, diagonal, groups=1, n=3):
    torch.manual_seed(0)
    taps = 2 * 3 ** (dims - 1)
    x = torch.randn(n, 4, *(6, 5, 4)[:dims], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(out, 4 // groups, 2, *[3] * (dims - 1), dtype=torch.float64)
    m = torch.randn(n, taps, *[] if diagonal else [taps], *[1] * dims, dtype=torch.float64)
    return x, weight.requires_grad_(), m.requires_grad_()


@pytest.mark.parametrize("out", [FOLDED, POSITIONWISE])
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_m_at_every_position(dims, out, diagonal, groups):
    given = operands(dims, out, diagonal=diagonal, groups=groups)
    x, weight, m = given
    bias = torch.randn(out, dtype=torch.float64)
    window = {"padding": 1, "dilation": 1, "stride": 1, "groups": groups}
    y = CONVS[dims](x, weight, m, bias, **window)
    written_out = m.expand(*m.shape[: m.dim() - dims], *y.shape[2:])
    expected = CONVS[dims](x, weight, written_out, bias, **window, backend="reference")
    assert_close(y, expected)
    cotangent = torch.randn_like(y)
    assert_close(*(torch.autograd.grad(z, given, cotangent) for z in (y, expected)))


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_channels_last_images_are_convolved_one_by_one(groups, n, diagonal):
    """They would have to be copied to lie side by side; the gradients are the same."""
    given = operands(2, FOLDED, diagonal=diagonal, groups=groups, n=n)
    to_last = {"memory_format": torch.channels_last}
    last = [*(each.detach().to(**to_last).requires_grad_() for each in given[:2]), given[2]]
    found, expected = (similarity_conv2d(*leaves, groups=groups) for leaves in (last, given))
    assert found.is_contiguous(memory_format=torch.channels_last)
    cotangent = torch.randn_like(expected)
    pairs = ((found, last), (expected, given))
    assert_close(*((y, *torch.autograd.grad(y, leaves, cotangent)) for y, leaves in pairs))


@pytest.mark.parametrize(("groups", "size", "most"), [(1, 32, 1.02), (64, 32, 1.02), (64, 7, 1.3)])
def test_a_layer_costs_hardly_more_than_a_plain_one(groups, size, most):
    """Depthwise kernels are cheap to fold too: 64 of 9·9 numbers for 49 positions."""
    plain = torch.nn.Conv2d(64, 64, 3, padding=1, groups=groups)
    pooled = ns.convert(torch.nn.Sequential(plain), ns.Dynamic(ns.Full(), ns.Pooled(hidden=4)))
    shape = (64, size, size)
    assert macs(pooled, shape) / macs(plain, shape) < most


def pooled_layer(structure, filters=8, **options):
    torch.manual_seed(0)
    similarity = ns.Dynamic(structure, ns.Pooled(hidden=5))
    layer = ns.Conv2d(4, filters, 3, similarity=similarity, **options).eval()
    torch.nn.init.normal_(layer.similarity.gain)
    return layer


GROUPED = {"groups": 2, "stride": 2, "padding": 1}


def flops(network, x):
    with FlopCounterMode(display=False) as counter:
        network(x)
    return counter.get_total_flops()


@pytest.mark.long
@pytest.mark.parametrize(
    ("structure", "options", "batch"),
    [
        (ns.Full(), {}, 1),
        (ns.Full(), {}, None),
        (ns.Full(), GROUPED, 3),
        (ns.Diagonal(), GROUPED, None),
        (ns.Full(), {"groups": 4, "filters": 4}, None),
    ],
    ids=str,
)
def test_exported_programs_fold_m_into_one_kernel_an_image(structure, options, batch):
    layer = pooled_layer(structure, **options)
    x, other = torch.randn(batch or 2, 4, 40, 41), torch.randn(batch or 5, 4, 39, 42)
    sizes = dict.fromkeys((2, 3) if batch else (0, 2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(layer, (x,), dynamic_shapes=(sizes,)).module()
    assert_close(program(other), layer(other))
    layer.similarity = None  # the plain layer
    assert flops(program, other) / flops(layer, other) < 1.08  # not 1.9, with M everywhere


@pytest.mark.long
def test_compiled_programs_take_batches_of_any_size():
    layer = pooled_layer(ns.Full())
    x, other = torch.randn(2, 4, 10, 11), torch.randn(5, 4, 9, 12)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_close(compiled(x), layer(x))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_close(compiled(other), layer(other))


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_m_is_folded_in_float32(full, cast):
    """One pixel at a time shows the kernel W M, which is rounded to bfloat16 once."""
    taps = (9, 9) if full else (9,)
    weight, m = torch.randn(2, 1, 3, 3).bfloat16(), torch.randn(3, *taps, 1, 1)
    x = torch.zeros(3, 1, 7, 7)
    x[:, :, 3, 3] = 1
    exact = weight.double().flatten(1)[None]
    exact = exact @ m.flatten(-3).double() if full else exact * m.double().view(3, 1, 9)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        operands = (x, weight.float()) if cast else (x.bfloat16(), weight)
        y = similarity_conv2d(*operands, m)
    shown = y[:, :, 1:4, 1:4].flip(-2, -1).flatten(2)
    assert y.dtype == torch.bfloat16
    assert ((shown - exact).abs() <= 1.001 * 2**-8 * exact.abs() + 1e-6).all()
