"""Adapters: files that give back the same network to the last bit, and switching between them."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from moved import learned
from safetensors import safe_open
from torch import nn
from torch.nn.utils import prune

import neural_similarity as ns

SHARED = ns.Dynamic(ns.Full(), ns.Shared(channels=4, hidden=5, batch_norm=True))
SPECS = {
    **{name: name for name in ("static-diagonal", "static-full", "dynamic-diagonal")},
    "blocks": ns.Static(ns.Unshared(ns.Full(), channels=2)),
    "batch norm": ns.Dynamic(ns.Diagonal(), ns.SphereNet(hidden=6, batch_norm=True)),
    "shared": SHARED,
    "tied": ns.Static(ns.Affine(tied=True)),
}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, stride=2)
        self.again = self.conv2
        self.fc = nn.Linear(6, 5)
        self.lstm = nn.LSTM(5, 4, num_layers=2)

    def forward(self, x):
        y = self.bn(self.conv1(x)).relu()
        return self.lstm(self.fc(self.conv2(y).mean(-1).transpose(1, 2)))[0]


@pytest.fixture
def backbone():
    return Network().eval()


@pytest.fixture
def x():
    return torch.randn(3, 4, 9, 8)


def adapted(backbone, name="static-full", where=None):
    return learned(ns.convert(backbone, SPECS[name], where)).eval()


@pytest.mark.parametrize("name", SPECS)
def test_what_is_loaded_is_what_was_saved_to_the_last_bit(backbone, x, tmp_path, name):
    where = None if name in ("tied", "shared", "blocks") else ["conv1", "conv2", "fc", "lstm"]
    model = adapted(backbone, name, where)
    file = ns.save_adapter(model, tmp_path / "folder" / "a.safetensors")
    before = deepcopy(backbone.state_dict())
    loaded = ns.load_adapter(backbone, str(file))
    assert ns.max_difference(loaded, model, x) == 0
    assert ns.max_difference(loaded, backbone, x) > 1e-3
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert loaded.again is loaded.conv2
    parameters = [sum(p.numel() for p in network.parameters()) for network in (loaded, model)]
    assert parameters[0] == parameters[1]  # What is shared is one parameter again.
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())
    assert repr(loaded) == repr(model)
    again = ns.save_adapter(loaded, tmp_path / "b.safetensors")
    assert again.read_bytes() == file.read_bytes()


def test_layers_that_share_nothing_stay_apart(backbone, x, tmp_path):
    """Two conversions, each with a shared predictor of its own for the same sizes."""
    once = ns.convert(backbone, SHARED, "conv1")
    model = learned(ns.convert(once, SHARED, "conv2")).eval()
    loaded = ns.load_adapter(backbone, ns.save_adapter(model, tmp_path / "a"))
    heads = [loaded.get_submodule(f"conv{i}.similarity.predictor.head.0").weight for i in (1, 2)]
    assert heads[0] is not heads[1]
    assert ns.max_difference(loaded, model, x) == 0


def test_heads_and_statistics_are_extra(backbone, x, tmp_path, caplog):
    caplog.set_level("INFO")
    model = adapted(backbone)
    nn.init.normal_(model.fc.weight)
    model.train()(x)
    file = ns.save_adapter(model.eval(), tmp_path / "a", extra=["fc", "*running*"])
    numbers = 81 * 2 + 6 * 5 + 5 + 2 * 6
    assert f"kB, {numbers} numbers" in caplog.text
    other_head = deepcopy(backbone)
    nn.init.normal_(other_head.fc.bias)
    assert ns.max_difference(ns.load_adapter(other_head, file), model, x) == 0
    other_head.fc = nn.Linear(6, 7)
    loaded = ns.load_adapter(other_head, file)
    assert loaded.fc.out_features == 5
    assert ns.max_difference(loaded, model, x) == 0
    other_head.fc = nn.Linear(7, 5)
    with pytest.raises(ValueError, match=r"fc.weight must be \(5, 6\) .* got \(5, 7\)"):
        ns.load_adapter(other_head, file)
    with pytest.raises(ValueError, match="`extra` must name parts"):
        ns.save_adapter(model, tmp_path / "b", extra="head")


def test_static_adapters_are_kilobytes(tmp_path, caplog):
    caplog.set_level("INFO")
    model = ns.convert(ns.models.resnet20(), "static-full")
    file = ns.save_adapter(model, tmp_path / "a")
    size = file.stat().st_size
    assert 19 * 81 * 4 < size < 12_000
    assert caplog.messages == [f"{file}: {size / 1000:.1f} kB, 1,539 numbers"]
    assert list(tmp_path.iterdir()) == [file]
    with safe_open(file, "pt") as content:
        facts = json.loads(content.metadata()["adapter"])
    assert facts["neural_similarity"] == ns.__version__
    (text,) = facts["similarities"]
    assert text == ns.nn.format_similarity(ns.Static(ns.Full()), complete=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda network: network.bn.running_var.add_(1), r"buffers differ; .* extra=.\*running\*"),
        (lambda net: setattr(net, "extra", nn.Linear(1, 1)), "other names, shapes or types"),
        (lambda network: network.fc.double(), "other names, shapes or types"),
        (lambda network: network.to("meta"), "some on the meta device"),
    ],
)
def test_another_backbone_is_refused(backbone, tmp_path, change, message):
    file = ns.save_adapter(adapted(backbone), tmp_path / "mine")
    change(backbone)
    with pytest.raises(ValueError, match=rf"mine is not an adapter of this network: .*{message}"):
        ns.load_adapter(backbone, file)


def test_what_is_no_file_of_an_adapter_is_refused(backbone, tmp_path):
    """`test_forged_adapters.py` has files that nearly are."""
    content = ns.save_adapter(adapted(backbone), tmp_path / "a").read_bytes()
    for forged in (b"", content[:7], content[:-1], content + b"\0", b"PK\x03\x04"):
        (tmp_path / "a").write_bytes(forged)
        with pytest.raises(ValueError, match="a is not an adapter"):
            ns.load_adapter(backbone, tmp_path / "a")
    with pytest.raises(ValueError, match="is not an adapter"):
        ns.load_adapter(backbone, tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        ns.load_adapter(backbone, tmp_path / "nothing")


UNKNOWN = {
    "parametrised": lambda conv: nn.utils.parametrize.register_parametrization(
        conv.similarity, "raw", nn.Identity()
    ),
    "pruned": lambda conv: prune.l1_unstructured(conv.similarity, "raw", 3),
    "a user's predictor": lambda conv: conv.with_similarity(
        ns.Dynamic(predictor=lambda *_: nn.Conv2d(4, 9, 3, padding=1))
    ),
    "a user's module": lambda conv: conv.with_similarity(nn.Identity()),
}


@pytest.mark.parametrize("change", UNKNOWN)
def test_what_cannot_be_built_again_is_not_saved(backbone, tmp_path, change):
    model = adapted(backbone)
    UNKNOWN[change](model.conv1)
    with pytest.raises(ValueError, match=r"layer 'conv1': `similarity` must .* to be stored"):
        ns.save_adapter(model, tmp_path / "a")
    for wrong, message in ((backbone, "have similarities to save"), ([], "be an nn.Module, got")):
        with pytest.raises(ValueError, match=f"`model` must {message}"):
            ns.save_adapter(wrong, tmp_path / "a")


@pytest.fixture
def files(backbone, tmp_path):
    """Three adapters, with the outputs that they should have."""
    models = {
        "full": adapted(backbone, "static-full", ["conv1", "fc"]),
        "tied": adapted(backbone, "tied"),
        "dynamic": adapted(backbone, "batch norm", "conv2"),
    }
    nn.init.normal_(models["full"].bn.weight)
    extras = {"full": "bn"}
    files = {n: ns.save_adapter(m, tmp_path / n, extras.get(n, ())) for n, m in models.items()}
    return models, files


def test_adapters_are_switched_and_the_backbone_is_what_it_was(backbone, x, files):
    models, paths = files
    plain = deepcopy(backbone)
    state = backbone.state_dict(keep_vars=True)
    switch = ns.adapters(backbone, **paths)
    assert switch.active is None
    order = ["full", None, "tied", "full", "dynamic", "dynamic", None]
    for name in order:
        switch.use(name)
        assert switch.active == name
        assert ns.max_difference(backbone, models.get(name, plain), x) == 0
        for merged in ("full", "tied"):
            switch.use(merged, merged=True)
            assert not [m for m in backbone.modules() if isinstance(m, ns.nn.SimilarityLayer)]
            assert ns.max_difference(backbone, models[merged], x) <= 1e-5
            assert ns.max_difference(backbone, plain, x) > 1e-3
        switch.use(name)
    after = backbone.state_dict(keep_vars=True)
    assert all(after[key] is tensor for key, tensor in state.items())
    assert after.keys() == state.keys()
    with pytest.raises(ValueError, match="`merged` must be False for 'dynamic'"):
        switch.use("tied").use("dynamic", merged=True)
    assert switch.active == "tied"
    with pytest.raises(ValueError, match="`name` must be one of full, tied, dynamic, got 'x'"):
        switch.use("x")


def test_an_adapter_that_trains_keeps_what_it_learned(backbone, x, files):
    models, paths = files
    switch = ns.adapters(backbone, full=paths["full"]).use("full")
    optimizer = torch.optim.SGD(ns.freeze_backbone(backbone, train="bn").parameters(), lr=1e3)
    backbone(x).square().mean().backward()
    optimizer.step()
    trained = backbone(x)
    assert (trained - models["full"](x)).abs().max() > 1e-4
    switch.use(None).add("tied", paths["tied"]).use("tied").add("dynamic", paths["dynamic"])
    assert switch.active == "tied"
    # torch.matmul rounds otherwise where a weight requires its gradient.
    assert ns.max_difference(backbone, models["tied"].requires_grad_(False), x) == 0
    assert torch.equal(switch.use("full").backbone(x), trained)


def test_networks_of_our_layers_are_backbones_too(tmp_path):
    backbone = ns.models.cnn9(10, width=0.1).eval()
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(ValueError, match="`backbone` must have no similarities"):
        ns.adapters(adapted(backbone))
    model = adapted(backbone)
    switch = ns.adapters(backbone, a=ns.save_adapter(model, Path(tmp_path, "a"))).use("a")
    assert ns.max_difference(backbone, model, x) == 0
    types = [type(module) for module in switch.use("a", merged=True).use(None).backbone.modules()]
    assert types == [type(module) for module in ns.models.cnn9(10, width=0.1).modules()]
    assert backbone[0][0].similarity is None
