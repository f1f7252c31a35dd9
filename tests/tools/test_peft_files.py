"""PEFT's adapters to and from files of `ns.save_adapter`: all of what was learned, or an error."""

from collections import OrderedDict
from copy import deepcopy

import pytest
import torch
from moved import compiled, moved, trained_away
from safetensors import safe_open
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import neural_similarity as ns

peft = pytest.importorskip("peft")


class Block(nn.Module):
    """A converted layer in a module with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.gamma = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        return x + self.gamma * self.conv(x)


class Ends(nn.Module):
    """A name that is the end of another."""

    def __init__(self):
        super().__init__()
        self.conv, self.downconv = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)

    def forward(self, x):
        return self.downconv(self.conv(x))


def classifier(classes):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).append(
        nn.Linear(4, classes)
    )


def saved(network, path, train=(), where=None):
    """A converted network that has learned, and the file of it."""
    similar = ns.freeze_backbone(moved(ns.convert(network, "static-full", where), 0.2), train=train)
    return similar.eval(), ns.save_adapter(similar, path / "saved")


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8)


def pair():
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), Block())


@pytest.mark.parametrize(
    ("network", "backbone", "train", "where", "message"),
    [
        (pair, pair, "1.gamma", None, r"PEFT gives no M to \['1.conv'\]"),
        (Ends, Ends, "conv", "downconv", r"PEFT takes \['downconv'\]"),
        (lambda: classifier(7), lambda: classifier(5), "3", None, "shapes of the backbone's"),
    ],
)
def test_what_peft_cannot_hold_is_refused_and_the_backbone_stays(
    network, backbone, train, where, message, tmp_path
):
    torch.manual_seed(0)
    _, file = saved(network(), tmp_path, train, where)
    torch.manual_seed(0)
    plain = backbone()
    modules, kinds = list(plain.modules()), [type(part) for part in plain.modules()]
    with pytest.raises(ValueError, match=message) as raised:
        ns.peft.import_adapter(plain, file)
    assert str(file) in str(raised.value)
    assert list(plain.modules()) == modules
    assert [type(part) for part in plain.modules()] == kinds
    assert all(parameter.requires_grad for parameter in plain.parameters())


def test_a_module_with_modules_and_parameters_of_its_own_is_loaded_whole(x, tmp_path):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(self.scale * x)

    network = classifier(4)
    network[3] = Head()
    similar = trained_away(ns.freeze_backbone(ns.convert(network, "static-full"), train="3"))
    file = ns.save_adapter(similar, tmp_path / "a")
    model = ns.peft.import_adapter(network, file)
    assert torch.equal(model(x), similar(x))


def inside(wrap=nn.Sequential, wrap_layer=lambda layer: layer):
    """A network that has its layers in a module that is wrapped, and a head outside."""
    torch.manual_seed(3)
    body = {"conv": nn.Conv2d(3, 3, 3), "norm": nn.BatchNorm2d(3)}
    body["last"] = wrap_layer(nn.Conv2d(3, 4, 2))
    parts = {"body": wrap(nn.Sequential(OrderedDict(body))), "pool": nn.AdaptiveAvgPool2d(1)}
    parts |= {"flat": nn.Flatten(), "head": nn.Linear(4, 2)}
    return nn.Sequential(OrderedDict(parts)).eval()


PLACES = {
    "plain": inside,
    "checkpointed": lambda: inside(lambda body: nn.Sequential(checkpoint_wrapper(body))),
    "checkpointed layer": lambda: inside(wrap_layer=checkpoint_wrapper),
    "compiled": lambda: compiled(inside()),
    "part": lambda: inside(lambda body: nn.Sequential(compiled(body))),
    "both": lambda: compiled(inside(lambda body: checkpoint_wrapper(nn.Sequential(body)))),
}


@pytest.mark.parametrize("bias", ["none", "all", "nsl_only"])
@pytest.mark.parametrize("saved", PLACES)
def test_files_do_not_know_what_is_compiled_or_checkpointed(saved, bias, x, tmp_path):
    with torch.compiler.set_stance("force_eager"):
        kind = {"modules_to_save": ["norm", "head"], "bias": bias}
        model = trained_away(peft.get_peft_model(PLACES[saved](), ns.peft.NslConfig(**kind)))
        y = model(x)
        model.save_pretrained(str(tmp_path))
        file = ns.peft.export_adapter(model, tmp_path / "a")
        for place, make in PLACES.items():
            again = (
                peft.PeftModel.from_pretrained(make(), str(tmp_path)),
                ns.load_adapter(make(), file),
            )
            assert all(torch.equal(each.eval()(x), y) for each in again), place
        last = {"target_modules": ["last"], "init_weights": False}
        model.add_adapter("other", ns.peft.NslConfig(**last))
        model.set_adapter("other")
        layers = [part for part in model.modules() if isinstance(part, ns.peft.NslLayer)]
        assert ["other" in part.nsl_similarity for part in layers] == [False, True]
        if bias == "none":  # PEFT has no place for the biases of converted layers.
            y, file = model(x), ns.peft.export_adapter(model, tmp_path / "b")
            for place, make in PLACES.items():
                assert torch.equal(ns.peft.import_adapter(make(), file).eval()(x), y), place
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert not any("_orig_mod" in key or "_checkpoint" in key for key in file.keys())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["0.nsl_similarity.default.raw", "3.modules_to_save.default.bias"])
def test_numbers_that_are_not_finite_are_refused_at_load(key, value, tmp_path):
    model = peft.get_peft_model(classifier(3), ns.peft.NslConfig(modules_to_save=["3"]))
    nn.init.constant_(model.base_model.model.get_parameter(key), value)
    model.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match=rf"\.{key[0]}\..* of adapter 'bad' must hold finite"):
        peft.PeftModel.from_pretrained(classifier(3), str(tmp_path), "bad")
    other = peft.get_peft_model(classifier(3), ns.peft.NslConfig(modules_to_save=["3"]))
    with pytest.raises(ValueError, match="adapter 'bad'"):
        other.load_adapter(str(tmp_path), "bad")


def test_what_cannot_be_exported_is_told(tmp_path):
    network = classifier(3)
    for other in (
        ns.convert(network, "static-full"),
        peft.get_peft_model(deepcopy(network), peft.LoraConfig(target_modules=["3"])),
    ):
        with pytest.raises(ValueError, match="`model` must be a network of PEFT's with NslConfig"):
            ns.peft.export_adapter(other, tmp_path / "a")
    model = peft.get_peft_model(network.bfloat16(), ns.peft.NslConfig())
    model = moved(model, 0.2)
    with pytest.raises(ValueError, match=r"round M first, as by `.to\(torch.bfloat16\)`"):
        ns.peft.export_adapter(model, tmp_path / "a")
    ns.peft.export_adapter(model.to(torch.bfloat16), tmp_path / "a")
