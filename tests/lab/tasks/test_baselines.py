"""Baselines of M: at first the network, then as many numbers as told, merged what they are."""

import re
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import get_args
from unittest import mock

import pytest
import torch
from refusals import refusals
from safetensors.torch import load_file
from tiny_images import tiny as tiny
from torch import nn

import neural_similarity as ns
from neural_similarity.files import read_json
from neural_similarity.lab import cli, session
from neural_similarity.lab.tasks import tuned
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe, adapt_network
from neural_similarity.lab.tasks.baselines import (
    BASELINES,
    Baseline,
    merge_baselines,
    with_baseline,
)
from neural_similarity.lab.tasks.tuned import BLOCK
from neural_similarity.lab.tasks.tuned_related import sparse_codes
from neural_similarity.lab.train import Recipe
from neural_similarity.lab.train.recipe import recipe_from_json, recipe_to_json
from neural_similarity_paper.corruption import rotate_images

# What peft imports, torchao and transformers among it, warns.
pytestmark = pytest.mark.filterwarnings("ignore")
KERNELS = ["ssf", "oft", "atoms", "atoms-9", "residual", "residual-vector", "lora-c", "lora-c4"]
KERNELS += ["piggyback", "lora"]
"""Baselines of convolutions that merge into kernels."""
OTHERS = ["conv-adapter", "adafm", "turn"]
"""Baselines of convolutions that do not merge into kernels."""


def moved(baseline):
    """A network, its copy with a baseline whose numbers are not those of the start, and images."""
    torch.manual_seed(0)
    plain = ns.models.resnet20(num_classes=3).eval()
    network = ns.models.resnet20(num_classes=3).eval()
    network.load_state_dict(plain.state_dict())
    recipe = AdaptationRecipe(baseline=baseline, train="baseline", similarity=None)
    adapt_network(network, recipe)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(x), plain(x))
    new = [p for p in network.parameters() if p.requires_grad]
    for parameter in new:
        torch.nn.init.normal_(parameter.data, std=0.1).add_(parameter.ndim == 1)
    return plain, network, x


@pytest.mark.parametrize("baseline", KERNELS)
def test_merged_outputs_are_those_of_the_baseline(baseline):
    plain, network, x = moved(baseline)
    alone = merge_baselines(network)
    scale = plain(x).abs().max()
    assert (network(x) - plain(x)).abs().max() > 0.01 * scale
    assert (alone(x) - network(x)).abs().max() < 1e-4 * network(x).abs().max()
    kinds = (nn.Conv2d, ns.Conv2d)
    assert all(type(m) in kinds for m in alone.modules() if isinstance(m, nn.Conv2d))
    assert set(plain.state_dict()) <= set(alone.state_dict())
    assert ns.macs(alone, (3, 32, 32)) == ns.macs(plain, (3, 32, 32))


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_m_and_a_baseline_train_together_in_the_same_layer(baseline, similarity, tmp_path):
    """M acts on the kernel of the layer, as the baseline has it; one file restores both."""
    torch.manual_seed(0)
    pad = {"padding": 1, "padding_mode": "reflect"}
    layers = nn.Conv2d(8, 8, 3, bias=False, **pad), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, stride=2)
    plain, x = nn.Sequential(*layers).eval(), torch.randn(2, 8, 7, 7)
    recipe = AdaptationRecipe(train=f"M+{baseline}", similarity=similarity)
    assert recipe == replace(recipe, train="M+baseline", baseline=baseline)
    network = adapt_network(deepcopy(plain), recipe).eval()
    start = network(x)
    assert torch.equal(start, plain(x)) or (start - plain(x)).abs().max() < 1e-6
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    start.square().mean().backward()
    assert all(p.grad is not None for p in trained.values())
    both = [any("similarity" in n for n in trained), any("similarity" not in n for n in trained)]
    assert all(both)
    for parameter in trained.values():
        nn.init.normal_(parameter.data, std=0.1).add_(parameter.ndim == 1)
    names = [name for name in trained if "similarity" not in name]
    file, again = ns.save_adapter(network, tmp_path / "a.safetensors", names), deepcopy(plain)
    with_baseline(again, baseline)
    assert ns.max_difference(ns.load_adapter(again, file), network, x) == 0
    if similarity == "static-full":
        folded = ns.fold(merge_baselines(network))
        state = {n: t.shape for n, t in folded.state_dict().items() if "similarity" not in n}
        assert len(state) == len(folded.state_dict())
        assert {n: t.shape for n, t in plain.state_dict().items()}.items() <= state.items()
        torch.testing.assert_close(folded(x), network(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("norm", "learns"), [("eval", True), ("train", False)])
def test_batch_statistics_undo_ssf(norm, learns):
    """docs/evidence/results-adaptation.md: it has no row with running statistics that follow."""
    torch.manual_seed(0)
    recipe = AdaptationRecipe(baseline="ssf", train="baseline", similarity=None, norm=norm)
    network = adapt_network(ns.models.resnet20(num_classes=3), recipe).double().train()
    x = torch.randn(8, 3, 32, 32, dtype=torch.float64)
    nn.functional.cross_entropy(network(x), torch.arange(8) % 3).backward()
    largest = max(p.grad.abs().max() for p in network.parameters() if p.requires_grad)
    assert (largest > 1e-3) == learns
    assert learns or largest < 1e-4  # What eps of batch normalisation leaves.


@pytest.mark.parametrize(("baseline", "at"), [("ssf", 0), ("film", 1)])
def test_what_a_convolution_gives_or_what_is_normalised_is_scaled_and_shifted(baseline, at):
    torch.manual_seed(0)
    plain = [nn.Conv2d(3, 4, (3, 2), stride=2, padding=1), nn.BatchNorm2d(4)][: at + 1]
    network = nn.Sequential(*plain).double()
    for part in network[at].parameters():
        nn.init.normal_(part)
    kind, x = type(network[at]), torch.randn(5, 3, 7, 6, dtype=torch.float64)
    before = network(x)
    assert with_baseline(network, baseline) == [f"{at}.scale", f"{at}.shift"]
    assert torch.equal(network(x), before)
    gains, shifts = torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad():
        network[at].scale.copy_(gains)
        network[at].shift.copy_(shifts)
    wanted = torch.stack([before[:, i] * gains[i] + shifts[i] for i in range(4)], dim=1)
    torch.testing.assert_close(network(x), wanted)
    alone = merge_baselines(network)
    assert type(alone[at]) is kind
    torch.testing.assert_close(alone(x), wanted)


class Padded(nn.Conv2d):
    """A convolution with a forward pass of its own, as timm's Conv2dSame."""

    def forward(self, input):
        return super().forward(nn.functional.pad(input, (0, 1, 0, 1)))


@pytest.mark.parametrize("baseline", [*KERNELS, "conv-adapter", "adafm"])
def test_layers_are_those_that_a_conversion_would_take(baseline):
    """A subclass keeps its forward pass, and `where` chooses among the others."""
    network = nn.Sequential(Padded(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(2, 3, 9, 9)
    before = network(x)
    with_baseline(network, baseline, "2")
    assert torch.equal(network(x), before)
    assert [type(layer) for layer in network[:2]] == [Padded, nn.Conv2d]
    assert type(network[2]) is not nn.Conv2d
    with pytest.raises(ValueError, match="`baseline` must have convolutions to change"):
        with_baseline(nn.Sequential(Padded(3, 4, 3)), baseline)


class Scaled(nn.Module):
    """A network that has names such as those of baselines."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)))
        self.scale, self.shift, self.angle = (nn.Parameter(torch.ones(1)) for _ in range(3))

    def forward(self, input):
        return self.blocks(input) * self.scale + self.shift


@pytest.mark.parametrize("baseline", [*KERNELS, *OTHERS])
def test_only_what_is_new_trains(baseline):
    """Not parameters of the network, nor layers whose names end as that of one of `where` does."""
    network = nn.Sequential(Scaled(), nn.Conv2d(4, 2, 1))
    network[0].blocks.insert(2, nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3))))
    before = {id(p) for p in network.parameters()}
    names = with_baseline(network, baseline, "0.blocks.0")
    ns.freeze_backbone(network, train=names)
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad == (id(parameter) not in before), name
        assert id(parameter) in before or name.startswith("0.blocks.0."), name


def fit(network, x, y, lr, steps):
    """Train by gradient descent with momentum what requires a gradient."""
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()


def test_k_filter_atoms_are_static_full_m():
    """docs/reference/baselines.md: fifty steps of descent with momentum give the same kernels."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 5, (3, 2)), nn.ReLU(), nn.Conv2d(5, 4, (2, 3))).double()
    m = ns.freeze_backbone(ns.convert(plain, "static-full"))
    atoms = deepcopy(plain)
    with mock.patch.object(tuned, "ATOMS", 6):
        ns.freeze_backbone(atoms, train=with_baseline(atoms, "atoms"))
    x = torch.randn(8, 3, 9, 8, dtype=torch.float64)
    y = torch.randn(8, 4, 6, 5, dtype=torch.float64)
    for network in (m, atoms):
        fit(network, x, y, lr=0.02, steps=50)
    ours, theirs = ns.fold(m).state_dict(), merge_baselines(atoms).state_dict()
    for name, start in plain.state_dict().items():
        if name.endswith("weight"):
            assert (ours[name] - start).abs().max() > 0.01
            assert (ours[name] - theirs[name]).abs().max() < 1e-12


def test_six_atoms_are_the_largest_part_of_the_kernels():
    layer = nn.Conv2d(4, 8, 3).double()
    rows = layer.weight.detach().flatten(2).flatten(0, 1)
    with_baseline(nn.Sequential(layer), "atoms")
    projected = rows @ layer.directions @ layer.directions.T
    lost = torch.linalg.svdvals(rows)[6:].square().sum()
    torch.testing.assert_close((rows - projected).square().sum(), lost)


def with_residual(layer, x, before):
    """With padding by half a kernel, as in TSA's code, A x sees the pixels of the stride."""
    if layer.central.dim() == 1:
        return before + layer.central[:, None, None] * x[:, :, ::2, ::2]
    a = layer.central[:, :, None, None]
    return before + nn.functional.conv2d(x, a, stride=2, groups=layer.groups)


def with_filters(layer, _x, y):
    """What the convolution gives is filtered."""
    patches = nn.functional.unfold(y, 3, padding=1).view(2, 6, 9, *y.shape[2:])
    filtered = torch.einsum("nokyx,ok->noyx", patches, layer.filter.flatten(1))
    return y + filtered + layer.shift[:, None, None]


def with_adapter(layer, x, before):
    """The adapter stands beside its convolution."""
    groups = enumerate(zip(layer.gather, layer.gather_bias, strict=True))
    parts = [
        nn.functional.conv2d(x[:, 8 * i : 8 * i + 8], weight[None], bias[None], 2, 1)
        for i, (weight, bias) in groups
    ]
    spread = torch.einsum("ow,nwyx->noyx", layer.spread[..., 0, 0], torch.cat(parts, 1).relu())
    return before + (spread + layer.spread_bias[:, None, None]) * layer.gain


@pytest.mark.parametrize(
    ("baseline", "channels", "filters", "groups", "by_hand", "names"),
    [
        ("residual", 4, 6, 2, with_residual, "central"),
        ("residual-vector", 4, 6, 1, with_residual, "central"),
        ("residual-vector", 5, 5, 1, with_residual, "central"),
        ("residual", 4, 4, 4, with_residual, "central"),
        ("adafm", 3, 6, 1, with_filters, "filter shift"),
        ("conv-adapter", 16, 6, 1, with_adapter, "gather gather_bias spread spread_bias gain"),
    ],
)
def test_a_layer_with_a_baseline_is_its_equation_and_at_first_the_layer(
    *, baseline, channels, filters, groups, by_hand, names
):
    layer = nn.Conv2d(channels, filters, 3, stride=2, padding=1, groups=groups).double()
    x = torch.randn(2, channels, 9, 8, dtype=torch.float64)
    before = layer(x)
    assert with_baseline(nn.Sequential(layer), baseline) == [f"0.{n}" for n in names.split()]
    assert torch.equal(layer(x), before)
    for name in names.split():
        nn.init.normal_(layer.get_parameter(name))
    torch.testing.assert_close(layer(x), by_hand(layer, x, before))


def test_lora_c_adds_a_product_that_is_viewed_as_a_kernel():
    layer = nn.Conv2d(4, 6, 3).double()
    start = layer.weight.detach().clone()
    with_baseline(nn.Sequential(layer), "lora-c4")
    assert layer.factor_a.shape == (12, 12)
    assert layer.factor_b.shape == (18, 12)
    torch.nn.init.normal_(layer.factor_b)
    change = layer.effective_kernel()[0] - start
    assert torch.linalg.matrix_rank(change.reshape(18, 12)) == 12
    torch.testing.assert_close(change.reshape(18, 12), layer.factor_b @ layer.factor_a)


def test_masks_keep_weights_whose_scores_exceed_the_threshold():
    """The gradient of a score is that of its mask: the kernel's times the weight."""
    layer = nn.Conv2d(2, 3, 3).double()
    with_baseline(nn.Sequential(layer), "piggyback")
    with torch.no_grad():
        layer.scores.copy_(torch.linspace(0, 0.01, layer.scores.numel()).view_as(layer.scores))
    kernel = layer.effective_kernel()[0]
    assert torch.equal(kernel, torch.where(layer.scores > 0.005, layer.weight, 0.0))
    wanted = torch.randn_like(kernel)
    kernel.backward(wanted)
    torch.testing.assert_close(layer.scores.grad, wanted * layer.weight.detach())


test_film_without_its_layers_is_refused = refusals(
    (nn.Sequential(nn.BatchNorm2d(2)), "0", "`where` must be none for film"),
    (nn.Sequential(nn.Conv2d(2, 2, 3)), None, "film must have nn.BatchNorm2d"),
    (nn.Sequential(nn.BatchNorm2d(2, affine=False)), None, "film must have nn.BatchNorm2d"),
    call=lambda network, where: with_baseline(network, "film", where),
)


def test_every_baseline_is_on_the_page_with_its_number_of_parameters():
    page = (Path(__file__).parents[3] / "docs/reference/baselines.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \|", page, re.M))
    assert set(rows) == set(get_args(Baseline)) - {"none"}
    for name, kind in BASELINES.items():
        network = ns.models.resnet20()
        ns.freeze_backbone(network, train=with_baseline(network, name))
        count = sum(p.numel() for p in network.parameters() if p.requires_grad)
        assert rows[name] == f"{count:,}", name
        for source in re.findall(r"https://\S+|\d{4}\.\d{5}", kind.__doc__):
            assert source in page


test_turned_is_what_the_first_convolution_sees_or_nothing = refusals(
    *(
        (first, where, "`baseline` must not be turn where 0 is not converted")
        for first, where in [
            (nn.Conv2d(3, 4, 3), "1"),
            (nn.Conv2d(3, 4, 1), None),
            (Padded(3, 4, 3), None),
        ]
    ),
    call=lambda first, where: with_baseline(
        nn.Sequential(first, nn.Conv2d(4, 4, 3)), "turn", where
    ),
)


@pytest.mark.parametrize("head", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.Conv2d(4, 3, 1)])
def test_tsa_leaves_the_first_layer_and_aligns_the_features_of_a_linear_head(head):
    shape = nn.Flatten() if isinstance(head, nn.Linear) else nn.Identity()
    convolutions = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)
    network, x = (
        nn.Sequential(*convolutions, shape, head).double(),
        torch.randn(2, 3, 9, 9).double(),
    )
    before, keys = network(x), set(network.state_dict())
    aligned = ["4.alignment"] if isinstance(head, nn.Linear) else []
    assert with_baseline(network, "tsa") == ["1.central", *aligned]
    assert torch.equal(network(x), before)
    network.get_parameter("1.central").data.normal_()
    for name in aligned:
        network.get_parameter(name).data.normal_()
        features = network[:4](x)
        wanted = features @ (head.weight @ network.get_parameter(name)).T
        torch.testing.assert_close(network(x), wanted if head.bias is None else wanted + head.bias)
    merged = merge_baselines(network)
    torch.testing.assert_close(merged(x), network(x))
    assert set(merged.state_dict()) == keys


@pytest.mark.parametrize("taps", [4, 9, 25])
def test_codes_of_nine_atoms_are_sparse_and_have_the_kernels_scale(taps):
    rows = torch.randn(400, taps, generator=torch.Generator().manual_seed(1)).double() / 10
    codes = sparse_codes(rows)
    assert codes.shape == (400, min(9, taps))
    assert (sparse_codes(rows / 50) == 0).float().mean() > 0.05
    if taps <= 9:  # The atoms span all kernels.
        atoms = torch.linalg.lstsq(codes, rows).solution
        assert (codes @ atoms - rows).norm() < 0.05 * rows.norm()
        assert codes.norm() == pytest.approx(rows.norm().item(), rel=0.2)


def test_oft_turns_filters_within_their_blocks():
    """R of a block is found by least squares; it is orthogonal and no reflection."""
    plain, network, _ = moved("oft")
    both = plain, merge_baselines(network)
    kernels = [m.get_submodule("layer1.0.conv1").weight.detach() for m in both]
    for old, new in zip(*(k.flatten(1).double().split(BLOCK) for k in kernels), strict=True):
        turn = torch.linalg.lstsq(old.T, new.T).solution
        torch.testing.assert_close(turn @ turn.T, torch.eye(BLOCK).double(), rtol=0, atol=1e-5)
        assert turn.det() > 0
        assert (turn - torch.eye(BLOCK)).abs().max() > 0.01


def test_turned_images_are_those_of_the_data_set_turned_back():
    """An angle of -1/3 undoes 30 degrees as the network sees it, one of 1 is `torch.rot90`."""
    torch.manual_seed(0)
    plain = ns.models.resnet20(num_classes=3).eval()
    network = deepcopy(plain)
    assert with_baseline(network, "turn") == ["conv1.angle"]
    (angle,) = (p for name, p in network.named_parameters() if name.endswith(".angle"))
    x = 128 + 20 * torch.randn(2, 3, 32, 32)
    scale = plain(x).abs().max()
    assert (network(x) - plain(x)).abs().max() < 1e-4 * scale
    plain(x).sum().backward()
    network(x).square().sum().backward()
    assert angle.grad.abs() > 0
    for turns, seen in ((1 / 3, rotate_images(x, None, 30)), (1, x.rot90(1, (2, 3)))):
        torch.nn.init.constant_(angle, turns)
        assert (network(x) - plain(seen)).abs().max() < 1e-3 * scale
    assert set(merge_baselines(network).state_dict()) == {*plain.state_dict(), "conv1.angle"}


@pytest.mark.long
def test_lora_takes_the_steps_of_peft():
    """docs/reference/baselines.md: from the same A, ten steps of descent give the same kernels."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(5, 4, 3))
    ours = deepcopy(plain.double())
    ns.freeze_backbone(ours, train=with_baseline(ours, "lora"))
    config = peft.LoraConfig(r=1, lora_alpha=1, target_modules=["0", "2"])
    theirs = peft.get_peft_model(deepcopy(plain), config)
    for name in ("0", "2"):
        inner = theirs.base_model.model.get_submodule(name).lora_A["default"].weight
        inner.data = ours.get_submodule(name).factor_a.detach().view_as(inner).clone()
    x, y = torch.randn(8, 3, 9, 9).double(), torch.randn(8, 4, 3, 3).double()
    for network in (ours, theirs):
        fit(network, x, y, lr=0.1, steps=10)
    merged = theirs.merge_and_unload().state_dict()
    for name, kernel in merge_baselines(ours).state_dict().items():
        assert name.endswith("bias") or (kernel - plain.state_dict()[name]).abs().max() > 0.01
        torch.testing.assert_close(merged[name], kernel, rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("baseline", "m"),
    [
        *((name, "") for name in (*KERNELS, "film", "tsa")),
        *((name, "M+") for name in ("lora", "film", "conv-adapter", "turn", "tsa")),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_a_run_resumes_and_leaves_a_plain_network(baseline, m, tmp_path, capsys):
    start = Recipe(dataset="embedded", width=0.1, steps=2, drops=(), precision="fp32")
    start = session.train(start, out=tmp_path / "start", device="cpu")
    settings = {"steps": 4, "drops": (), "checkpoint_every": 2, "precision": "fp32"}
    recipe = AdaptationRecipe(
        backbone=str(start.path), dataset="embedded", train=f"{m}{baseline}+head", lr=0.05,
        **settings,
    )  # fmt: skip
    run = session.train(recipe, out=tmp_path / "run", device="cpu")
    network = session.load(run)
    for path in (run.summary, run.path / "adapter.safetensors"):
        path.unlink()
    shutil.rmtree(run.checkpoints / "step-00000004")
    session.resume(run.path, device="cpu")
    again = session.load(run.path).state_dict()
    assert all(torch.equal(t, again[n]) for n, t in network.state_dict().items())
    moved = sum(t.numel() for t in load_file(run.path / "adapter.safetensors").values())
    assert moved == read_json(run.summary)["trained"]
    assert cli.main(["evaluate", str(run.path), "--device", "cpu"]) == 0
    words = ["export", str(run.path), "--format", "safetensors", "--fold"]
    assert cli.main(words) == 0
    assert "read into a new network" in capsys.readouterr().out
    state = load_file(run.path / "network-folded.safetensors")
    plain = set(session.load(start).state_dict())
    assert plain <= set(state)
    assert not any("similarity" in key for key in state)
    if baseline not in OTHERS:
        assert all(key.endswith(".bias") for key in set(state) - plain)  # SSF shifts


test_what_does_not_go_together = refusals(
    ({"train": "M+lora+ssf"}, "`train` must name no second baseline"),
    ({"baseline": "ssf", "train": "M+lora"}, "`train` must name no second baseline"),
    ({"train": "M", "similarity": None}, "`train` must not name M without a similarity"),
    ({"baseline": "ssf", "train": "head", "similarity": None}, "`train` must name baseline"),
    ({"train": "baseline", "similarity": None}, "`train` must name baseline"),
    ({"baseline": "boft", "train": "baseline", "similarity": None}, "`baseline` must be one"),
    call=lambda fields: AdaptationRecipe(**fields),
)


def test_a_configuration_of_older_versions():
    """0.2 said rival, 0.3 decoded every pixel, and "all" had M beside it where there was one."""
    recipe = AdaptationRecipe(baseline="ssf", train="baseline+head", similarity=None)
    fields = recipe_to_json(recipe)
    older = {name: value for name, value in fields.items() if name not in ("baseline", "draft")}
    older |= {"rival": "ssf", "train": "rival+head"}
    assert recipe_from_json(older, AdaptationRecipe) == replace(recipe, draft=False)
    older = recipe_to_json(AdaptationRecipe(train="M+all")) | {"train": "all"}
    assert recipe_from_json(older, AdaptationRecipe) == AdaptationRecipe(train="M+all")
