"""Merging and unmerging change all layers or none, and lose nothing that was written."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import neural_similarity as ns

peft = pytest.importorskip("peft")


def adapted(similarity="static-full"):
    """ "a" is in both layers, "b" in the second alone, with this similarity."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3))

    def config(similarity, *targets):
        options = {"target_modules": [*targets], "init_weights": False}
        return ns.peft.NslConfig(similarity=similarity, **options)

    model = peft.get_peft_model(network, config("static-full", "0", "2"), "a").eval()
    model.add_adapter("b", config(similarity, "2"))
    return model


def last(model):
    return model.base_model.model[2]


def spoil(model):
    nn.init.constant_(last(model).nsl_similarity["b"].raw, torch.nan)


def write(model):
    model.merge_adapter(["a"])
    last(model).weight.data.add_(0.1)


def state(model):
    layers = [model.base_model.model[0], last(model)]
    return [(type(p), [*p.merged_adapters], [*p.active_adapters], id(p.weight)) for p in layers]


@pytest.fixture
def x():
    return torch.randn(2, 3, 9, 9)


BOTH = {"adapter_names": ["a", "b"]}
STATES = {
    "dynamic": ("dynamic-diagonal", nn.Module.eval, r"'2': .* static, got the dynamic \['b'\]"),
    "not finite": ("static-full", spoil, "'2': .* merged must be finite"),
    "written": ("static-full", write, r"'2': .* merge_and_unload\(\) keeps what was written"),
}


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("dynamic", lambda model: model.merge_adapter(**BOTH)),
        ("dynamic", lambda model: model.merge_and_unload(**BOTH)),
        ("not finite", lambda model: model.merge_adapter(safe_merge=True, **BOTH)),
        ("not finite", lambda model: model.merge_and_unload(safe_merge=True, **BOTH)),
        ("written", lambda model: model.unmerge_adapter()),
        ("written", lambda model: model.set_adapter("b")),
        ("written", lambda model: model.merge_adapter(["b"])),
        ("written", lambda model: model.merge_and_unload(adapter_names=["b"])),
    ],
)
@pytest.mark.filterwarnings("ignore:Adapter cannot be set:UserWarning", "ignore:Already following")
def test_what_fails_in_a_later_layer_changes_none(x, name, action):
    similarity, prepare, message = STATES[name]
    model = adapted(similarity)
    prepare(model)
    before, y = state(model), model(x)
    with pytest.raises(ValueError, match=message):
        action(model)
    assert state(model) == before
    assert torch.equal(model(x), y)


def step(layer):
    optimizer = torch.optim.SGD([layer.weight], lr=0.1, fused=True)
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.data.add_(0.1),
        lambda layer: setattr(layer.base_layer, "weight", nn.Parameter(layer.weight + 0.1)),
        lambda layer: layer.load_state_dict({"base_layer.weight": layer.weight + 1}, strict=False),
        step,
    ],
)
def test_what_is_written_to_a_merged_kernel_is_not_lost(x, change):
    model = adapted()
    model.merge_adapter()
    last(model).requires_grad_(True)
    change(last(model))
    y, again = model(x), deepcopy(model)
    with pytest.raises(ValueError, match="written"), model.disable_adapter():
        model(x)
    with pytest.raises(ValueError, match="written"):
        again.unmerge_adapter()
    with pytest.warns(UserWarning, match="nothing to do"):
        assert torch.equal(again.merge_and_unload()(x), y)


@pytest.mark.parametrize(
    "change",
    [
        nn.Module.half,
        lambda model: model.load_state_dict(model.state_dict()),
        lambda model: setattr(model, "base_model", deepcopy(model.base_model)),
    ],
)
def test_what_writes_no_other_numbers_can_be_unmerged(change):
    model = adapted()
    spoil(model)
    kernel = last(model).weight.detach().clone()
    model.merge_adapter(["a", "b"])
    change(model)
    model.unmerge_adapter()
    assert torch.equal(last(model).weight, kernel.to(last(model).weight))
