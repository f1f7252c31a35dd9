"""What trains on a frozen backbone, and one that moved all the same: no adapter fits it."""

import pickle
from collections import OrderedDict
from copy import deepcopy

import pytest
import torch
from refusals import refusals
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import neural_similarity as ns


class Averaging(nn.Module):
    """A layer that keeps a moving average of what it saw."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 2, 3))
        return x - self.mean[:, None, None]


def network():
    layers = {
        "conv1": nn.Conv2d(3, 4, 3),
        "bn": nn.BatchNorm2d(4),
        "mean": Averaging(),
        "conv2": nn.Conv2d(4, 4, 3),
        "flat": nn.Flatten(),
        "fc": nn.Linear(4 * 4 * 4, 5),
    }
    return nn.Sequential(OrderedDict(layers)).eval()


@pytest.fixture
def backbone():
    return network()


@pytest.fixture
def x():
    return torch.randn(6, 3, 8, 8)


@pytest.fixture
def frozen(backbone):
    return ns.freeze_backbone(ns.convert(backbone, "static-full"), train="fc")


def train_steps(model, x, parameters, **options):
    optimizer = torch.optim.SGD(parameters, lr=0.5, **options)
    model(x).square().mean().backward()
    optimizer.step()


def thaw_and_train(model, x):
    model.conv1.requires_grad_(True)
    train_steps(model, x, model.conv1.parameters())
    model.conv1.requires_grad_(False)


def decay(model, _x):
    for parameter in model.bn.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1).step()


def step_stale_gradients(model, _x):
    model.conv1.bias.grad = torch.ones(4)
    torch.optim.Adam(model.parameters()).step()


MOVES = {
    "a buffer that training updates": (lambda model, x: model.train()(x), "mean.mean. ns"),
    "toggled on and trained": (thaw_and_train, "conv1.weight, conv1.bias"),
    "weight decay": (decay, "bn.weight"),
    "stale gradients": (step_stale_gradients, "conv1.bias"),
}
AROUND = {
    "itself": lambda model: model,
    "copied": deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "averaged": AveragedModel,
    "its weights loaded": lambda m: m.load_state_dict(deepcopy(m.state_dict())) and m,
    "of another memory format": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("move", MOVES)
def test_a_frozen_tensor_that_moved_is_named(frozen, x, tmp_path, move, around):
    change, names = MOVES[move]
    model = AROUND[around](frozen)
    ns.save_adapter(model, tmp_path / "before")
    inner = model.module if around == "averaged" else model
    change(inner, x)
    with pytest.raises(ValueError, match=rf"not as ns.freeze_backbone saw them: {names}.*again"):
        ns.save_adapter(model, tmp_path / "a")
    assert [file.name for file in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize("move", MOVES)
def test_what_moved_is_saved_as_extra_or_is_the_backbone_of_a_new_freeze(
    backbone, frozen, x, tmp_path, move, caplog
):
    MOVES[move][0](frozen, x)
    file = ns.save_adapter(frozen, tmp_path / "extra", extra=["conv*", "bn", "mean"])
    assert ns.max_difference(ns.load_adapter(backbone, file), frozen.eval(), x) == 0
    ns.freeze_backbone(frozen, train="fc")
    assert "changed" in caplog.text
    ns.save_adapter(frozen, tmp_path / "a")


@pytest.mark.parametrize("train", [(), "0"], ids=["frozen", "trained"])
@pytest.mark.parametrize("norm", ["eval", "train"])
@pytest.mark.parametrize("of", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_spectral_norm_trains_with_its_kernel_alone(x, tmp_path, of, norm, train):
    layers = of(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    backbone = nn.Sequential(*layers)
    backbone(x)
    model = ns.freeze_backbone(ns.convert(backbone, "static-full"), norm, train)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for _ in range(3):
        train_steps(model.train(), x, [p for p in model.parameters() if p.requires_grad])
    vectors = [key for key in before if key.endswith(("_u", "_v"))]
    moved = {key for key in vectors if not torch.equal(model.state_dict()[key], before[key])}
    assert len(vectors) == 2
    assert moved == (set(vectors) if train else set())
    file = ns.save_adapter(model, tmp_path / "a")
    assert ns.max_difference(ns.load_adapter(backbone, file), model, x) == 0


CASTS = {
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "channels last": lambda model: model.to(memory_format=torch.channels_last),
    "device": lambda model: model.to("cpu"),
    "in part": lambda model: model.conv1.double() and model,
}


@pytest.mark.parametrize("cast", CASTS)
def test_a_frozen_network_may_be_cast(backbone, frozen, tmp_path, cast):
    change = CASTS[cast]
    file = ns.save_adapter(change(frozen), tmp_path / "a")
    loaded = ns.load_adapter(change(deepcopy(backbone)), file)
    state = frozen.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in loaded.state_dict().items())
    assert all(state[key].dtype == tensor.dtype for key, tensor in load_file(file).items())


def test_a_cast_with_which_digits_are_lost_is_a_move(frozen, tmp_path):
    with pytest.raises(ValueError, match=r"not as ns.freeze_backbone saw them: conv1.weight"):
        ns.save_adapter(frozen.half().float(), tmp_path / "a")


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("meta", [True, False])
def test_weights_loaded_after_the_freeze_are_the_backbone(x, tmp_path, meta, assign):
    """Runs are resumed in this way: the network is built, frozen, then loaded."""
    state, backbone = None, network()
    trained = ns.freeze_backbone(ns.convert(backbone, "static-full"), train="fc")
    train_steps(trained.eval(), x, trained.fc.parameters())
    state = trained.state_dict()
    with torch.device("meta" if meta else "cpu"):
        model = ns.freeze_backbone(ns.convert(deepcopy(network()), "static-full"), train="fc")
    if meta and not assign:
        model.to_empty(device="cpu")
    nn.Sequential(model).load_state_dict({f"0.{k}": t for k, t in state.items()}, assign=assign)
    file = ns.save_adapter(model, tmp_path / "a")
    assert ns.max_difference(ns.load_adapter(backbone, file), trained, x) == 0
    model.bn.bias.data.add_(1)
    with pytest.raises(ValueError, match=r"saw them: bn.bias"):
        ns.save_adapter(model, tmp_path / "a")


def traces(model):
    """The attributes of every module, and how many hooks it has."""
    return {
        name: {key: len(value) if "hooks" in key else None for key, value in vars(module).items()}
        for name, module in model.named_modules()
    }


def test_no_trace_of_a_freeze_is_left(backbone, frozen):
    plain, first = traces(backbone), traces(frozen)
    assert first != plain
    assert traces(ns.freeze_backbone(frozen, train="fc")) == first
    for made in (ns.fold(frozen), ns.unconvert(frozen), ns.unconvert(ns.unfreeze_backbone(frozen))):
        assert traces(made) == plain
    learned = {"conv1.similarity.raw", "conv2.similarity.raw"}
    assert frozen.state_dict().keys() - backbone.state_dict().keys() == learned
    layer = nn.Sequential(nn.Conv2d(3, 3, 3))[0]
    assert traces(ns.fold(ns.convert(layer, "static-full"))) == traces(layer)


@pytest.fixture
def nested():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    layers = {"body": body, "flat": nn.Flatten(), "fc": nn.Linear(4 * 4 * 4, 5)}
    return ns.convert(nn.Sequential(OrderedDict(layers)), "static-diagonal")


WEIGHTS = {f"{i}.{n}" for i in ("fc", "body.0", "body.1", "body.3") for n in ("weight", "bias")}
M = {"body.0.similarity.raw", "body.3.similarity.raw"}


@pytest.mark.parametrize(
    ("train", "extra"),
    [
        (None, set()),
        ((), set()),
        ("fc", {"fc.weight", "fc.bias"}),
        ("fc.bias", {"fc.bias"}),
        (["fc", "body.1"], {"fc.weight", "fc.bias", "body.1.weight", "body.1.bias"}),
        ("*.bias", {"body.0.bias", "body.1.bias", "body.3.bias", "fc.bias"}),
        ("body.[13]", {f"body.{i}.{name}" for i in (1, 3) for name in ("weight", "bias")}),
        ("*", WEIGHTS),
        ("M", set()),
        ("head", {"fc.weight", "fc.bias"}),
        ("M+head+norm", {"fc.weight", "fc.bias", "body.1.weight", "body.1.bias"}),
        ("bias", {f"{i}.bias" for i in ("fc", "body.0", "body.1", "body.3")}),
        ("M+all", WEIGHTS),
    ],
)
def test_similarities_and_what_is_named_train(nested, train, extra, caplog):
    with caplog.at_level("INFO"):
        frozen = ns.freeze_backbone(nested, train=train)
    assert frozen is nested
    trained = {name for name, p in nested.named_parameters() if p.requires_grad}
    assert trained == M | extra
    numbers = sum(p.numel() for name, p in nested.named_parameters() if name in trained)
    told = [(f"{numbers} of {112 + 8 + 148 + 325 + 18} parameters train", "INFO")]
    head = [("'fc' is frozen, too; train='fc' trains it", "WARNING")] if train is None else []
    assert [(r.message, r.levelname) for r in caplog.records] == told + head


@pytest.mark.parametrize(
    "nothing", ["M+hed", "M+lora", "M+", "fc.weights", "*.gamma", "flat", ["fc", "b"], 3]
)
def test_names_of_nothing_are_refused(nested, nothing):
    with pytest.raises(ValueError, match="`train` must"):
        ns.freeze_backbone(nested, train=nothing)
    with pytest.raises(ValueError, match="got Linear"):
        ns.freeze_backbone(nested, train=nn.Linear(2, 2))
    assert all(p.requires_grad for p in nested.parameters())


def test_a_word_that_is_a_name_in_the_network_is_that_name():
    network = nn.Sequential(OrderedDict({name: nn.LayerNorm(4) for name in ("one", "norm")}))
    for train, expected in (("norm", {"norm"}), ("norm+head", {"one", "norm"})):
        ns.freeze_backbone(network, train=train)
        trained = {n.partition(".")[0] for n, p in network.named_parameters() if p.requires_grad}
        assert trained == expected


test_words_without_what_they_name_are_refused = refusals(
    ("M+head", "`model` must have"),
    ("norm", "got 'norm' for a network without gains"),
    ("bias", "got 'bias' for a network without biases"),
    call=lambda train: ns.freeze_backbone(nn.Sequential(nn.Linear(2, 2, bias=False)), train=train),
)


@pytest.mark.parametrize(
    ("train", "extra"),
    [("head", {"weight", "bias"}), ("bias", {"bias"}), ("all", {"weight", "bias"})],
)
def test_words_name_parts_of_a_network_of_one_layer(train, extra):
    layer = ns.freeze_backbone(ns.Conv2d(2, 2, 3, similarity="static-full"), train=f"M+{train}")
    trained = {name for name, p in layer.named_parameters() if p.requires_grad}
    assert trained == {"similarity.raw"} | extra
