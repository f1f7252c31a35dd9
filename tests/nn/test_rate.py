"""The learning rate of `ns.parameter_groups`: from the curvature, whatever the width."""

from functools import partial
from math import inf, nan

import pytest
import torch
import torchvision
from refusals import refusals
from torch import nn
from torch.utils.checkpoint import checkpoint

import neural_similarity as ns


def test_the_rate_is_a_fifth_of_the_limit_where_all_classes_are_as_likely():
    """Of 2·(1 + momentum)/λ for λ the largest curvature: it is the same whatever the width."""
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
