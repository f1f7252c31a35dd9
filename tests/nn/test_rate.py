"""The learning rate of `ns.parameter_groups`: from the curvature, whatever the width."""

from functools import partial
from math import inf, nan

import pytest
import torch
import torchvision
from refusals import refusals
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import neural_similarity as ns


def test_the_rate_is_a_fifth_of_the_limit_where_all_classes_are_as_likely():
    """Gradient descent at 4.75 times the rate stays, at 5.5 times it leaves the minimum."""
    torch.manual_seed(0)
    layer = ns.freeze_backbone(ns.Conv2d(3, 4, 3, similarity="static-full").double())
    x = 1 + torch.randn(5, 3, 6, 6).double()
    (group,) = ns.parameter_groups(layer, weight_decay=0.0, logits=partial(layer, x), momentum=0.9)
    (raw,) = group["params"]
    jacobian = torch.autograd.functional.jacobian(
        lambda m: torch.func.functional_call(layer, {"similarity.raw": m}, x), raw.detach()
    )
    likely = torch.full((4,), 0.25).double()
    outer = likely.diag() - torch.outer(likely, likely)  # The Hessian of cross-entropy.
    j = jacobian.movedim(1, -2).reshape(5 * 4 * 4, 4, 81)
    matrix = (j.mT @ outer @ j).mean(0)
    largest = torch.linalg.eigvalsh(matrix)[-1].item()
    assert group["lr"] == pytest.approx(0.2 * 2 * 1.9 / largest, rel=0.01)
    start = torch.randn(81, generator=torch.Generator().manual_seed(0)).double()
    ends = []
    for times in (4.75, 5.5):
        m = start.clone().requires_grad_()
        optimizer = torch.optim.SGD([m], lr=times * group["lr"], momentum=0.9)
        for _ in range(1_000):
            optimizer.zero_grad()
            (m @ matrix @ m / 2).backward()
            optimizer.step()
        ends.append(m.detach().abs().max().item())
    assert ends[0] < 100
    assert not ends[1] < 1e6


class Summed(nn.Module):
    """The sum of all filters of a static layer, `copies` times the same ones."""

    def __init__(self, copies):
        super().__init__()
        torch.manual_seed(0)
        narrow = nn.Conv2d(3, 4, 3)
        wide = nn.Conv2d(3, 4 * copies, 3)
        with torch.no_grad():
            wide.weight.copy_(narrow.weight.repeat(copies, 1, 1, 1))
            wide.bias.copy_(narrow.bias.repeat(copies))
        self.layer = ns.convert(nn.Sequential(wide), "static-full")

    def forward(self, x):
        """Two classes: the sum of all filters, and nothing."""
        total = self.layer(x).sum(1, keepdim=True)
        return torch.cat([total, torch.zeros_like(total)], 1)


def first_step(copies, automatic):
    """The change of M in a step, of a network `copies` times as wide as another."""
    network = ns.freeze_backbone(Summed(copies).double())
    torch.manual_seed(1)
    x, y = torch.randn(6, 3, 5, 5).double(), copies * torch.randn(6, 2, 3, 3).double()
    logits = partial(network, x) if automatic else None
    (group,) = ns.parameter_groups(network, weight_decay=0.0, logits=logits)
    optimizer = torch.optim.SGD([group], lr=0.01, momentum=0.9)
    mse_loss(network(x), y).backward()
    optimizer.step()
    kernel = ns.fold(network).layer[0].weight
    plain = Summed(copies).double().layer[0].weight
    return ((kernel - plain).norm() / plain.norm()).item()


def test_the_steps_effect_on_the_folded_kernel_does_not_depend_on_width():
    narrow, wide = first_step(1, True), first_step(8, True)
    assert narrow > 1e-3
    assert wide == pytest.approx(narrow, rel=1e-6)
    assert first_step(8, False) == pytest.approx(64 * first_step(1, False), rel=1e-6)


def test_every_group_has_the_rate_and_what_has_no_gradient_is_left():
    torch.manual_seed(0)
    network = nn.Sequential(ns.Conv2d(2, 3, 3, similarity="dynamic-diagonal"), nn.Flatten())
    network.add_module("unused", nn.ParameterList([torch.zeros(3)]))
    x = torch.randn(2, 2, 4, 4)

    groups = ns.parameter_groups(
        network, weight_decay=0.1, logits=lambda: network[:2](x), momentum=0.5
    )
    rates = {(group["lr"], group["momentum"]) for group in groups}
    assert len(groups) > 1
    assert len(rates) == 1
    torch.optim.SGD(groups).step()


def test_the_rate_knows_no_labels_and_no_loss():
    """Outputs that are right by any margin leave it as it is."""
    torch.manual_seed(0)
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
    rates = []
    for shift in (0.0, 50.0):
        layer.bias.data[0] = shift
        (group,) = ns.parameter_groups(layer, weight_decay=0.0, logits=partial(layer, x))
        rates.append(group["lr"])
    assert rates[0] == pytest.approx(rates[1])


class Gate(nn.Module):
    """x times relu6(x + 3) / 6, or that factor alone, as torch has them without a derivative."""

    def __init__(self, scales):
        super().__init__()
        self.scales = scales

    def forward(self, x):
        gate = nn.functional.relu6(x + 3) / 6
        return x * gate if self.scales else gate


def rate_with(*activations):
    torch.manual_seed(0)
    convolutions = [ns.Conv2d(3, 3, 3, similarity="static-full") for _ in activations]
    layers = [one for pair in zip(convolutions, activations, strict=True) for one in pair]
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    network = nn.Sequential(*layers)
    groups = ns.parameter_groups(network, weight_decay=0.0, logits=lambda: network(x))
    return [group["lr"] for group in groups]


def test_activations_without_a_second_derivative():
    """MobileNetV3 has them."""
    found = rate_with(nn.Hardswish(), nn.Hardsigmoid())
    assert found == pytest.approx(rate_with(Gate(True), Gate(False)), rel=1e-5)


class Checkpointed(nn.Module):
    """A module whose activations are computed again in backward."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class InPlace(nn.Module):
    def forward(self, x):
        y = x.clone()
        nn.functional.hardswish(y, inplace=True)
        return y


def test_activations_in_place_and_computed_again():
    wanted = rate_with(nn.Hardswish(), nn.Hardswish())
    assert rate_with(InPlace(), InPlace()) == pytest.approx(wanted, rel=1e-6)
    again = rate_with(Checkpointed(nn.SiLU()), nn.SiLU())
    assert again == pytest.approx(rate_with(nn.SiLU(), nn.SiLU()), rel=1e-6)
    with pytest.raises(
        ValueError, match="`logits` must be differentiable twice, or the rate given"
    ):
        rate_with(Checkpointed(nn.Hardswish()), nn.Hardswish())


def rate_of(network, x):
    (group,) = ns.parameter_groups(network, weight_decay=0.0, logits=partial(network, x))
    return group["lr"]


def test_hooks_of_gradients_change_nothing_and_stay():
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), torch.randn(4, 8)
    wanted = rate_of(network, x)
    for parameter in network.parameters():
        parameter.register_hook(lambda gradient: 0.1 * gradient)
    assert rate_of(network, x) == pytest.approx(wanted, rel=1e-6)
    network(x).sum().backward()
    assert torch.equal(network[1].bias.grad, torch.full((3,), 0.4))


def test_the_rate_of_many_parameters_in_half_precision():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(192, 2_000), nn.ReLU(), nn.Linear(2_000, 10))
    x = torch.rand(4, 192)
    wanted = rate_of(network, x)
    assert rate_of(network.half(), x.half()) == pytest.approx(wanted, rel=0.02)


ONES = torch.ones(1, 2)
DEPEND = "`logits` must depend on the parameters that train, with gradients on"
FLOATS = "`logits` must return a tensor of floating point, got"


def rate_of_a_layer(logits, layer=None, **options):
    layer = layer or nn.Linear(2, 2)
    logits = partial(logits, layer)
    return ns.parameter_groups(layer, weight_decay=0.0, logits=logits, **options)


test_errors = refusals(
    (lambda f: 0 * f(ONES), r"`logits` must be finite and depend on the parameters, got .* 0\.0"),
    (lambda f: f.weight.sum().expand(3), "`logits` must return .* two classes at least, got"),
    (lambda f: f.weight.sum().expand(3, 1), "`logits` must return .* two classes at least, got"),
    (lambda f: torch.ops.aten.hardsigmoid(f(ONES)), "must be differentiable twice.*hardsigmoid"),
    (lambda f: f(ONES).detach(), DEPEND),
    (lambda _: nn.Linear(2, 3)(ONES), DEPEND),
    (torch.no_grad()(lambda f: f(ONES)), DEPEND),
    (lambda f: (f(ONES),), FLOATS),
    (lambda f: f(ONES).long(), FLOATS),
    call=rate_of_a_layer,
)
test_other_errors = refusals(
    *(
        (partial(rate_of_a_layer, lambda f: f(ONES), momentum=m), "`momentum` must be at least 0")
        for m in (-0.1, 1.0, inf, nan, "0.9")
    ),
    (
        lambda: ns.parameter_groups(nn.Linear(2, 2), weight_decay=0.0, logits=ONES),
        "`logits` must be a function",
    ),
    (
        lambda: rate_of_a_layer(lambda f: f(ONES), nn.Linear(2, 2).requires_grad_(False)),
        "`model` must have parameters that train",
    ),
    (
        lambda: rate_of_a_layer(
            lambda f: f(torch.ones(1, 3, 8, 8), torch.randn(1, 18, 6, 6)),
            torchvision.ops.DeformConv2d(3, 4, 3),
        ),
        "`logits` must be differentiable twice.*deform_conv2d",
    ),
)
