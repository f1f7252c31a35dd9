"""Recipes as the released code trains, and the parts of it that are options."""

from dataclasses import replace

import pytest
import torch
from refusals import refusals
from tiny_images import tiny_world

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.recipes import in_variant as named
from neural_similarity.lab.train import read_run
from neural_similarity.models import build
from neural_similarity.nn import Diagonal, Full, Geometry, Static, parse_similarity
from neural_similarity_paper.tables import TABLES

NAMES = ("cnn", "cnn-parameters", "cnn++", "static-dns", "static-uns", "dynamic-dns", "dynamic-uns")
START = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0, 1])


def test_table_4_has_released_recipes_on_both_sets():
    names = {f"{data}-{name}@released" for data in ("cifar10", "cifar100") for name in NAMES}
    assert {row.recipe for row in TABLES["4-released"].all_rows} == names
    table, released = TABLES["4"].all_rows, TABLES["4-released"].all_rows
    assert [replace(row, recipe=f"{row.recipe}@released") for row in table] == list(released)
    assert TABLES["8-released"].all_rows[0].label == "SphereNet"


@pytest.mark.parametrize("name", NAMES)
def test_released_recipes_share_the_schedule_and_keep_the_network(name):
    """What differs from the paper's recipe but for the similarity is the same for all rows."""
    ours, paper = (RECIPES[f"cifar10-{name}{end}"] for end in ("@released", ""))
    own = ("similarity", "similarity_decay", "width", "model")
    plain = RECIPES["cifar10-cnn@released"]
    assert replace(ours, **{field: getattr(plain, field) for field in own}) == plain
    assert (ours.width, ours.model) == (paper.width, paper.model)
    assert type(ours.similarity) is type(paper.similarity)
    assert RECIPES[f"cifar100-{name}@released"] == replace(ours, dataset="cifar100")


def test_names_of_variants():
    assert named("cifar10-cnn", "released") == named("cifar10-cnn@released", "released")
    assert named("cifar10-cnn@released", "paper") == "cifar10-cnn"
    for name in ("cifar10-dynamic-dns-j", "cifar10-wide-cnn", "imagenet-cnn10"):
        with pytest.raises(ValueError, match=rf"`variant` released exists for .*, got {name}"):
            named(name, "released")


@pytest.mark.parametrize("residual", [True, False])
def test_static_dns_starts_at_three_of_nine_taps(residual):
    spec = Static(Diagonal(residual), init="released")
    layer = ns.Conv2d(3, 4, 3, similarity=spec)
    assert torch.equal(layer.similarity.matrix(), START)
    kernel = layer.fuse().weight.flatten(2)
    assert torch.equal(kernel, layer.weight.flatten(2) * START)
    assert parse_similarity(repr(spec)) == spec
    rectangle = ns.Conv2d(3, 4, (2, 3), similarity=spec).similarity.matrix()
    assert rectangle.tolist() == [1, 0, 0, 0, 1, 0]


RELEASED = Static(Diagonal(), init="released")
test_released_starts_are_refused_where_they_mean_nothing = refusals(
    (lambda: Static(Full(), init="released"), r'`init` "released" needs a Diagonal, got Full\(\)'),
    (lambda: Static(Diagonal(), init="eye"), "`init` must be one of identity, released, got 'eye'"),
    (lambda: RELEASED.build(Geometry(2, 2, (3,), (1,), (0,), (1,))), r"two dimensions, got \(3,\)"),
    (lambda: ns.convert(torch.nn.Conv2d(2, 2, 3), RELEASED), "must start at the identity"),
)


def test_train_takes_the_variant_whole(tmp_path):
    small = ("--width", "0.1", "--batch-size", "4", "--budget", "0.0001", "--device", "cpu")
    ways = (["cifar10-static-dns", "--variant", "released"], ["cifar10-static-dns@released"])
    for i, words in enumerate(ways):
        with tiny_world():
            assert cli.main(["train", *words, *small, "--out", str(tmp_path / str(i))]) == 0
    runs = [read_run(tmp_path / str(i)) for i in (0, 1)]
    assert runs[0].name == runs[1].name == "cifar10-static-dns@released"
    assert runs[0].recipe == runs[1].recipe
    assert runs[0].recipe.norm_eps == 1e-3


def test_dynamic_dns_starts_near_the_identity_only_with_its_eps():
    """What the released eps is for: with PyTorch's the small start is normalised away."""
    deviations = {}
    for name in ("norm", "norm-1e-5"):
        spec = RECIPES[f"cifar10-dynamic-dns-{name}"].similarity
        torch.manual_seed(0)
        layer = ns.Conv2d(8, 8, 3, padding=1, similarity=spec)
        deviations[name] = (layer.similarity.matrix(torch.randn(4, 8, 12, 12)) - 1).std().item()
    assert deviations["norm-1e-5"] > 5 * deviations["norm"]


@pytest.mark.parametrize("name", ["cifar10-spherenet", "cifar10-spherenet-attention"])
def test_of_table_8_the_released_network_alone_differs(name):
    recipe = RECIPES[named(name, "released")]
    assert recipe == replace(RECIPES[name], variant="released")
    network = build(recipe.model, 10, width=0.1, variant=recipe.variant)
    assert network[-1].bias is None
    assert isinstance(dict(network.named_children())["fc"], ns.SphereConv2d)
