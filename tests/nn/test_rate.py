"""The learning rate of `ns.parameter_groups`: from the curvature, whatever the width."""

from functools import partial
from math import inf, nan

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
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


def test_steps_of_random_networks_of_any_width_are_alike():
    """Kernels as torch draws them, with normalisation: within a factor of three."""
    changes = []
    for width in (4, 16, 64):
        torch.manual_seed(0)
        plain = nn.Sequential(
            nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5),
        )  # fmt: skip
        network = ns.freeze_backbone(ns.convert(plain, "static-full"), norm="train")
        x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 5
        groups = ns.parameter_groups(network, weight_decay=0.0, logits=partial(network, x))
        optimizer = torch.optim.SGD(groups)
        cross_entropy(network(x), y).backward()
        optimizer.step()
        kernels = (ns.fold(network)[3].weight, plain[3].weight)
        changes.append(((kernels[0] - kernels[1]).norm() / kernels[1].norm()).item())
    assert max(changes) < 3 * min(changes)


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


def test_logits_that_set_no_rate_and_a_momentum_below_zero_are_refused():
    layer, find = nn.Linear(2, 2), partial(ns.parameter_groups, weight_decay=0.0)
    with pytest.raises(
        ValueError, match=r"`logits` must be finite and depend on the parameters, got .* 0\.0"
    ):
        find(layer, logits=lambda: 0 * layer(torch.ones(1, 2)))
    for shape in ((3,), (3, 1)):
        with pytest.raises(ValueError, match=r"`logits` must return .* two classes at least, got"):
            find(layer, logits=lambda shape=shape: layer.weight.sum().expand(shape))
    for momentum in (-0.1, 1.0, inf, nan, "0.9"):
        with pytest.raises(ValueError, match="`momentum` must be at least 0 and below 1"):
            find(layer, logits=lambda: layer(torch.ones(1, 2)), momentum=momentum)
    with pytest.raises(ValueError, match="`logits` must be a function"):
        find(layer, logits=layer(torch.ones(1, 2)))


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


def test_other_functions_without_a_second_derivative_are_named():
    layer = ns.Conv2d(3, 3, 3, similarity="static-full")
    x = torch.randn(2, 3, 5, 5)
    with pytest.raises(ValueError, match=r"`logits` must be differentiable twice.*hardsigmoid"):
        ns.parameter_groups(
            layer, weight_decay=0.0, logits=lambda: torch.ops.aten.hardsigmoid(layer(x))
        )


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


def test_logits_without_gradients_are_named():
    layer, other, x = nn.Linear(2, 3), nn.Linear(2, 3), torch.randn(4, 2)
    find = partial(ns.parameter_groups, layer, weight_decay=0.0)
    depend = "`logits` must depend on the parameters that train, with gradients on"
    with torch.no_grad(), pytest.raises(ValueError, match=depend):
        find(logits=lambda: layer(x))
    with pytest.raises(ValueError, match=depend):
        find(logits=lambda: other(x))
    with pytest.raises(ValueError, match=depend):
        find(logits=lambda: layer(x).detach())
    for wrong in ((layer(x),), layer(x).long()):
        with pytest.raises(
            ValueError, match="`logits` must return a tensor of floating point, got"
        ):
            find(logits=lambda wrong=wrong: wrong)
    layer.requires_grad_(False)
    with pytest.raises(ValueError, match="`model` must have parameters that train"):
        find(logits=lambda: layer(x))


def test_convolutions_that_refuse_a_second_derivative_are_named():
    offsets = torch.randn(1, 18, 6, 6)
    deformable = torchvision.ops.DeformConv2d(3, 4, 3)
    with pytest.raises(ValueError, match=r"`logits` must be differentiable twice.*deform_conv2d"):
        ns.parameter_groups(
            deformable, weight_decay=0.0, logits=lambda: deformable(torch.ones(1, 3, 8, 8), offsets)
        )
