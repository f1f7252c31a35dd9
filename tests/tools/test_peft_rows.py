"""`adapter_names`: every row of a batch has an adapter of its own, as with PEFT's LoRA."""

from contextlib import nullcontext

import pytest
import torch
from moved import compiled
from torch import nn

import neural_similarity as ns

peft = pytest.importorskip("peft")

ROWS = ["b", "default", "__base__", "b", "c"]
SIMILARITIES = [
    "static-full", ns.Static(ns.Affine(tied=True)), "dynamic-diagonal",
    ns.Dynamic(ns.Full(), ns.Shared(channels=4, hidden=5, batch_norm=True)),
]  # fmt: skip


def plain():
    torch.manual_seed(0)
    parts = [nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1)]
    inner = nn.Sequential(nn.Conv2d(6, 6, (3, 2), stride=2, groups=2), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*parts, inner, nn.Flatten(), nn.Linear(6, 5)).double().eval()


def compiled_inside():
    network = plain()
    network[4] = compiled(network[4])
    return network


@pytest.fixture
def x():
    return torch.randn(5, 4, 9, 8, dtype=torch.float64)


def three_adapters(network, similarity="static-full", heads=("6",)):
    """ "b" in one layer alone; each has its own head, if there are `heads`."""

    def config(**options):
        options |= {"similarity": similarity, "init_weights": False, "modules_to_save": [*heads]}
        return ns.peft.NslConfig(**options)

    model = peft.get_peft_model(network, config())
    model.add_adapter("b", config(target_modules=["0"]))
    model.add_adapter("c", config())
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            nn.init.normal_(parameter)
    return model.eval()


def row_by_row(model, x, names):
    rows = []
    for name, row in zip(names, x, strict=True):
        model.set_adapter(name if name != "__base__" else "default")
        with model.disable_adapter() if name == "__base__" else nullcontext():
            rows.append(model(row[None]))
    model.set_adapter("default")
    return torch.cat(rows)


@torch.no_grad()
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_row_has_the_adapter_of_its_name(x, similarity):
    model = three_adapters(plain(), similarity)
    expected, y = row_by_row(model, x, ROWS), model(x)
    torch.testing.assert_close(model(x, adapter_names=ROWS), expected)
    assert torch.equal(model(x), y)
    torch.testing.assert_close(model(x, adapter_names=["default"] * 5), y)
    assert model.base_model.model[0](x[:0], adapter_names=[]).shape == (0, 6, 9, 8)
    with model.disable_adapter():
        torch.testing.assert_close(model(x, adapter_names=ROWS), plain()(x))


@torch.no_grad()
@pytest.mark.parametrize("heads", [(), ("6",)])
@pytest.mark.parametrize("place", ["inside", "below", "around"])
def test_rows_of_compiled_networks(x, place, heads):
    below = {"inside": compiled_inside, "below": lambda: compiled(plain())}
    network = three_adapters(below.get(place, plain)(), heads=heads)
    model = compiled(network) if place == "around" else network
    expected, y = row_by_row(three_adapters(plain(), heads=heads), x, ROWS), model(x)
    for names in (ROWS, ROWS[::-1]):
        rows = model(x if names is ROWS else x.flip(0), adapter_names=names)
        torch.testing.assert_close(rows if names is ROWS else rows.flip(0), expected)
    assert torch.equal(model(x), y)


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (ROWS, nn.Module.train, "when the model is in training mode"),
        (ROWS[:4], nn.Module.eval, "same as the number of inputs, but got 4 and 5 respectively"),
        (ROWS, lambda model: model.merge_adapter(), "when there are merged adapters"),
        (["b", "a", "c", "A", "b"], nn.Module.eval, r"non-existing adapter\(s\): A, a"),
        (
            ["b", "d", "b", "b", "b"],
            lambda model: model.add_adapter("d", ns.peft.NslConfig()),
            r"when one of \['b', 'd', 'default'\] has no `modules_to_save` where others have",
        ),
    ],
)
def test_names_that_have_no_meaning_are_refused_and_leave_no_trace(x, names, change, message):
    model = three_adapters(plain())
    change(model)
    hooks = [[*part._forward_pre_hooks] for part in model.modules()]
    with pytest.raises(ValueError, match=message):
        model(x, adapter_names=names)
    assert [[*part._forward_pre_hooks] for part in model.modules()] == hooks
    model.unmerge_adapter()
    model.eval()(x, adapter_names=ROWS)
