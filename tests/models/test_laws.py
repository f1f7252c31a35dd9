"""What holds for every network: one start for every similarity, placement, embedding, counts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torchvision.models import ResNet18_Weights, ResNet34_Weights, ResNet50_Weights

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.models import counts
from neural_similarity_paper.rival_layers import RIVALS

SIMILARITIES = list(ns.SIMILARITIES)
TAKERS = [name for name in models.MODELS if name not in models.WITHOUT_SIMILARITY]
SIZE = 32


def small(name, similarity=None, seed=5, **options):
    torch.manual_seed(seed)
    options = {"image_size": SIZE, "width": 0.1} | options
    return models.build(name, 7, similarity=similarity, **options).double()


def images(count=3, size=SIZE, channels=3):
    return torch.randn(count, channels, size, size, dtype=torch.float64)


def full_size(name, similarity=None):
    """The network of usual sizes, as shapes without numbers, and its input's size."""
    classes, channels, size = models.usual_sizes(name)
    with torch.device("meta"):
        model = models.build(name, classes, similarity=similarity)
    return model, channels, size, size


def parameters(name, similarity=None):
    return counts.parameters(full_size(name, similarity)[0])


@pytest.mark.long
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("name", TAKERS)
def test_the_same_seed_gives_the_same_kernels_and_function_for_every_similarity(name, similarity):
    plain, network = small(name), small(name, similarity)
    ours, again = network.state_dict(), small(name, similarity).state_dict()
    assert all(torch.equal(again[key], value) for key, value in ours.items())
    assert all(torch.equal(ours[key], value) for key, value in plain.state_dict().items())
    assert all(".similarity." in key for key in ours.keys() - plain.state_dict().keys())
    size = max(1.0, plain.eval()(images()).abs().max().item())  # 7,000 in ResNet-56
    assert ns.max_difference(plain, network, images()) < 1e-12 * size


@pytest.mark.long
@pytest.mark.parametrize("similarity", SIMILARITIES[1:])
@pytest.mark.parametrize("name", TAKERS)
def test_every_part_trains(name, similarity):
    network = small(name, similarity)
    network(images()).square().sum().backward()
    idle = {n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()}
    # A gain of zero holds the predictor or the attention behind it back for one step.
    assert all(".predictor." in name or name.startswith("attention") for name in idle)


@pytest.mark.parametrize(
    ("name", "placed", "plain"),
    [
        ("cnn9", 9, 0),
        ("cnn9_plus", 12, 0),
        ("cnn10", 9, 1),
        ("cnn10_plus", 11, 1),
        ("convnet4", 4, 0),
        ("resnet12", 12, 4),
        ("wrn28_10", 25, 3),
    ],
)
@pytest.mark.parametrize("similarity", SIMILARITIES[1:])
def test_placement(name, similarity, placed, plain):
    """That of other ResNets is that of `ns.convert`, see `test_resnet.py`."""
    network = full_size(name, similarity)[0]
    similar = [layer for layer in network.modules() if with_similarity(layer)]
    inside = {id(m) for layer in similar for m in layer.similarity.modules()}
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d) and id(m) not in inside]
    without = [layer.kernel_size for layer in layers if not with_similarity(layer)]
    assert (len(layers) - len(without), len(without)) == (placed, plain)
    assert {*without} <= {(1, 1), (7, 7)}


def with_similarity(layer):
    return getattr(layer, "similarity", None) is not None


@pytest.mark.parametrize("name", models.MODELS)
def test_the_last_layer_classifies_what_the_others_embed(name):
    network = small(name, "static-diagonal" if name in TAKERS else None).eval()
    x = images()
    embedding = network[:-1](x)
    assert isinstance(network[-1], nn.Linear)
    assert embedding.shape == (3, network[-1].in_features)
    assert torch.equal(network[-1](embedding), network(x))


def test_few_shot_embedding_is_of_the_usual_size():
    network = models.convnet4(5, similarity="static-diagonal").eval()
    assert network[:-1](torch.randn(2, 3, 84, 84)).shape == (2, 800)
    assert counts.parameters(network[:-1]) == 9 * 32 * (3 + 3 * 32) + 2 * 4 * 32 + 4 * 9


def by_hand(network, x, stages, *, root=False):
    """Table 7 with the network's numbers, in their order."""
    weights = list(network.parameters())

    def norm(y):
        return F.batch_norm(y, None, None, weights.pop(0), weights.pop(0), training=True).relu()

    if root:
        y = norm(F.conv2d(x, weights.pop(0), stride=2, padding=3))
        x = F.max_pool2d(y, 3, 2, 1)
    for depth in stages:
        for _ in range(depth):
            x = norm(F.conv2d(x, weights.pop(0), padding=1))
        x = F.max_pool2d(x, 2, 2)
    x = x.flatten(1)
    while len(weights) > 2:
        x = norm(F.linear(x, weights.pop(0)))
    return F.linear(x, *weights)


@pytest.mark.parametrize(
    ("name", "stages", "root"),
    [
        ("cnn9", (3, 3, 3), False),
        ("cnn9_plus", (4, 4, 4), False),
        ("cnn10", (3, 3, 3), True),
        ("cnn10_plus", (4, 4, 3), True),
        ("convnet4", (1, 1, 1, 1), False),
    ],
)
def test_plain_networks_compute_what_the_paper_draws(name, stages, root):
    network, x = small(name, image_size=64), images(size=64)
    outputs = network(x), by_hand(network, x, stages, root=root)
    assert_close(*outputs)
    weights = list(network.parameters())
    assert_close(*(torch.autograd.grad(y.square().sum(), weights) for y in outputs))


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        # The embedding of MetaOptNet's ResNet-12, and pytorchcv's `wrn28_10_cifar10`.
        ("resnet12", 64, 12_424_320 + 64 * 640 + 64),
        ("wrn28_10", 10, 36_479_194),
    ],
)
def test_counts_are_the_published_ones(name, classes, expected):
    with torch.device("meta"):
        network = models.build(name, classes)
    assert counts.parameters(network) == expected
    assert network[-1].in_features == 640


def test_cnn10_with_the_hidden_units_of_the_appendix():
    appendix = ns.Dynamic(ns.Diagonal(), predictor=ns.SphereNet(hidden=32))
    assert round(parameters("cnn10", appendix) / 1e6, 2) == 9.26


def test_no_layer_of_cnn10_plus_is_smaller():
    networks = [full_size(name)[0] for name in ("cnn10", "cnn10_plus")]
    shapes = [{n: p.shape for n, p in network.named_parameters()} for network in networks]
    assert shapes[0].keys() < shapes[1].keys()
    for name, shape in shapes[0].items():
        assert all(a <= b for a, b in zip(shape, shapes[1][name], strict=True))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("resnet18", ResNet18_Weights.IMAGENET1K_V1),
        ("resnet34", ResNet34_Weights.IMAGENET1K_V1),
        ("resnet50", ResNet50_Weights.IMAGENET1K_V1),
    ],
)
def test_counts_are_those_that_torchvision_states(name, weights):
    network, *size = full_size(name)
    assert counts.parameters(network) == weights.meta["num_params"]
    assert round(counts.macs(network, *size) / 1e9, 3) == weights.meta["_ops"]


CNN9_LAYERS = [
    (inputs, outputs, SIZE // 2**stage)
    for stage, channels in enumerate([(3, 32), (32, 64), (64, 128)])
    for inputs, outputs in [channels, channels[1:] * 2, channels[1:] * 2]
]


@pytest.mark.parametrize(("similarity", "hidden"), [("diagonal", 64), ("full", 128)])
def test_macs_are_the_papers_formula(similarity, hidden):
    """The plain one, times 1 + 1/max(C, O) or 1 + K/max(C, O) if dynamic; then the predictor.

    Its patch norm is a box of nine taps over one channel.
    """
    linear = 128 * 16 * 256 + 256 * 10
    plain = sum(9 * c * o * s**2 for c, o, s in CNN9_LAYERS)
    assert counts.macs(*full_size("cnn9")) == plain + linear
    static, *size = full_size("cnn9", f"static-{similarity}")
    assert counts.macs(ns.fold(static), *size) == plain + linear
    folding = sum(81 * c * o for c, o, _ in CNN9_LAYERS) if similarity == "full" else 0
    assert counts.macs(static, *size) == plain + linear + folding
    scalars = 9 if similarity == "diagonal" else 81
    expected = linear
    for c, o, s in CNN9_LAYERS:
        assert o == max(c, o)
        expected += s**2 * (9 * c * o + scalars * c)
        expected += s**2 * (9 + 9 * c * hidden + 9 * hidden * scalars)
    assert counts.macs(*full_size("cnn9", f"dynamic-{similarity}")) == expected


@pytest.mark.parametrize("name", [name for name in models.MODELS if name not in RIVALS])
def test_kernels_start_at_hes_initialisation(name):
    torch.manual_seed(0)
    network = models.build(name, 50, image_size=SIZE)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.weight.numel() > 10_000:
            fan_in = layer.weight[0].numel()
            assert layer.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)


def test_frozen_numbers_are_counted_too():
    network = ns.convert(nn.Sequential(nn.Conv2d(2, 3, 3)), "static-diagonal")
    assert counts.parameters(ns.freeze_backbone(network)) == 2 * 3 * 9 + 3 + 9
