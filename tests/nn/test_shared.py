"""Shared predictors: one module in many layers."""

import copy
import pickle

import pytest
import torch
from moved import moved
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import models
from neural_similarity.lab.train.checkpoint import (
    WEIGHTS,
    TrainingState,
    restore_state,
    save_checkpoint,
)

SHARED = ns.Dynamic(ns.Diagonal(), ns.Shared(channels=3, hidden=5))


def predictors(model):
    layers = [module for module in model.modules() if isinstance(module, ns.Conv2d)]
    return [layer.similarity.predictor for layer in layers if layer.similarity is not None]


def count(modules):
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def plain_network():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, stride=2),
        nn.Conv2d(4, 6, (1, 3), groups=2),
        nn.Conv2d(6, 4, 3),
        nn.Conv2d(4, 4, 3, stride=2),
    )


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_formula(batch_norm):
    """Patch-normalised C to 3, ReLU; 3×3 to 5, ReLU; 3×3 to the scalars; each batch-normed."""
    spec = ns.Dynamic(predictor=ns.Shared(channels=3, hidden=5, batch_norm=batch_norm))
    window = {"stride": (2, 1), "padding": (1, 2)}
    net = ns.Conv2d(2, 4, (2, 3), **window, similarity=spec).double().similarity.predictor
    first, second = net.head
    biases = [] if batch_norm else [first.bias, second.bias]
    kernels = [p.shape for p in net.parameters() if p.dim() == 4]
    assert kernels == [(3, 2, 2, 3), (5, 3, 3, 3), (6, 5, 3, 3)]
    assert [layer.bias is None for layer in net.head] == [batch_norm] * 2
    for bias in biases:
        nn.init.normal_(bias)

    def normed(y):
        return F.batch_norm(y, None, None, training=True, eps=1e-3) if batch_norm else y

    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    energy = F.conv2d(x.square(), x.new_ones(1, 2, 2, 3), **window) + 1e-4
    hidden = F.conv2d(x, net.adaptation.weight, **window) / (energy / 12).sqrt()
    hidden = F.conv2d(normed(hidden).relu(), first.weight, first.bias, padding=1)
    raw = F.conv2d(normed(hidden).relu(), second.weight, second.bias, padding=1)
    assert_close(net(x), normed(raw))


def test_layers_of_one_kernel_size_share_one_module_inside_sharing():
    with ns.sharing():
        layers = [ns.Conv2d(c, 4, 3, stride=s, similarity=SHARED) for c, s in ((2, 1), (3, 2))]
        with ns.sharing():
            layers.append(ns.Conv2d(5, 4, 3, similarity=SHARED))
        other_size = ns.Conv2d(2, 4, (1, 9), similarity=SHARED)
        other_scalars = ns.Conv2d(2, 4, 3, similarity=ns.Dynamic(ns.Full(), SHARED.predictor))
        other_spec = ns.Conv2d(2, 4, 3, similarity=ns.Dynamic(predictor=ns.Shared(channels=4)))
        linear = ns.Linear(3, 4, similarity=SHARED), ns.Conv1d(2, 4, 3, similarity=SHARED)
    heads = [layer.similarity.predictor.head for layer in layers]
    adaptations = [layer.similarity.predictor.adaptation for layer in layers]
    assert len(set(heads)) == 1
    assert len(set(adaptations)) == 3
    apart = (other_size, other_scalars, other_spec)
    others = {*heads, *(m.similarity.predictor.head for m in apart)}
    assert len(others) == 4
    assert len({m.similarity.predictor.head for m in linear}) == 2


def test_layers_built_outside_have_a_predictor_to_themselves():
    """Sharing ends with an error, too."""
    with ns.sharing():
        layers = [ns.Conv2d(2, 4, 3, similarity=SHARED)]
    with pytest.raises(ValueError, match="static-full"), ns.sharing():
        ns.Conv2d(2, 4, 3, similarity="static-ful")
    layers += [ns.Conv2d(2, 4, 3, similarity=SHARED) for _ in range(2)]
    assert len({layer.similarity.predictor.head for layer in layers}) == 3


def test_adaptations_are_shared_between_layers_of_one_input_and_window():
    spec = ns.Dynamic(predictor=ns.Shared(channels=3, hidden=5, share_adaptation=True))
    frames = [
        (2, {}), (2, {"groups": 2}), (2, {"stride": 2}), (3, {}), (2, {"padding": 1}),
        (2, {"dilation": 2}), (2, {"padding_mode": "reflect"}),
    ]  # fmt: skip
    with ns.sharing():
        layers = [
            ns.Conv2d(c, 4 + 2 * i, 3, similarity=spec, **o) for i, (c, o) in enumerate(frames)
        ]
    adaptations = [layer.similarity.predictor.adaptation for layer in layers]
    assert adaptations[0] is adaptations[1]
    assert len(set(adaptations)) == 6
    assert len({layer.similarity.predictor.head for layer in layers}) == 1


def test_conversion_shares_within_one_network():
    first, second = (ns.convert(plain_network(), SHARED) for _ in range(2))
    heads = [predictor.head for predictor in predictors(first)]
    assert heads[0] is heads[1] is heads[3] is heads[4]
    assert heads[2] is not heads[0]
    assert not {*heads} & {predictor.head for predictor in predictors(second)}
    x = torch.randn(2, 2, 15, 16)
    assert_close(first(x), ns.unconvert(first)(x))


def test_half_of_the_predictor_parameters_on_cnn9():
    """§3.3.2: one predictor a layer has 64 hidden units, the shared one 32 behind adaptations."""
    inputs = 3 + 2 * 32 + 32 + 2 * 64 + 64 + 2 * 128
    disjoint = predictors(models.cnn9(10, similarity="dynamic-diagonal"))
    assert count(disjoint) == 9 * 64 * inputs + 9 * (9 * 64 * 9 + 9)
    shared = predictors(models.cnn9(10, similarity=ns.Dynamic(predictor=ns.Shared())))
    assert len({predictor.head for predictor in shared}) == 1
    head = 9 * 32 * 64 + 64 + 9 * 64 * 9 + 9
    assert count(shared) == 9 * 32 * inputs + head
    assert 0.45 < count(shared) / count(disjoint) < 0.55
    spec = ns.Dynamic(predictor=ns.Shared(share_adaptation=True))
    least = predictors(models.cnn9(10, similarity=spec))
    assert count(least) == 9 * 32 * (3 + 32 + 64 + 128) + head


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_the_ties(clone):
    network = moved(ns.convert(plain_network(), SHARED))
    other = clone(network)
    heads = [predictor.head for predictor in predictors(other)]
    assert heads[0] is heads[1] is heads[3]
    assert heads[0] is not predictors(network)[0].head
    x = torch.randn(2, 2, 15, 16)
    assert torch.equal(other(x), network(x))
    predictors(other)[0].head[1].bias.data += 1
    assert torch.equal(predictors(other)[3].head[1].bias, heads[0][1].bias)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_checkpoints_store_each_storage_once(tmp_path, layout):
    network = moved(ns.convert(plain_network(), SHARED)).to(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    path = save_checkpoint(
        tmp_path, TrainingState(network, optimizer, torch.zeros(3)), {"b": "c"}, keep=1
    )
    with safe_open(path / WEIGHTS, "pt") as file:
        named = set(file.keys()) | (file.metadata().keys() - {"b"})
        assert file.metadata()["b"] == "c"
        stored = sum(file.get_tensor(key).numel() for key in file.keys())
        heads = [key for key in file.keys() if ".predictor.head.1.weight" in key]
    assert stored == sum(p.numel() for p in network.parameters())
    assert len(heads) == 2  # one for each kernel size
    assert named == network.state_dict().keys()
    other = ns.convert(plain_network(), SHARED).to(memory_format=layout)
    restore_state(
        path, TrainingState(other, torch.optim.SGD(other.parameters(), 0.1), torch.zeros(3))
    )
    x = torch.randn(2, 2, 15, 16)
    assert torch.equal(other(x), network(x))
    assert predictors(other)[0].head is predictors(other)[3].head


def test_optimisers_get_a_shared_parameter_once():
    network = ns.convert(plain_network(), SHARED)
    groups = ns.parameter_groups(network, weight_decay=0.1, predictor_decay=0.02)
    by_name = {group["name"]: group for group in groups}
    assert by_name["predictors"]["weight_decay"] == 0.02
    assert len(by_name["predictors"]["params"]) == 5 + 2 * 4  # adaptations, two heads
    held = [p for group in groups for p in group["params"]]
    assert len(held) == len(set(held)) == len(list(network.parameters()))
    torch.optim.SGD(groups, lr=0.1)


def test_every_layer_normalises_by_statistics_of_its_own():
    """The three convolutions are shared, as without; behind each stands the layer's own norm."""
    spec = ns.Dynamic(predictor=ns.Shared(channels=3, hidden=5, batch_norm=True))
    with ns.sharing():
        one, two = (ns.Conv2d(2, 4, 3, similarity=spec) for _ in range(2))
    first, second = one.similarity.predictor, two.similarity.predictor
    assert first.head is second.head
    assert first.norm2 is not second.norm2
    first(torch.randn(4, 2, 6, 7))
    assert first.norm3.running_mean.abs().max() > 0
    assert not second.norm3.running_mean.any()
