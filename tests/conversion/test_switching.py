"""A switch of adapters happens as a whole or not at all, wherever it fails."""

import inspect
import linecache
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from threading import Event

import pytest
import torch
from moved import Clamped, learned
from torch import nn
from torch.nn.utils import prune

import neural_similarity as ns
from neural_similarity.conversion import Adapters


@pytest.fixture
def backbone():
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)]
    backbone = nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * 3 * 3, 5)).eval()
    backbone[0].register_forward_hook(lambda *_: None)
    return backbone


@pytest.fixture
def x():
    return torch.randn(2, 3, 9, 9)


def with_head(backbone, similarity, where=None):
    model = learned(ns.convert(backbone, similarity, where))
    nn.init.normal_(model[5].weight)
    return model


NORMED = ns.Dynamic(ns.Diagonal(), ns.SphereNet(hidden=6, batch_norm=True))
ADAPTERS = {
    "full": ("static-full", None),
    "head": ("static-diagonal", ["2", "3", "5"]),
    "predicted": (NORMED, ["0", "3"]),
}


@pytest.fixture
def switch(backbone, tmp_path):
    switch = ns.adapters(backbone)
    for name, (similarity, where) in ADAPTERS.items():
        model = with_head(backbone, similarity, where)
        switch.add(name, ns.save_adapter(model, tmp_path / name, extra="5"))
    return switch


def everything(model):
    """Of every module: class, attributes, the items of dicts, and the bytes of tensors."""
    return {
        name: (type(module), {key: items(value) for key, value in vars(module).items()})
        for name, module in model.named_modules()
    }


def items(value):
    if isinstance(value, dict):
        return id(value), {key: items(inner) for key, inner in value.items()}
    if isinstance(value, torch.Tensor):
        return id(value), value.detach().numpy().tobytes()
    return id(value)


STATES = [(None, False), ("full", False), ("head", True), ("predicted", False)]


@pytest.mark.parametrize(
    "normed",
    [
        lambda conv: torch.nn.utils.parametrizations.weight_norm(conv),
        lambda conv: torch.nn.utils.parametrizations.spectral_norm(conv),
        lambda conv: torch.nn.utils.weight_norm(conv),
        lambda _: pytest.importorskip("timm.layers").ScaledStdConv2d(3, 4, 3),
        lambda _: Clamped(3, 4, 3),
        lambda conv: prune.l1_unstructured(conv, "weight", 3),
    ],
    ids=["weight_norm", "spectral_norm", "hook of weight_norm", "timm", "written", "pruned"],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_a_kernel_that_is_computed_is_not_merged_into(tmp_path, normed):
    backbone = nn.Sequential(normed(nn.Conv2d(3, 4, 3))).eval()
    model = ns.convert(backbone, "static-full")
    nn.init.normal_(model[0].similarity.raw)
    file = ns.save_adapter(ns.freeze_backbone(model, train=()), tmp_path / "a")
    switch, x = ns.adapters(backbone, a=file), torch.randn(2, 3, 5, 5)
    y, before = backbone(x), everything(backbone)
    with pytest.raises(ValueError, match="layer '0' computes its kernel"):
        switch.use("a", merged=True)
    assert everything(backbone) == before
    assert torch.equal(backbone(x), y)
    assert torch.allclose(switch.use("a").backbone(x), model(x), atol=1e-6)
    assert torch.equal(switch.use(None).backbone(x), y)


@pytest.mark.parametrize("copied", [deepcopy, lambda switch: pickle.loads(pickle.dumps(switch))])
def test_copies_switch_alone(switch, x, copied):
    backbone = switch.backbone
    backbone[0]._forward_hooks.clear()
    y, adapted = switch.use(None).backbone(x), switch.use("full").backbone(x)
    other = copied(switch)
    assert torch.equal(other.backbone(x), adapted)
    assert torch.equal(other.use(None).backbone(x), y)
    assert torch.equal(backbone(x), adapted)
    with other.hold("full", merged=True) as merged:
        assert torch.allclose(merged(x), adapted, atol=1e-5)


class Interrupted(BaseException):
    """No error that code would handle."""


class Interruption:
    """Raises at the n-th line that runs in the functions that switch."""

    FILES = inspect.getfile(Adapters), inspect.getfile(ns.nn.SimilarityLayer)

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in self.FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # At its own line `with` ends its block: what comes then is no part of the switch.
        outside = frame.f_code.co_name == "use" and not line.startswith(" " * 16)
        if event == "line" and not outside:
            self.left -= 1
            if self.left == 0:
                raise Interrupted(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self


def is_interrupted(call, at):
    """Whether a call is interrupted at its n-th line, or has fewer."""
    before = sys.gettrace()
    sys.settrace(Interruption(at))
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize(("active", "merged"), STATES)
@pytest.mark.parametrize(("name", "fold"), [("full", True), ("head", False), (None, False)])
def test_an_interruption_at_any_line_leaves_all_as_it_was(switch, active, merged, name, fold):
    switch.use(name, fold).use(active, merged)
    before = everything(switch.backbone), switch.active, switch.merged, switch._replaced
    at, failed = 0, True
    while failed:
        at += 1
        failed = is_interrupted(lambda: switch.use(name, fold), at)
        now = everything(switch.backbone), switch.active, switch.merged, switch._replaced
        assert not failed or now == before
    assert at > 10
    assert (switch.active, switch.merged) == (name, fold)


@pytest.mark.parametrize(("name", "merged"), STATES)
@pytest.mark.parametrize("training", [(), (0,), (3,), (0, 3), (0, 1, 2, 3, 4, 5)])
def test_a_similarity_is_in_the_mode_of_its_layer(switch, name, merged, training):
    backbone = switch.backbone.eval()
    for index in training:
        backbone[index].train()
    modes = {part: part.training for part in backbone.modules()}
    switch.use(name, merged)
    assert all(part.training == mode for part, mode in modes.items())
    for layer in backbone:
        if getattr(layer, "similarity", None) is not None:
            assert {part.training for part in layer.similarity.modules()} == {layer.training}
    switch.use(None)
    assert {part: part.training for part in backbone.modules()} == modes


def test_a_kernel_that_trained_with_its_similarity_is_merged(switch, x):
    """The layer that "head" has both a kernel and an M for."""
    y = switch.use("head").backbone(x)
    assert (switch.use("head", merged=True).backbone(x) - y).abs().max() < 1e-5
    assert (switch.use(None).backbone(x) - y).abs().max() > 1e-2


def test_without_an_adapter_nothing_of_it_is_left(switch):
    plain = everything(switch.use(None).backbone)
    for name, merged in STATES:
        switch.use(name, merged).use(None)
        assert everything(switch.backbone) == plain


def test_what_is_written_to_a_merged_kernel_is_not_lost(switch):
    """Refused by name, with everything left as it is, until the kernel is put back."""
    kernel = switch.use("full", merged=True).backbone[2].weight
    merged = kernel.detach().clone()
    with torch.no_grad():
        kernel[0, 0, 0, 0] += 1
    before = everything(switch.backbone)
    with pytest.raises(ValueError, match=r"`2.weight` must stay as it is while 'full' is merged"):
        switch.use(None)
    assert everything(switch.backbone) == before
    assert (switch.active, switch.merged) == ("full", True)
    with torch.no_grad():
        kernel.copy_(merged)
    assert switch.use(None).active is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("name", "merged"), STATES)
def test_a_switch_follows_the_type_of_its_network(switch, x, name, merged, dtype):
    """Whatever was on while the network was cast, it computes what a cast of the other would."""
    alone = deepcopy(switch.use(None).backbone).to(dtype)
    expected = {None: alone.state_dict()}
    for other in ADAPTERS:
        expected[other] = deepcopy(switch.use(other).backbone).to(dtype).state_dict()
    backbone = switch.use(name, merged).backbone.to(dtype)
    for other, state in expected.items():
        found = switch.use(other).backbone.state_dict()
        assert found.keys() == state.keys()
        for key, tensor in found.items():
            assert tensor.dtype == state[key].dtype, key
            assert torch.equal(tensor, state[key]), key
        assert backbone(x.to(dtype)).dtype == dtype


@pytest.mark.parametrize("inplace", [True, False])
def test_a_conversion_that_fails_changes_nothing(backbone, monkeypatch, inplace):
    """In the third of three layers, after two were equipped."""
    before, calls = everything(backbone), []
    build = ns.Static.build

    def failing(spec, geometry):
        calls.append(geometry)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return build(spec, geometry)

    monkeypatch.setattr(ns.Static, "build", failing)
    with pytest.raises(ValueError, match="layer '3': no memory"):
        ns.convert(backbone, "static-full", inplace=inplace)
    assert everything(backbone) == before


def test_what_is_unconverted_in_place_is_so_whole_or_not(backbone):
    model = ns.convert(deepcopy(backbone), "static-full")
    model[2].forward = lambda x: x
    before = everything(model)
    with pytest.raises(ValueError, match=r"layer '2': .* its class's own `forward`"):
        ns.unconvert(model, inplace=True)
    assert everything(model) == before


def test_an_adapter_that_cannot_replace_the_active_one_changes_nothing(tmp_path):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    files = {}
    for name in ("static-full", "dynamic-diagonal"):
        files[name] = ns.save_adapter(ns.convert(plain, name), tmp_path / name)
    switch = ns.adapters(plain, a=files["static-full"]).use("a", merged=True)
    before = plain[0].weight
    with pytest.raises(ValueError, match="`merged` must be False"):
        switch.add("a", files["dynamic-diagonal"])
    assert (switch.active, switch.merged) == ("a", True)
    assert torch.equal(plain[0].weight, before)


def test_heads_of_other_sizes_switch_with_their_adapters(backbone, switch, x, tmp_path):
    head, y = backbone[5], backbone(x)
    other = deepcopy(backbone)
    other[5] = nn.Linear(4 * 3 * 3, 7)
    model = with_head(other, "static-full")
    switch.add("seven", ns.save_adapter(model, tmp_path / "seven", extra="5"))
    assert torch.equal(switch.use("seven").backbone(x), model(x))
    assert head.out_features == 7
    again = ns.save_adapter(switch.backbone, tmp_path / "again")
    assert torch.equal(ns.load_adapter(other, again)(x), model(x))
    assert switch.use("full").backbone(x).shape == y.shape
    switch.use("seven", merged=True)
    assert torch.equal(switch.use(None).backbone(x), y)
    assert (backbone[5], head.out_features) == (head, 5)


def test_an_adapter_that_is_held_is_not_switched_by_other_threads(switch, x):
    full, plain = switch.use("full").backbone(x), switch.use(None).backbone(x)
    started = Event()

    def other():
        started.set()
        with switch.hold(None) as model:
            return model(x)

    with ThreadPoolExecutor(1) as pool:
        with switch.hold("full") as model:
            answer = pool.submit(other)
            started.wait()
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.05)
            assert torch.equal(model(x), full)
        assert torch.equal(answer.result(), plain)
    assert switch.active is None


def test_the_table_has_the_size_of_every_adapter(switch):
    rows = str(switch.use("full")).splitlines()
    assert rows[0].split() == ["adapter", "layers", "scalars", "kB"]
    assert rows[1].split() == ["full", "3", f"{3 * 81 + 36 * 5 + 5}", "1.7"]
    assert rows[-1] == "'full' is active"
    assert "<td>full</td><td>3</td>" in switch._repr_html_()
    plan = ns.plan(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)), "static-full")
    assert "<tr><td>0</td><td>Conv2d</td><td>81</td><td></td></tr>" in plan._repr_html_()
    assert "<p>1 of 2 layers are converted, 81 scalars</p>" in plan._repr_html_()
