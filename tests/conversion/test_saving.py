"""An adapter holds all that makes the network differ from its backbone, or is not saved."""

import pickle
from collections import OrderedDict
from copy import deepcopy
from functools import partial

import pytest
import torch
from moved import compiled, train_steps
from safetensors.torch import load_file
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import neural_similarity as ns


def network():
    layers = {
        "conv1": nn.Conv2d(3, 4, 3),
        "bn": nn.BatchNorm2d(4),
        "conv2": nn.Conv2d(4, 4, 3),
        "flat": nn.Flatten(),
        "fc": nn.Linear(4 * 4 * 4, 5),
    }
    network = nn.Sequential(OrderedDict(layers))
    return network.eval()


@pytest.fixture
def backbone():
    return network()


@pytest.fixture
def x():
    return torch.randn(6, 3, 8, 8)


trained = partial(train_steps, steps=3, lr=0.01)


def keys(file):
    return {key for key in load_file(file) if ".similarity." not in key}


HEAD, STATISTICS = {"fc.weight", "fc.bias"}, {"bn.running_mean", "bn.running_var"}
FROZEN = [
    ({"train": "fc"}, HEAD),
    ({"train": ()}, set()),
    ({"train": "fc.bias"}, {"fc.bias"}),
    ({"train": "fc", "norm": "train"}, HEAD | STATISTICS),
    ({"train": "bn", "norm": "train"}, {"bn.weight", "bn.bias"} | STATISTICS),
    ({"train": ["*.bias"]}, {"fc.bias", "conv1.bias", "conv2.bias", "bn.bias"}),
]


DONE = {
    "as it is": lambda model: model,
    "off": lambda model: model.requires_grad_(False),
    "copied": deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "wrapped later": AveragedModel,
}


@pytest.mark.parametrize(("options", "expected"), FROZEN)
@pytest.mark.parametrize("done", DONE)
def test_what_a_freeze_left_to_train_is_saved(backbone, x, tmp_path, options, expected, done):
    frozen = ns.freeze_backbone(ns.convert(backbone, "static-full"), **options)
    model = DONE[done](trained(frozen, x))
    file = ns.save_adapter(model, tmp_path / "a")
    assert keys(file) == expected
    assert ns.max_difference(ns.load_adapter(backbone, file), model, x) == 0
    assert ns.max_difference(backbone, model, x) > 1e-3


def test_what_trains_although_all_else_is_frozen_is_saved(backbone, x, tmp_path):
    model = ns.freeze_backbone(ns.convert(backbone, "static-full"))
    model.fc.requires_grad_(True)
    model.fc.register_parameter("scale", nn.Parameter(torch.ones(1)))
    file = ns.save_adapter(trained(model, x), tmp_path / "a", extra="bn")
    assert HEAD | {"fc.scale"} < keys(file)
    assert keys(file) > {"bn.weight", "bn.running_var"}


def test_a_second_freeze_keeps_what_the_first_one_left_to_train(backbone, x, tmp_path):
    model = trained(ns.freeze_backbone(ns.convert(backbone, "static-full"), train="fc"), x)
    model = trained(ns.freeze_backbone(model, train="bn"), x)
    assert keys(ns.save_adapter(model, tmp_path / "a")) == {*HEAD, "bn.weight", "bn.bias"}
    ns.unfreeze_backbone(model)
    file = ns.save_adapter(model, tmp_path / "a")
    assert ns.max_difference(ns.load_adapter(backbone, file), model, x) == 0
    trained(model, x)
    with pytest.raises(ValueError, match=r"conv1.weight, conv1.bias, bn.running_mean and 3 more"):
        ns.save_adapter(model, tmp_path / "a")


def nudge(tensor, at):
    tensor.view(-1)[at] += 1e-6


MOVES = {
    "its last number": (lambda model: nudge(model.conv2.weight, -1), "conv2.weight"),
    "its first number": (lambda model: nudge(model.conv2.weight, 0), "conv2.weight"),
    "a number to zero": (lambda model: model.bn.bias.data[3:].fill_(-0.0), "bn.bias"),
    "two numbers": (lambda model: model.fc.bias.data.copy_(model.fc.bias.flip(0)), "fc.bias"),
    "statistics": (lambda model: model.bn.running_var.mul_(2), "bn.running_var"),
    "a new head": (lambda model: setattr(model, "fc", nn.Linear(64, 5)), "fc.weight, fc.bias"),
    "one more layer": (lambda model: model.append(nn.Linear(5, 5)), "5.weight, 5.bias"),
    "the type": (lambda model: model.fc.double(), "fc.weight, fc.bias"),
    "a buffer": (lambda model: model.register_buffer("mean", torch.zeros(3)), "mean"),
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("inplace", [True, False])
def test_what_moved_since_the_conversion_is_named(backbone, tmp_path, move, inplace):
    change, names = MOVES[move]
    model = ns.convert(backbone, "static-full", "conv1", inplace=inplace)
    ns.convert(model, "static-full", "conv2", inplace=True)
    ns.save_adapter(model, tmp_path / "before")
    with torch.no_grad():
        change(model)
    for network in (model, deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(ValueError, match=f"`extra` must name .* saw them: {names}. ns.freeze"):
            ns.save_adapter(network, tmp_path / "a")
    assert {file.name for file in tmp_path.iterdir()} == {"before"}
    ns.save_adapter(model, tmp_path / "a", extra=names.split(", "))


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", [n for n in network().state_dict() if "num_batches" not in n])
def test_a_backbone_with_another_number_is_refused(backbone, tmp_path, name, at):
    file = ns.save_adapter(ns.convert(backbone, "static-full"), tmp_path / "a")
    nudge(backbone.state_dict()[name], at)
    with pytest.raises(ValueError, match="another backbone: its weights"):
        ns.load_adapter(backbone, file)


def test_what_does_not_matter_has_not_moved(backbone, x, tmp_path):
    model = ns.convert(backbone, "static-full")
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    model.bn.num_batches_tracked += 3
    model.to(memory_format=torch.channels_last).requires_grad_(False)
    model(x)
    assert keys(ns.save_adapter(model, tmp_path / "a")) == set()


def test_a_network_that_neither_converted_nor_froze_is_refused(tmp_path):
    """Nobody knows what its backbone is; once frozen, it is what was frozen."""
    model = ns.models.cnn9(10, width=0.1, similarity="static-full").eval()
    with pytest.raises(ValueError, match=r"not as ns.convert saw them: conv1_1.0.weight, .* more"):
        ns.save_adapter(model, tmp_path / "a")
    file = ns.save_adapter(ns.freeze_backbone(model, train=()), tmp_path / "a")
    loaded = ns.load_adapter(ns.unconvert(model), file)
    assert ns.max_difference(loaded, model, torch.randn(2, 3, 32, 32)) == 0


def test_a_freeze_tells_where_the_backbone_is_no_longer_what_was_converted(backbone, x, caplog):
    model = ns.freeze_backbone(trained(ns.convert(backbone, "static-full"), x), train="fc")
    assert "8 tensors have changed since ns.convert" in caplog.text
    caplog.clear()
    ns.freeze_backbone(model, train="fc")
    ns.freeze_backbone(ns.convert(backbone, "static-full"), train=())
    assert not caplog.text


def test_what_an_adapter_brought_is_saved_again(backbone, x, tmp_path):
    model = trained(ns.freeze_backbone(ns.convert(backbone, "static-full"), train="fc"), x)
    loaded = ns.load_adapter(backbone, ns.save_adapter(model, tmp_path / "a"))
    again = ns.save_adapter(loaded, tmp_path / "b")
    assert again.read_bytes() == (tmp_path / "a").read_bytes()
    trained(loaded, x)
    with pytest.raises(ValueError, match=r"saw them: conv1.weight, .*bn"):
        ns.save_adapter(loaded, tmp_path / "c")
    switch = ns.adapters(backbone, a=again).use("a")
    ns.freeze_backbone(backbone, train="bn")
    assert keys(ns.save_adapter(backbone, tmp_path / "d")) == {*HEAD, "bn.weight", "bn.bias"}
    switch.use(None)
    assert "_backbone_state" not in {name for m in backbone.modules() for name in vars(m)}


def partly_compiled(model):
    model.conv2 = compiled(model.conv2)
    return model


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": compiled,
    "ddp": DistributedDataParallel,
    "data parallel": DataParallel,
    "averaged": AveragedModel,
    "compiled ddp": lambda model: compiled(DistributedDataParallel(model)),
    "ddp of compiled": lambda model: DistributedDataParallel(compiled(model)),
    "partly compiled": partly_compiled,
}


@pytest.mark.usefixtures("ranks")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_leave_the_file_as_it_is_and_load_it(backbone, x, tmp_path, wrapper):
    wrap = WRAPPERS[wrapper]
    model = trained(ns.freeze_backbone(ns.convert(backbone, "static-full"), train="fc"), x)
    file = ns.save_adapter(model, tmp_path / "plain")
    wrapped = wrap(deepcopy(model))
    assert ns.save_adapter(wrapped, tmp_path / "wrapped").read_bytes() == file.read_bytes()
    other = ns.save_adapter(wrapped, tmp_path / "extra", extra=["bn", "conv2.weight", "fc"])
    assert keys(other) > {"bn.running_mean", "conv2.weight"}
    switch = ns.adapters(wrap(deepcopy(backbone)), a=file, b=other)
    for name in ("a", "b"):
        assert torch.allclose(switch.use(name).backbone(x), model(x), atol=1e-6)
        assert ns.save_adapter(switch.backbone, tmp_path / "again").stat().st_size
    assert torch.allclose(switch.use("a", merged=True).backbone(x), model(x), atol=1e-5)
    assert torch.allclose(switch.use(None).backbone(x), backbone(x), atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["conv1.similarity.raw", "fc.bias", "bn.running_mean"])
def test_numbers_that_are_not_finite_are_not_saved(backbone, tmp_path, name, value):
    model = ns.freeze_backbone(ns.convert(backbone, "static-full"), norm="train", train="fc")
    with torch.no_grad():
        model.state_dict()[name].view(-1)[-1] = value
    with pytest.raises(ValueError, match=f"{name} must hold finite numbers"):
        ns.save_adapter(model, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_an_m_that_its_layer_does_not_hold_is_not_saved(backbone, tmp_path):
    model = ns.freeze_backbone(ns.convert(backbone.bfloat16(), "static-full"), train=())
    model.conv1.similarity.float()
    ns.save_adapter(model, tmp_path / "a")  # Its numbers are those of bfloat16 still.
    nn.init.normal_(model.conv1.similarity.raw)
    with pytest.raises(ValueError, match=r"conv1.similarity.raw must be torch.bfloat16 .*float32"):
        ns.save_adapter(model, tmp_path / "a")


def test_the_adapter_of_a_single_layer_is_read_back(tmp_path):
    plain = nn.Conv2d(3, 4, 3)
    layer = ns.convert(plain, "static-full")
    with torch.no_grad():
        layer.similarity.raw.add_(0.1)
    loaded = ns.load_adapter(plain, ns.save_adapter(layer, tmp_path / "a"))
    assert torch.equal(loaded.similarity.raw, layer.similarity.raw)


@pytest.mark.parametrize("whole", [ns.GlobalSimilarity(2, (3, 3)), ns.SelfAttention(2)])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a network"])
def test_similarities_of_whole_maps_are_saved_and_read_back(tmp_path, whole, inside):
    model = nn.Sequential(deepcopy(whole), nn.Conv2d(2, 2, 1)) if inside else deepcopy(whole)
    backbone, x = deepcopy(model), torch.randn(1, 2, 3, 3)
    for parameter in ns.freeze_backbone(model, train=()).parameters():
        parameter.data += 0.1 * parameter.requires_grad
    loaded = ns.load_adapter(backbone, ns.save_adapter(model, tmp_path / "a"))
    assert torch.equal(loaded(x), model(x))
