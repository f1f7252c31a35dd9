"""The learning rate of `ns.parameter_groups`: from the curvature, whatever the width."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import neural_similarity as ns


def labelled(loss, network, x, y):
    return loss(network(x), y)


def test_the_rate_is_a_tenth_of_the_limit_of_a_quadratic():
    """Gradient descent at 9.5 times the rate stays, at eleven times it leaves the minimum."""
    torch.manual_seed(0)
    layer = ns.freeze_backbone(ns.Conv2d(3, 4, 3, similarity="static-full").double())
    x, y = 1 + torch.randn(5, 3, 6, 6).double(), torch.randn(5, 4, 4, 4).double()
    loss = partial(labelled, mse_loss, layer, x, y)
    (group,) = ns.parameter_groups(layer, weight_decay=0.0, loss=loss, momentum=0.9)
    (raw,) = group["params"]
    hessian = torch.autograd.functional.hessian(
        lambda m: mse_loss(torch.func.functional_call(layer, {"similarity.raw": m}, x), y),
        raw.detach(),
    )
    largest = torch.linalg.eigvalsh(hessian.reshape(81, 81))[-1].item()
    assert group["lr"] == pytest.approx(0.1 * 2 * 1.9 / largest, rel=0.01)
    start = raw.detach().clone()
    ends = []
    for times in (9.5, 11):
        raw.data.copy_(start)
        optimizer = torch.optim.SGD([raw], lr=times * group["lr"], momentum=0.9)
        for _ in range(1_000):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        ends.append(raw.detach().abs().max().item())
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
        return self.layer(x).sum(1)


def first_step(copies, automatic):
    """The change of M in a step, of a network `copies` times as wide as another."""
    network = ns.freeze_backbone(Summed(copies).double())
    torch.manual_seed(1)
    x, y = torch.randn(6, 3, 5, 5).double(), copies * torch.randn(6, 3, 3).double()
    loss = partial(labelled, mse_loss, network, x, y)
    (group,) = ns.parameter_groups(network, weight_decay=0.0, loss=loss if automatic else None)
    optimizer = torch.optim.SGD([group], lr=0.01, momentum=0.9)
    loss().backward()
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
        loss = partial(labelled, cross_entropy, network, x, y)
        optimizer = torch.optim.SGD(ns.parameter_groups(network, weight_decay=0.0, loss=loss))
        loss().backward()
        optimizer.step()
        kernels = (ns.fold(network)[3].weight, plain[3].weight)
        changes.append(((kernels[0] - kernels[1]).norm() / kernels[1].norm()).item())
    assert max(changes) < 3 * min(changes)


def test_every_group_has_the_rate_and_what_has_no_gradient_is_left():
    torch.manual_seed(0)
    network = nn.Sequential(ns.Conv2d(2, 3, 3, similarity="dynamic-diagonal"), nn.Flatten())
    network.add_module("unused", nn.ParameterList([torch.zeros(3)]))
    x = torch.randn(2, 2, 4, 4)

    def loss():
        return network[:2](x).square().mean()

    groups = ns.parameter_groups(network, weight_decay=0.1, loss=loss, momentum=0.5)
    rates = {(group["lr"], group["momentum"]) for group in groups}
    assert len(groups) > 1
    assert len(rates) == 1
    torch.optim.SGD(groups).step()


def test_a_loss_without_curvature_or_a_momentum_below_zero_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="`loss` must curve along the parameters"):
        ns.parameter_groups(layer, weight_decay=0.0, loss=lambda: 0 * layer.weight.square().sum())
    with pytest.raises(ValueError, match="`momentum` must be at least 0"):
        ns.parameter_groups(
            layer, weight_decay=0.0, loss=lambda: layer.weight.square().sum(), momentum=-0.1
        )
