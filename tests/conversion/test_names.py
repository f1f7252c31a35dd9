"""Parts of a network have one name for `where`, `train` and `extra`, whatever wraps the network."""

from collections import OrderedDict

import pytest
import torch
from moved import compiled
from safetensors.torch import load_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel
from torch.optim.swa_utils import AveragedModel

import neural_similarity as ns

# Dynamo looks at it wherever a part is compiled.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def network():
    layers = {
        "conv1": nn.Conv2d(3, 4, 3),
        "block": nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()),
        "flat": nn.Flatten(),
        "fc": nn.Linear(4 * 4 * 4, 5),
    }
    return nn.Sequential(OrderedDict(layers)).eval()


def in_part(wrap):
    def wrapped(model):
        model.conv1, model.block[0], model.fc = map(wrap, (model.conv1, model.block[0], model.fc))
        return model

    return wrapped


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": compiled,
    "data parallel": DataParallel,
    "averaged": AveragedModel,
    "compiled data parallel": lambda model: compiled(DataParallel(model)),
    "compiled in part": in_part(compiled),
    "checkpointed in part": in_part(checkpoint_wrapper),
}
PLACES = {
    "a name": ("block.0", {"block.0"}),
    "names": (["conv1", "block.0"], {"conv1", "block.0"}),
    "a glob": ("*.0", {"block.0"}),
    "a function": (lambda name, _: name == "conv1", {"conv1"}),
    "a class": (nn.Conv2d, {"conv1", "block.0"}),
    "all": (None, {"conv1", "block.0"}),
}


@pytest.fixture(params=WRAPPERS)
def wrapped(request):
    return WRAPPERS[request.param](network())


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("place", PLACES)
def test_where_has_the_names_of_the_network_inside(wrapped, x, tmp_path, place):
    where, names = PLACES[place]
    plan = ns.plan(wrapped, "static-full", where)
    assert set(plan) == {"conv1", "block.0"}
    assert {name for name, why in plan.items() if why is None} == names
    assert f"{len(names)} of 2 layers are converted, {81 * len(names)} scalars" in str(plan)
    before = wrapped(x)
    converted = ns.convert(wrapped, "static-full", where, inplace=True)
    assert torch.allclose(converted(x), before, atol=1e-6)
    file = ns.save_adapter(converted, tmp_path / "a")
    assert set(load_file(file)) == {f"{name}.similarity.raw" for name in names}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_checkpoint_wrapped_module."])
def test_the_parts_that_wrappers_add_name_nothing(wrapped, tmp_path, prefix):
    for name in (f"{prefix}conv1", f"conv1.{prefix}"[:-1]):
        with pytest.raises(ValueError, match="`where` must name layers of the model"):
            ns.convert(wrapped, "static-full", where=name)
        with pytest.raises(ValueError, match="the model has conv1, block, flat, fc"):
            ns.freeze_backbone(ns.convert(wrapped, "static-full", inplace=True), train=name)
        with pytest.raises(ValueError, match="the model has conv1, block, flat, fc"):
            ns.save_adapter(wrapped, tmp_path / "a", extra=name)


def test_errors_and_advice_have_these_names_too(wrapped, caplog):
    wrong = ns.Dynamic(ns.Full(), lambda _geometry, _scalars: nn.Identity())
    with pytest.raises(ValueError, match="layer 'conv1': the predictor must"):
        ns.convert(wrapped, wrong, where="conv1", inplace=True)
    ns.freeze_backbone(ns.convert(wrapped, "static-full", inplace=True))
    assert "'fc' is frozen, too; train='fc' trains it" in caplog.text


PARTS = {
    "fc": {"fc.weight", "fc.bias"},
    "block": {"block.0.weight", "block.0.bias"},
    "block.0": {"block.0.weight", "block.0.bias"},
    "": {f"{name}.{kind}" for name in ("conv1", "block.0", "fc") for kind in ("weight", "bias")},
}


def part_of(model, name):
    """The module at a plain name, within its wrapper if it has one of its own."""
    while not hasattr(model, "conv1"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model.get_submodule(name)


@pytest.mark.parametrize("argument", ["train", "extra"])
@pytest.mark.parametrize("part", PARTS)
def test_a_module_is_a_part_by_itself(wrapped, tmp_path, part, argument):
    model = ns.convert(wrapped, "static-full", inplace=True)
    module = part_of(model, part) if part else model
    options = {"train": module} if argument == "train" else {"train": ()}
    ns.freeze_backbone(model, **options)
    kept = {} if argument == "train" else {"extra": module}
    keys = set(load_file(ns.save_adapter(model, tmp_path / "a", **kept)))
    assert {key for key in keys if "similarity" not in key} == PARTS[part]


class Holder(nn.Module):
    """As Lightning's module."""

    def __init__(self, model, **state):
        super().__init__()
        self.model = model
        for name, value in state.items():
            self.register_buffer(name, value)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", [None, "conv1"])
def test_an_adapter_of_a_module_that_holds_the_network_alone_is_the_networks(
    x, tmp_path, depth, where
):
    backbone = network()
    model = ns.freeze_backbone(ns.convert(backbone, "static-full", where), train="fc")
    nn.init.normal_(model.conv1.similarity.raw)
    nn.init.normal_(model.fc.bias)
    holder = Holder(Holder(model) if depth == 2 else model)
    file = ns.save_adapter(holder, tmp_path / "a")
    assert all(key.startswith("model.") for key in load_file(file))
    assert torch.equal(ns.load_adapter(backbone, file)(x), model(x))
    other = network()
    with pytest.raises(ValueError, match="another backbone: its weights"):
        ns.load_adapter(other, file)
    file = ns.save_adapter(ns.freeze_backbone(Holder(model, w=torch.ones(3)), train=()), file)
    with pytest.raises(ValueError, match=r"in the file begin with 'model\.': save that part"):
        ns.load_adapter(backbone, file)
