"""The learning rate that `nsim train adapt` finds: of the curvature, less where few are wrong."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import neural_similarity as ns
from neural_similarity.conversion import similarities_of
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks import own_rate
from neural_similarity.lab.tasks.adaptation_recipe import AdaptationRecipe, adapt_network
from neural_similarity.lab.tasks.baselines import merge_baselines
from neural_similarity.lab.train.fitting import decay_groups, make_optimizer

RECIPE = AdaptationRecipe(backbone="timm:resnet18", batch_size=10)
PREPROCESS = Preprocess((0.0,), (1.0,))


def images_of(wrong, count):
    """Grey levels by class, some under the label of the other."""
    labels = torch.arange(count) % 2
    pixels = (200 * labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, -1, 2, 2).contiguous()
    labels[:wrong] = 1 - labels[:wrong]
    return Images(pixels, labels, ("dark", "light"))


class Threshold(nn.Module):
    """Two logits, by the mean of an image; notes the sizes of batches."""

    def __init__(self):
        super().__init__()
        self.scale, self.sizes = nn.Parameter(torch.ones(())), []

    def forward(self, x):
        self.sizes.append(len(x))
        light = self.scale * (x.mean((1, 2, 3)) - 0.4)
        return torch.stack([-light, light], 1)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def rate_of(wrong, count, monkeypatch):
    monkeypatch.setattr(own_rate, "parameter_groups", lambda *_, **__: [{"lr": 0.5}])
    network, images = Threshold(), images_of(wrong, count)
    return own_rate.find_rate(network, images, PREPROCESS, RECIPE), network


@pytest.mark.parametrize(
    ("wrong", "share"), [(0, 0.0125), (1, 0.025), (20, 0.5), (40, 1), (100, 1)]
)
def test_the_rate_falls_with_the_share_of_wrong_images_below_two_fifths(wrong, share, monkeypatch):
    rate, _ = rate_of(wrong, 100, monkeypatch)
    assert rate == pytest.approx(0.5 * share, rel=1e-2)


def test_batches_are_as_large_as_in_training(monkeypatch):
    """Of 25 images two batches of ten, and of many 500 images."""
    assert rate_of(0, 25, monkeypatch)[1].sizes == [10, 10]
    assert rate_of(0, 700, monkeypatch)[1].sizes == [10] * 50


def test_it_is_that_of_the_curvature_where_all_are_wrong(capsys):
    images, recipe = images_of(8, 8), replace(RECIPE, batch_size=8)
    rate = own_rate.find_rate(Threshold(), images, PREPROCESS, recipe)
    # The logits' derivative is (-a, a), a = mean - 0.4; the Hessian (1, -1; -1, 1) / 4.
    slope = PREPROCESS(images.pixels).mean((1, 2, 3)) - 0.4
    assert rate == pytest.approx(0.2 * 2 * 1.9 / slope.square().mean().item(), rel=1e-2)
    told = "from the curvature of the outputs and 8 wrong answers for 8 images (--lr)"
    assert told in capsys.readouterr().err


def test_answers_are_counted_without_dropout_and_by_statistics_as_in_training():
    torch.manual_seed(0)
    moving, kept = nn.BatchNorm2d(1), nn.BatchNorm2d(1).eval()
    moving.running_mean.fill_(10)  # All would be dark, as by dropout.
    network = nn.Sequential(moving, kept, nn.Dropout(1.0), Threshold())
    assert own_rate.count_wrong(network, [images_of(0, 10)], PREPROCESS) == (0, 10)


def test_outputs_that_set_no_rate_are_told_as_the_commands_argument():
    network = Threshold().requires_grad_(False)
    with pytest.raises(RunError, match="`lr` must be given, as the outputs set none: `model` must"):
        own_rate.find_rate(network, images_of(0, 10), PREPROCESS, RECIPE)


def test_errors_by_class_means_are_those_of_leaving_each_image_out():
    """As counted one by one; a class of one image, and one of none."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 9 + [1] * 7 + [2] + [4] * 3)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64) + labels[:, None]
    wrong = 0
    for row, label in enumerate(labels):
        others = torch.arange(20) != row
        means = {k: x[others & (labels == k)].mean(0) for k in labels[others].unique().tolist()}
        wrong += min(means, key=lambda k: (means[k] - x[row]).norm().item()) != label
    assert 0 < wrong < 20
    assert own_rate.nearest_mean_errors(x, labels, 5) == pytest.approx(wrong / 20)


@pytest.mark.parametrize(("wrong", "step"), [(0, 0.0025), (10, 0.005), (40, 0.02)])
def test_steps_with_a_new_head_are_smaller_where_classes_are_apart(wrong, step):
    """Of 100 images as many lie with the other class as are labelled so."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    fields = own_rate.new_head_fields(network, images_of(wrong, 100), PREPROCESS, RECIPE)
    assert fields["lr"] == step


def _moving_kernels(network):
    """The folded kernel and the gains."""
    plain: Any = merge_baselines(ns.fold(network))
    return [plain[0].weight.detach().clone(), plain[1].weight.detach().clone()]


@pytest.mark.parametrize(
    ("train", "norm", "layer", "step"),
    [
        ("all", "auto", nn.BatchNorm2d, 0.008),
        ("all", "auto", nn.Identity, 0.005),
        ("all", "eval", nn.BatchNorm2d, 0.005),
        ("M+all", "auto", nn.BatchNorm2d, 0.005),
        ("M+head", "train", nn.BatchNorm2d, 0.005),
    ],
)
def test_steps_are_larger_for_all_weights_by_the_batchs_statistics(train, norm, layer, step):
    recipe = replace(RECIPE, train=train, norm=norm)
    plain = nn.Sequential(nn.Conv2d(1, 4, 2), layer(4), nn.Flatten(), nn.Linear(4, 2))
    network = adapt_network(plain, recipe).train()
    fields = own_rate.new_head_fields(network, images_of(10, 100), PREPROCESS, recipe)
    assert fields["lr"] == step
    memory = replace(recipe, **fields).square_momentum
    assert memory == (0.99 if "M" in train else 0.999)


@pytest.mark.parametrize("head", ["linear", "of tokens", "convolution"])
def test_a_head_at_every_position_takes_the_steps_of_one_behind_a_pool(head):
    """On images whose positions are alike, what it gives is averaged over more of them."""
    linear, pool = nn.Linear(3, 2), nn.AdaptiveAvgPool2d(1)
    layers = {
        "linear": (pool, nn.Flatten(), linear),
        "of tokens": (
            nn.Flatten(2),
            Function(lambda x: x.mT),
            linear,
            Function(lambda x: x.mean(1)),
        ),
        "convolution": (nn.Conv2d(3, 2, 1), pool, nn.Flatten()),
    }
    network = nn.Sequential(Function(lambda x: x.repeat(1, 3, 1, 1)), *layers[head])
    fields = own_rate.new_head_fields(network, images_of(10, 100), PREPROCESS, RECIPE)
    mean = 3 * PREPROCESS(images_of(10, 100).pixels).mean().item()
    assert fields["head_lr"] == pytest.approx(0.4 / max(mean, 0.4), rel=0.01)
    assert fields["lr"] == 0.005


@pytest.mark.parametrize(("window", "scale"), [(2, 1), (3, 1), (5, 9 / 25)])
def test_steps_of_m_are_smaller_for_more_taps(window, scale):
    """No M, whose entries all move by s, moves a kernel by more than that of 3×3 taps does."""
    network = nn.Sequential(nn.Conv2d(2, 4, window), nn.Flatten(), nn.Linear(4, 2))
    recipe = AdaptationRecipe(lr=0.01, relative_lr=True, train="M+head")
    network = adapt_network(network, recipe)
    groups = decay_groups(recipe, network)
    inside = {p for m in similarities_of(network) for p in m.parameters()}
    assert {g["scale"] for g in groups if not inside.isdisjoint(g["params"])} == {scale}


@pytest.mark.parametrize("train", ["M+head", "M+all", "norm+head", "all", "baseline+head", "head"])
def test_no_update_with_a_new_head_moves_more_than_a_share(train):
    """M, gains and kernels by a fortieth, a logit by 0.4; all weights by eight times as much."""
    torch.manual_seed(0)
    recipe = AdaptationRecipe(train=train, baseline="residual" if "base" in train else "none")
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    network: Any = adapt_network(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 2)), recipe)
    images = images_of(4, 10)
    fields = own_rate.new_head_fields(network, images, PREPROCESS, recipe)
    recipe = replace(recipe, **fields)
    optimizer = make_optimizer(recipe, decay_groups(recipe, network))
    x = PREPROCESS(images.pixels)
    features = network.eval()[:-1](x)
    start, logits = _moving_kernels(network), network[-1](features)
    for group in optimizer.param_groups:
        group["lr"] *= group.get("scale", 1.0)
        for parameter in group["params"]:
            parameter.grad = 1e6 * torch.randn_like(parameter)
    optimizer.step()
    moved = zip(_moving_kernels(network), start, strict=True)
    shares = [((new - old).norm() / old.norm()).item() for new, old in moved]
    limit = 0.8 if train == "all" else 0.1
    assert limit / 50 < max(shares) < limit or train == "head"
    change = (network[-1](features) - logits).abs().mean().item()
    assert 0.01 < change < 1 or "head" not in train
