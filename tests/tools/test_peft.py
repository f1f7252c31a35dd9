"""M as PEFT's tuner: it computes what `ns.convert` does, and PEFT's methods keep their meaning."""

import re
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from moved import Clamped, moved, train_steps, trained_away
from tools.test_trainers import resnet_of_transformers, train_by_transformers
from torch import nn

import neural_similarity as ns

peft = pytest.importorskip("peft")

STATIC = {
    "static-diagonal": "static-diagonal",
    "static-full": "static-full",
    "symmetric": ns.Static(ns.Symmetric()),
    "semidefinite": ns.Static(ns.PositiveSemidefinite()),
    "unstructured": ns.Static(ns.Unstructured()),
    "channels": ns.Static(ns.Unshared(ns.Full(), channels=2)),
    "masked": ns.Static(ns.Masked(ns.Full())),
    "affine, tied": ns.Static(ns.Affine(tied=True)),
    "sparse": ns.Static(ns.Sparse(ns.Full())),
}
DYNAMIC = {
    "dynamic-full": "dynamic-full",
    "batch norm": ns.Dynamic(ns.Diagonal(), ns.SphereNet(hidden=6, batch_norm=True)),
    "shared": ns.Dynamic(ns.Full(), ns.Shared(channels=4, hidden=5, batch_norm=True)),
}
LINEAR = ["static-diagonal", "static-full", "symmetric", "unstructured", "channels"]
EVERY = pytest.mark.parametrize("similarity", [*STATIC.values(), *DYNAMIC.values()])
EVERY_STATIC = pytest.mark.parametrize("similarity", STATIC.values())


@pytest.fixture
def backbone():
    parts = [nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1)]
    more = [nn.Conv2d(6, 6, (3, 2), stride=2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, *more, nn.Linear(6, 5)).eval()


@pytest.fixture
def x():
    return torch.randn(3, 4, 9, 8)


def config(similarity="static-full", **options):
    return ns.peft.NslConfig(similarity=similarity, **options)


def wrapped(backbone, similarity="static-full", **options):
    return peft.get_peft_model(deepcopy(backbone), config(similarity, **options)).eval()


@EVERY
def test_it_starts_as_the_backbone_and_trains_m_alone(backbone, x, similarity):
    y, model = backbone(x), wrapped(backbone, similarity)
    tolerance = 1e-6 if similarity in DYNAMIC.values() else 0
    assert (model(x) - y).abs().max() <= tolerance
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    after = train_steps(model, x).state_dict()
    changed = {key for key, tensor in after.items() if not torch.equal(tensor, before[key])}
    assert changed
    assert all(".nsl_similarity.default." in key for key in changed)
    assert (model(x) - y).abs().max() > 1e-4
    with model.disable_adapter():
        assert torch.equal(model(x), y)


@EVERY
def test_it_computes_what_a_converted_network_does_and_files_go_both_ways(
    backbone, x, similarity, tmp_path
):
    similar = moved(ns.convert(backbone, similarity), std=0.2).eval()
    nn.init.normal_(similar[7].bias)
    file = ns.save_adapter(ns.freeze_backbone(similar, train="7"), tmp_path / "a")
    model = ns.peft.import_adapter(deepcopy(backbone), file).eval()
    y = similar(x)
    assert torch.equal(model(x), y)
    model.save_pretrained(str(tmp_path / "folder"))
    for options in ({"low_cpu_mem_usage": True}, {}):
        again = peft.PeftModel.from_pretrained(
            deepcopy(backbone), str(tmp_path / "folder"), **options
        ).eval()
        assert torch.equal(again(x), y)
    out = ns.peft.export_adapter(again, tmp_path / "b")
    assert torch.equal(ns.load_adapter(backbone, out)(x), y)
    assert ns.save_adapter(ns.load_adapter(backbone, file), tmp_path / "c").read_bytes() == (
        out.read_bytes()
    )


def test_the_card_says_how_to_load(backbone, x, tmp_path):
    model = trained_away(wrapped(backbone, "static-full"))
    model.add_adapter("other", ns.peft.NslConfig(target_modules=["0"]))
    for _ in range(2):
        model.save_pretrained(str(tmp_path))
    card = (tmp_path / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(import neural.*?)```", card, re.DOTALL)
    assert not (tmp_path / "other" / "README.md").exists()
    names = {"backbone": deepcopy(backbone)}
    exec(code.replace("OWNER/NAME", str(tmp_path)), names)
    assert torch.equal(names["model"].eval()(x), model.eval()(x))


@EVERY_STATIC
def test_merging_keeps_the_function_and_unmerging_is_exact(backbone, x, similarity):
    model = trained_away(wrapped(backbone, similarity))
    y, kernel = model(x), backbone[0].weight
    layer = model.base_model.model[0]
    m = layer.nsl_similarity["default"].full_matrix()
    model.merge_adapter(safe_merge=True)
    if m.shape == (9, 9):
        expected = torch.einsum("ocp,pq->ocq", kernel.flatten(2), m).view_as(kernel)
        assert torch.allclose(layer.weight, expected, atol=1e-6)
    assert torch.equal(model(x), y)
    model.unmerge_adapter()
    assert torch.equal(layer.weight, kernel)
    assert torch.equal(model(x), y)
    merged = model.merge_and_unload(safe_merge=True)
    assert type(merged[0]) is nn.Conv2d
    assert torch.equal(merged(x), y)
    assert not any(part._forward_hooks for part in merged.modules())


@EVERY_STATIC
def test_adapters_switch_and_active_together_add_their_changes(backbone, x, similarity):
    model = trained_away(wrapped(backbone, similarity))
    one = model(x)
    model.add_adapter("other", config(similarity))
    model.set_adapter("other")
    assert torch.equal(model(x), backbone(x))
    other = trained_away(model)(x)
    layer = model.base_model.model[0]
    kernels = [part.fold(backbone[0].weight) for part in layer.nsl_similarity.values()]
    model.set_adapter("default")
    assert torch.equal(model(x), one)
    model.base_model.set_adapter(["default", "other"])
    both = model(x)
    model.base_model.merge_adapter(["other"])
    assert torch.equal(model(x), other)
    with pytest.warns(UserWarning, match="additionally merging"):
        model.base_model.merge_adapter(["default"])
    expected = kernels[0] + kernels[1] - backbone[0].weight
    assert torch.allclose(layer.weight, expected, atol=1e-6)
    assert torch.allclose(model(x), both, atol=1e-5)
    model.unmerge_adapter()
    model.delete_adapter("other")
    model.set_adapter("default")
    assert torch.equal(model(x), one)


def test_a_weighted_adapter_is_the_sum_of_the_changes(backbone):
    for name in LINEAR:
        model = trained_away(wrapped(backbone, STATIC[name]))
        model.add_adapter("other", config(STATIC[name], target_modules=["0"]))
        model.set_adapter("other")
        trained_away(model)
        model.add_weighted_adapter(["default", "other"], [2.0, -0.5], "sum")
        similarities = model.base_model.model[0].nsl_similarity
        one, other, total = (part.full_matrix() for part in similarities.values())
        unit = torch.eye(one.shape[-1])
        assert torch.allclose(total - unit, 2 * (one - unit) - (other - unit) / 2, atol=1e-6)
        last = model.base_model.model[4].nsl_similarity
        assert list(last) == ["default", "sum"]
        assert torch.allclose(last["sum"].raw, 2 * last["default"].raw)


LAYERS = {
    "Conv1d": (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "Conv3d": (nn.Conv3d(4, 6, (3, 2, 1)), (2, 4, 4, 5, 3)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), (2, 4, 5, 4)),
    "Linear": (nn.Linear(4, 6), (2, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_that_a_similarity_fits(name):
    layer, shape = LAYERS[name]
    backbone, x = nn.Sequential(layer), torch.randn(shape)
    model = trained_away(wrapped(backbone, target_modules=["0"]))
    similar = ns.convert(backbone, "static-full", "0")
    similar[0].similarity = model.base_model.model[0].nsl_similarity["default"]
    assert torch.equal(model(x), similar(x))
    assert not torch.equal(model(x), backbone(x))
    if name != "ConvTranspose2d":
        wrapped(backbone, "dynamic-diagonal", target_modules=["0"])(x)
    else:
        size = [9, 8]
        expected = similar[0](x, size)
        assert torch.equal(model.base_model.model[0](x, output_size=size), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_half_precision(backbone, x, similarity, dtype):
    model = trained_away(wrapped(backbone[:3].to(dtype), similarity))
    similar = ns.convert(backbone[:3].to(dtype), similarity)
    part = model.base_model.model[0].nsl_similarity["default"]
    similar[0].similarity = part
    assert torch.equal(model(x.to(dtype)), similar(x.to(dtype)))
    if similarity == "static-full":
        assert part.raw.dtype == torch.float32
        y = model(x.to(dtype))
        assert torch.equal(model.merge_and_unload()(x.to(dtype)), y)


def test_modules_to_save_have_statistics_of_their_own(backbone, x, tmp_path):
    model = wrapped(backbone, modules_to_save=["1", "7"]).train()
    model(x + 1)
    y = trained_away(model)(x)
    assert torch.equal(model.base_model.model[1].original_module.running_mean, torch.zeros(6))
    model.save_pretrained(str(tmp_path))
    again = peft.PeftModel.from_pretrained(deepcopy(backbone), str(tmp_path)).eval()
    assert torch.equal(again(x), y)
    file = ns.peft.export_adapter(model, tmp_path / "adapter")
    assert torch.equal(ns.load_adapter(backbone, file)(x), y)
    assert torch.equal(model(x), y)


WORDS = pytest.mark.parametrize("train", ["M+head", "M+norm", "M+head+norm", "M+bias", "M+all"])


@WORDS
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_words_train_what_freezing_trains_and_all_is_saved(
    backbone, x, train, similarity, tmp_path
):
    """Running statistics stay; merged, a kernel with its M is one, of the layer that it was."""
    converted = ns.freeze_backbone(ns.convert(backbone, similarity), train=train)
    model, y = wrapped(backbone, similarity, train=train), backbone(x)
    assert (model(x) - y).abs().max() < 1e-6
    trained = [
        sorted(p.shape for p in m.parameters() if p.requires_grad) for m in (model, converted)
    ]
    assert trained[0] == trained[1]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()(x)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    z = trained_away(model)(x)
    model.save_pretrained(str(tmp_path))
    again = peft.PeftModel.from_pretrained(deepcopy(backbone), str(tmp_path)).eval()
    file = ns.peft.export_adapter(model, tmp_path / "a")
    assert torch.equal(again(x), z)
    assert torch.equal(ns.load_adapter(backbone, file)(x), z)
    if train != "M+bias":  # PEFT trains biases in the backbone, and an adapter holds none.
        assert torch.equal(ns.peft.import_adapter(deepcopy(backbone), file).eval()(x), z)
        with model.disable_adapter():
            assert torch.equal(model(x), y)
    if similarity == "static-full":
        model.merge_adapter()
        assert torch.equal(model(x), z)
        model.unmerge_adapter()
        plain = model.merge_and_unload()
        assert torch.equal(plain(x), z)
        assert plain.state_dict().keys() == backbone.state_dict().keys()


def test_adapters_that_train_all_switch_and_add_their_changes(backbone, x):
    model = wrapped(backbone[:1], train="M+all")
    model.add_adapter("other", config("static-diagonal", train="M+all", target_modules=["0"]))
    outputs = []
    for name in ("default", "other"):
        model.set_adapter(name)
        outputs.append(trained_away(model)(x))
    assert not any(p.requires_grad for n, p in model.named_parameters() if ".default." in n)
    model.base_model.set_adapter(["default", "other"])
    both, y = model(x), backbone[:1](x)
    torch.testing.assert_close(both - y, sum(outputs) - 2 * y)
    model.merge_adapter()
    torch.testing.assert_close(model(x), both)
    model.unmerge_adapter()
    with model.disable_adapter():
        assert torch.equal(model(x), y)


def test_a_head_with_an_m_trains_whole(backbone, x):
    model = wrapped(backbone[:1], train="M+head")
    parts = {n.split(".")[3] for n, p in model.named_parameters() if p.requires_grad}
    assert parts == {"nsl_similarity", "nsl_layer"}
    y = trained_away(model)(x)
    assert torch.equal(model.merge_and_unload()(x), y)


class Around(nn.Sequential):
    def __init__(self, *parts):
        super().__init__(*parts)
        self.gain = nn.Parameter(torch.ones(1))


def conv(**options):
    return nn.Conv2d(2, 2, 3, **options)


def lora():
    model = peft.get_peft_model(nn.Sequential(conv()), peft.LoraConfig(target_modules=["0"]))
    return model.base_model.model


MIXED = nn.Sequential(conv(), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1))
CONVERTED = ns.convert(nn.Sequential(conv()), "static-full")
NORMED = nn.Sequential(nn.utils.parametrizations.weight_norm(conv()))
COMPILED = nn.Sequential(torch.compile(conv(), backend="eager"))
ENDS = nn.ModuleDict({"conv": conv(), "downconv": conv()})
"""PEFT reads the first name as the end of both."""
FIRST, DYNAMIC_FIRST = {"target_modules": ["0"]}, {"similarity": "dynamic-diagonal"}


@pytest.mark.filterwarnings(
    "ignore:Already found:UserWarning", "ignore:.*a second time:UserWarning"
)
@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (MIXED, {"target_modules": ["1"]}, r"'1', which is a BatchNorm2d"),
        (MIXED, {"target_modules": ["3"]}, r"'3', which has a single kernel tap"),
        (MIXED, {"target_modules": ["0", "2"]}, r"'2', which is a ReLU"),
        (MIXED, FIRST | {"similarity": ns.Static(ns.Dilation())}, "'0', which does not start at"),
        (MIXED, {"similarity": "static-ful"}, "nearest: static-full"),
        (MIXED, {"similarity": ns.Static(init="released")}, "must start at the identity"),
        (MIXED, {"train": "head"}, "`train` must name M"),
        (MIXED, {"train": "M+lora"}, "`train` must join M, all"),
        (MIXED[:1], {"train": "M+norm"}, "without gains and shifts"),
        (nn.Sequential(conv(bias=False)), {"train": "M+bias"}, "without biases"),
        (conv(), {}, "`model` must have its layers inside, got a single Conv2d"),
        (MIXED, {"train": "M+bias", "bias": "nsl_only"}, "`bias` must be none or all"),
        (Around(conv()), {"train": "M+all"}, r"around layers with M, got .* \{''\}"),
        (lora(), FIRST, "'0', which has an adapter of another tuner"),
        (CONVERTED, FIRST, r"has a similarity already.* ns\.fold\(model\)"),
        (CONVERTED, {}, r"has a similarity already.* ns\.fold\(model\)"),
        (nn.Sequential(Clamped(2, 3, 3)), FIRST, "computes its kernel, so that nothing can be"),
        (NORMED, FIRST | DYNAMIC_FIRST, "computes its kernel, so that nothing can be"),
        (NORMED, {}, r"got none: .*'0': computes its kernel"),
        (COMPILED, {}, "must name no layer that is compiled alone"),
        (ENDS, {"target_modules": ["downconv"], "modules_to_save": ["conv"]}, "cannot be applied"),
    ],
)
def test_what_is_refused_leaves_the_network_as_it_was(network, options, message):
    def state():
        trains = [parameter.requires_grad for parameter in network.parameters()]
        return [(part, type(part)) for part in network.modules()], trains

    before = state()
    with pytest.raises((ValueError, TypeError), match=message):
        peft.get_peft_model(network, config(**options))
    assert state() == before


def test_a_head_in_which_another_adapter_has_m_is_refused():
    model = wrapped(nn.Sequential(conv(), conv()), target_modules="1")
    with pytest.raises(ValueError, match=r"other adapters alone have M, got \{'1'\}"):
        model.add_adapter("other", config(target_modules="0", train="M+head"))


def test_words_name_exactly_their_layers():
    """PEFT takes "1" for the end of "layer.11", and for a part of its path."""
    inner = nn.Sequential(nn.ReLU(), nn.Conv2d(2, 2, 3))
    model = trained_away(wrapped(nn.Sequential(inner, nn.Conv2d(2, 2, 1)), train="M+head"))
    trained = {name.split("model.")[-1] for name, p in model.named_parameters() if p.requires_grad}
    head = {f"1.modules_to_save.default.{name}" for name in ("weight", "bias")}
    assert trained == head | {"0.1.nsl_similarity.default.raw"}


def test_files_that_peft_cannot_hold_are_refused(backbone, tmp_path):
    similar = ns.convert(backbone, "static-full", "0")
    trained = ns.freeze_backbone(similar, train="0.bias")
    with pytest.raises(ValueError, match=r"without one, or all, got .* \['0'\]"):
        ns.peft.import_adapter(backbone, ns.save_adapter(trained, tmp_path / "a"))
    both = ns.convert(similar, "static-diagonal", "4")
    with pytest.raises(ValueError, match="must hold one similarity"):
        ns.peft.import_adapter(backbone, ns.save_adapter(both, tmp_path / "b"))
    model = wrapped(backbone)
    model.merge_adapter()
    with pytest.raises(ValueError, match="one active adapter, not merged"):
        ns.peft.export_adapter(model, tmp_path / "c")


@pytest.mark.usefixtures("ranks")
def test_data_parallel_training_is_that_of_one_process(backbone, x):
    alone = wrapped(backbone, modules_to_save=["7"])
    model = nn.parallel.DistributedDataParallel(deepcopy(alone))
    state, parallel = train_steps(alone, x).state_dict(), train_steps(model, x).module.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in parallel.items())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_trainer(tmp_path):
    """Trains M and a head by the Trainer, goes on from a checkpoint, reloads, merges."""
    backbone, pixels = resnet_of_transformers(), torch.randn(16, 3, 16, 16)

    def train(resume=None):
        model = wrapped(backbone, modules_to_save=["classifier"])
        train_by_transformers(tmp_path / "run", model, 4, resume)
        return model

    model = train()
    whole = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    again = train(str(tmp_path / "run" / "checkpoint-2"))
    assert all(torch.equal(whole[key], tensor) for key, tensor in again.state_dict().items())
    folder = str(tmp_path / "run" / "checkpoint-4")
    loaded = peft.PeftModel.from_pretrained(deepcopy(backbone), folder).eval()
    y = model(pixel_values=pixels).logits
    assert (y - backbone(pixel_values=pixels).logits).abs().max() > 1e-3
    assert torch.equal(loaded(pixel_values=pixels).logits, y)
    assert torch.equal(loaded.merge_and_unload()(pixel_values=pixels).logits, y)


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_padding_of_a_layers_own_goes(similarity):
    class Causal(nn.Conv1d):
        def forward(self, x):
            return super().forward(nn.functional.pad(x, (2, 0)))

    backbone, x = nn.Sequential(Causal(2, 3, 3)), torch.randn(1, 2, 7)
    model = wrapped(backbone, similarity, target_modules=["0"])
    torch.testing.assert_close(model(x), backbone(x))
    expected = trained_away(model)(x)
    assert (expected - backbone(x)).abs().max() > 1e-3
    if similarity == "static-full":
        torch.testing.assert_close(model.merge_and_unload()(x), expected)


def test_tied_kernels_merge_apart_and_are_tied_again():
    backbone = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)).eval()
    backbone[1].weight = backbone[2].weight = backbone[0].weight
    x, kernel = torch.randn(2, 3, 9, 9), backbone[0].weight
    start = kernel.detach().clone()
    model = trained_away(peft.get_peft_model(backbone, config(target_modules=["0", "1"])))
    y = model(x)
    model.merge_adapter()
    assert torch.equal(model(x), y)
    model.unmerge_adapter()
    assert all(part.weight is kernel for part in model.base_model.model)
    assert torch.equal(kernel, start)
    assert torch.equal(model(x), y)
    assert torch.equal(model.merge_and_unload()(x), y)


def test_one_layer_in_two_places_has_one_m(tmp_path):
    backbone = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())
    backbone.append(backbone[0]).eval()
    x, plain = torch.randn(2, 3, 9, 9), deepcopy(backbone)
    model = trained_away(peft.get_peft_model(backbone, config()))
    y, parts = model(x), model.base_model.model
    assert parts[0] is parts[2]
    file = ns.peft.export_adapter(model, tmp_path / "a")
    assert torch.equal(ns.load_adapter(plain, file)(x), y)
    assert torch.equal(ns.peft.import_adapter(deepcopy(plain), file)(x), y)
    merged = model.merge_and_unload()
    assert type(merged[0]) is nn.Conv2d
    assert merged[0] is merged[2]
    assert torch.equal(merged(x), y)


UNEQUAL, NO_SUM = "one for each of `weights`", "linear in what it learns"


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, (["default", "default"], [1.0], "sum"), UNEQUAL),
        ({}, (["default", "b"], [1.0], "sum"), UNEQUAL),
        ({}, (["default", "none"], [1.0, 1.0], "sum"), UNEQUAL),
        ({}, (["default", "b"], [1.0, 1.0], "b"), "`adapter_name` must be new"),
        ({}, (["default", "b"], [1.0, 1.0], "a.b"), "`adapter_name` must be new and have no dot"),
        ({}, (["default", "b"], [1.0, float("nan")], "sum"), "`weights` must be finite"),
        ({"modules_to_save": ["7"]}, (["default", "b"], [1.0, 1.0], "sum"), "which have no sum"),
        ({"bias": "all"}, (["default", "b"], [1.0, 1.0], "sum"), "no `modules_to_save`, kernels"),
        ({"similarity": "dynamic-diagonal"}, (["default"], [0.5], "half"), "one static similarity"),
        *(
            ({"similarity": STATIC[name]}, (["default"], [0.5], "half"), NO_SUM)
            for name in ("semidefinite", "affine, tied")
        ),
    ],
)
def test_a_sum_that_fails_leaves_no_adapter(backbone, options, arguments, message):
    model = wrapped(backbone, **options)
    model.add_adapter("b", config())
    with pytest.raises(ValueError, match=message):
        model.add_weighted_adapter(*arguments)
    assert list(model.peft_config) == ["default", "b"]
    model.add_weighted_adapter(["b"], [1.0], "sum")


def test_a_sum_that_fails_late_leaves_no_adapter(backbone, monkeypatch):
    def fails(*_):
        raise RuntimeError("late")

    model = wrapped(backbone)
    monkeypatch.setattr(ns.peft.NslLayer, "sum_into", fails)
    with pytest.raises(RuntimeError, match="late"):
        model.add_weighted_adapter(["default"], [1.0], "sum")
    assert list(model.peft_config) == ["default"]
    assert list(model.base_model.model[0].nsl_similarity) == ["default"]


def test_the_default_skips_layers_that_compute_their_kernel_and_says_so(backbone, x, caplog):
    nn.utils.parametrizations.weight_norm(backbone[4])
    y, model = backbone(x), wrapped(backbone)
    assert "no M for '4': computes its kernel" in caplog.text
    assert [n for n, m in model.base_model.model.named_children() if hasattr(m, "name")] == ["0"]
    assert torch.equal(model(x), y)
    with pytest.raises(ValueError, match="'4', which computes its kernel"):
        wrapped(backbone, target_modules=["0", "4"])


def test_peft_is_imported_when_it_is_needed():
    code = """
import sys
import neural_similarity.peft as ns_peft
assert "peft" not in sys.modules
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING as tuners
assert tuners["NSL"] is ns_peft.NslModel
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
