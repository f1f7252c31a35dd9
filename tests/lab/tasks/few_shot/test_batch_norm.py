"""Batch normalisation with explicit statistics: what it computes, and that queries do not leak."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from neural_similarity import models
from neural_similarity.lab.tasks.few_shot.batch_norm import (
    BatchNorm2d,
    set_statistics,
    support_first,
)
from neural_similarity.lab.tasks.few_shot.embedding import embed_queries, embed_task

DOUBLE = {"dtype": torch.float64}


def layer(statistics, channels=3, **options):
    norm = nn.BatchNorm2d(channels, **options, **DOUBLE)
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    if norm.track_running_stats:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return set_statistics(norm, statistics)


def by_hand(norm, x, mean, var):
    """The textbook's formula, image by image."""
    rows = []
    for image in x:
        row = (image - mean[:, None, None]) / (var[:, None, None] + norm.eps) ** 0.5
        if norm.affine:
            row = row * norm.weight[:, None, None] + norm.bias[:, None, None]
        rows.append(row)
    return torch.stack(rows)


def moments(x):
    flat = x.transpose(0, 1).flatten(1)
    return flat.mean(1), flat.var(1, correction=0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_each_mode_is_the_textbooks_formula(affine, training):
    x = torch.randn(7, 3, 5, 2, **DOUBLE)
    norm = layer("running", affine=affine).train(training)
    before = deepcopy(norm.state_dict())
    assert_close(norm(x), by_hand(norm, x, norm.running_mean, norm.running_var))
    set_statistics(norm, "transductive")
    assert_close(norm(x), by_hand(norm, x, *moments(x)))
    set_statistics(norm, "support")
    for count in (4, 7):
        with support_first(count):
            assert_close(norm(x), by_hand(norm, x, *moments(x[:count])))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


def test_one_dimensional_features_are_normalised_alike():
    norm = set_statistics(nn.BatchNorm1d(4, **DOUBLE), "support")
    x = torch.randn(6, 4, **DOUBLE)
    with support_first(3):
        y = norm(x)
    assert_close(y, F.batch_norm(x, x[:3].mean(0), x[:3].var(0, correction=0)))


@pytest.mark.parametrize("transform", ["fused", "primitive"])
def test_gradients_of_both_forms_go_through_the_support(transform):
    norm, x = layer("support"), torch.randn(5, 3, 2, 2, **DOUBLE).requires_grad_()

    def output(x):
        with support_first(3 if transform == "primitive" else 5):
            return norm(x)

    assert torch.autograd.gradcheck(output, (x,))
    assert torch.autograd.gradgradcheck(output, (x,))


def test_what_is_differentiated_twice_is_precise_for_large_maps():
    results = []
    x = torch.randn(25, 3, 84, 84, **DOUBLE).to(memory_format=torch.channels_last)
    for dtype in (torch.float32, torch.float64):
        norm, maps = layer("transductive").to(dtype), x.to(dtype).requires_grad_()
        norm.weight.data.fill_(0.7)
        norm.bias.data.fill_(0.2)
        with support_first(25, twice=True):
            y = norm(maps)
        first = torch.autograd.grad(y.tanh().sum(), list(norm.parameters()), create_graph=True)
        (second,) = torch.autograd.grad(sum(g.square().sum() for g in first), maps)
        results.append([y, *first, second])
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).norm() < 3e-6 * exact.norm()


NETWORKS = {
    "convnet4": lambda: models.convnet4(5, image_size=16, width=0.2),
    "convnet4 dynamic": lambda: models.convnet4(
        5, image_size=16, width=0.2, similarity="dynamic-diagonal"
    ),
    "cnn9": lambda: models.cnn9(5, image_size=16, width=0.2),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("statistics", ["running", "support"])
def test_no_query_sees_another_where_statistics_are_inductive(statistics, name):
    network = set_statistics(NETWORKS[name]().double(), statistics)
    support, query = torch.randn(6, 3, 16, 16, **DOUBLE), torch.randn(4, 3, 16, 16, **DOUBLE)
    together = embed_queries(network, statistics, support, query)
    others = torch.cat([query[:1], 100 * torch.randn_like(query)])
    assert_close(embed_queries(network, statistics, support, query[:1]), together[:1])
    assert_close(embed_queries(network, statistics, support, others)[:1], together[:1])
    alone, _ = embed_task(network, statistics, support, query)
    assert_close(embed_task(network, statistics, support, others)[0], alone)


def test_transductive_queries_see_each_other_but_not_the_support():
    statistics = "transductive"
    network = set_statistics(NETWORKS["convnet4"]().double(), statistics)
    support, query = torch.randn(6, 3, 16, 16, **DOUBLE), torch.randn(4, 3, 16, 16, **DOUBLE)
    first, second = embed_task(network, statistics, support, query)
    assert_close(first, network(support))
    assert_close(second, embed_queries(network, statistics, 0 * support, query))
    changed = embed_queries(network, statistics, support, torch.cat([query[:1], 2 * query[1:]]))
    assert (changed[0] - second[0]).abs().max() > 1e-3


def test_layers_become_torchs_again_and_keep_their_state():
    network = models.cnn9(5, width=0.1)
    kinds = [type(m) for m in network.modules()]
    state = deepcopy(network.state_dict())
    set_statistics(network, "support")
    assert isinstance(network.conv1_1[1], BatchNorm2d)
    assert "statistics='support'" in repr(network.conv1_1[1])
    assert isinstance(deepcopy(network).conv1_1[1], BatchNorm2d)
    back = set_statistics(set_statistics(network, "running"), None)
    assert [type(m) for m in back.modules()] == kinds
    assert state.keys() == back.state_dict().keys()
    assert "statistics" not in vars(back.conv1_1[1])


def test_errors():
    norm = layer("support")
    x = torch.randn(4, 3, 2, 2, **DOUBLE)
    with pytest.raises(ValueError, match=r"`support_first\(count\)` with 1 to 4, got None"):
        norm(x)
    for count in (0, 5):
        with support_first(count), pytest.raises(ValueError, match=f"got {count}"):
            norm(x)
    with pytest.raises(ValueError, match="must be one of running, support, transductive or None"):
        set_statistics(norm, "batch")
    with pytest.raises(ValueError, match="\"running\" needs layers that track them, got '0'"):
        set_statistics(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "running")
    with pytest.raises(ValueError, match="1-d and 2-d batch normalisation only, got a BatchNorm3d"):
        set_statistics(nn.Sequential(nn.ReLU(), nn.BatchNorm3d(3)), "support")
