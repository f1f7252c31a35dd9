"""Converted networks in the hands of torch's other tools."""

from copy import deepcopy

import pytest
import torch
from torch import fx, nn
from torch.ao.quantization import fuse_modules
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.export import Dim, export
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.testing import assert_close

import neural_similarity as ns


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
    network(torch.randn(4, 3, 12, 12))
    return network.eval()


@pytest.mark.parametrize("wrap", [lambda model: model, AveragedModel])
def test_held_statistics_cannot_be_estimated_anew_in_silence(network, wrap):
    frozen = wrap(ns.freeze_backbone(ns.convert(network, "static-full")))
    images = [torch.randn(4, 3, 12, 12)]
    with pytest.raises(ValueError, match=r"must keep its momentum, got None: .*unfreeze_backb"):
        update_bn(images, frozen)
    update_bn(images, ns.unfreeze_backbone(frozen))
    assert all(norm.running_var.ne(1).all() for norm in frozen.modules() if is_norm(norm))


def is_norm(module):
    return isinstance(module, nn.BatchNorm2d)


def test_a_folded_frozen_network_is_torchs_alone(network):
    frozen = ns.freeze_backbone(ns.convert(network, "static-full")).eval()
    folded = ns.fold(frozen)
    x = torch.randn(2, 3, 12, 12)
    assert_close(fuse_modules(folded, [["0", "1", "2"]])(x), frozen(x))


@pytest.mark.usefixtures("ranks")
def test_what_is_distributed_already_is_not_converted(network):
    model = nn.Sequential(DistributedDataParallel(network), nn.Conv2d(8, 4, 3))
    reasons = ns.plan(model, "static-full")
    assert reasons["1"] is None
    assert "which knows its parameters already; convert it before" in reasons["0.module.0"]
    with pytest.raises(ValueError, match=r"is in DistributedDataParallel"):
        ns.convert(model[0], "static-full")


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("measure", ["l1", "nuclear", "deviation"])
def test_penalties_are_of_all_that_fsdp_has_shared_out(network, measure):
    whole = ns.convert(network, "static-full")
    nn.init.normal_(whole[0].similarity.raw, std=0.3)
    sharded = deepcopy(whole)
    mesh = init_device_mesh("cpu", (1,))
    for part in (sharded[0], sharded):
        fully_shard(part, mesh=mesh)
    x = torch.randn(2, 3, 12, 12)
    for model in (whole, sharded):
        (model(x).square().sum() + ns.penalty(model, measure)).backward()
    gradient = sharded[0].similarity.raw.grad
    assert isinstance(gradient, DTensor)
    assert_close(gradient.full_tensor(), whole[0].similarity.raw.grad)


@pytest.mark.long
@pytest.mark.parametrize("similarity", ["dynamic-diagonal", "dynamic-full"])
def test_sizes_behind_strides_may_stay_open_in_an_export(similarity):
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(c, 4, 3, stride=2, padding=1) for c in (3, 4)]
    layer = ns.Conv2d(4, 4, 3, padding=1, similarity=similarity)
    nn.init.ones_(layer.similarity.gain)
    network = nn.Sequential(*convolutions, layer).eval()
    sizes = {0: Dim("n"), 2: Dim("h", min=16, max=512), 3: Dim("w", min=16, max=512)}
    program = export(network, (torch.randn(2, 3, 20, 24),), dynamic_shapes=(sizes,))
    x = torch.randn(3, 3, 41, 37)
    assert_close(program.module()(x), network(x))


def test_fx_says_that_a_layer_alone_is_no_network():
    layer = ns.Conv2d(3, 4, 3, similarity="static-diagonal")
    with pytest.raises(ValueError, match=r"cannot trace a single layer .* wrap it in a network"):
        fx.symbolic_trace(layer)
