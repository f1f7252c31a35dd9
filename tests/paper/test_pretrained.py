"""§4's path as `nsim reproduce` runs it: a plain network, M alone on it, then all."""

from dataclasses import replace

import pytest
import torch
from launches import launched_here
from tiny_images import TINY, use_tiny_images
from tiny_results import edit

from neural_similarity.lab import cli, session
from neural_similarity.lab.recipes import FAMILIES, RECIPES, STARTS
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity.lab.train import RunError
from neural_similarity.nn import Diagonal, Dynamic, Full, SphereNet, Static
from neural_similarity_paper.tables import TABLES, read_records, records
from neural_similarity_paper.tables.records import changed_fields
from neural_similarity_paper.tables.rows import Panel, Row, Table

PLAIN, ALONE, ALL = "tiny-plain", "tiny-alone", "tiny-all"
SETTINGS = {
    **{"dataset": "embedded", "model": "cnn9", "channels": 1, "width": 0.1, "steps": 3},
    **{"drops": (), "batch_size": 8, "crop": 1, "precision": "fp32", "lr": 0.1},
}
SIMILARITIES = {"static": Static(Full()), "dynamic": Dynamic(predictor=SphereNet(hidden=4))}


def reproduce(folder, *args):
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    return cli.main(["reproduce", "path", "--seeds", "3", "--device", "cpu", *folders, *args])


@pytest.fixture(scope="module", params=SIMILARITIES)
def path(request, tmp_path_factory):
    """A folder in which the path was run for all of the network, whose records are asked for."""
    alone = AdaptationRecipe(**SETTINGS, similarity=SIMILARITIES[request.param], train="M")
    plain = replace(TINY, similarity=None)
    recipes = {PLAIN: plain, ALONE: alone, ALL: replace(alone, train="M+all")}
    folder = tmp_path_factory.mktemp("path")
    with launched_here() as commands, pytest.MonkeyPatch.context() as patch:
        use_tiny_images(patch)
        for name, recipe in recipes.items():
            patch.setitem(RECIPES, name, recipe)
        for name, start in ((ALONE, PLAIN), (ALL, ALONE)):
            patch.setitem(STARTS, name, start)
        rows = (Row("alone", ALONE), Row("all", ALL))
        patch.setitem(TABLES, "path", Table("A path", (Panel("Tiny", "error", rows),)))
        patch.chdir(folder)
        assert reproduce(folder, "--only", ALL) == 0
        assert [w[1] for w in commands if w[0] == "train"] == [PLAIN, ALONE, ALL]
        yield folder


def run_of(folder, name):
    return session.open_run(folder / "runs" / f"{name}-1-seed3")


def weights(model):
    """Parameters and statistics, but for counts of batches."""
    return {n: t for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}


def test_m_alone_moves_on_kernels_that_stay_and_all_goes_on_from_both(path):
    plain, alone, end = (weights(session.load(run_of(path, n))) for n in (PLAIN, ALONE, ALL))
    start, begun = (weights(run_of(path, name).begin_network()) for name in (ALONE, ALL))
    moved = {name for name in alone if not torch.equal(alone[name], start[name])}
    assert moved
    assert not moved & plain.keys()
    assert begun.keys() == alone.keys()
    assert all(torch.equal(tensor, alone[name]) for name, tensor in begun.items())
    kernels = [name for name in plain if plain[name].dim() == 4]
    assert not any(torch.equal(end[name], begun[name]) for name in kernels)


def test_records_tell_the_start_and_no_path_of_the_machine(path):
    (record,) = read_records(path / "results", ALL, 1.0)
    assert [file.name for file in (path / "results").iterdir()] == [ALL]  # what was asked for
    assert record.start.items() >= {"recipe": ALONE, "seed": 3, "budget": 1.0}.items()
    assert len(record.start["weights"]) == 64
    assert str(path) not in record.path.read_text()
    assert reproduce(path, "--only", ALL, "--print") == 0
    for change in ({}, {"seed": 4}, {"budget": 0.5}, {"recipe": PLAIN}):
        changed = changed_fields(ALL, 1.0, record.recipe, record.start | change)
        assert changed == ["start"] * bool(change)


def test_a_path_by_way_of_another_recipe_or_data_has_no_record(path, tmp_path):
    file = run_of(path, ALL).path / "environment.json"
    before = file.read_text()
    edit(file, "start", "start", "config", lr=0.5)
    try:
        assert records.overridden_fields(run_of(path, ALL)) == ["start"]
        with pytest.raises(RunError, match="it overrides start"):
            records.write_records(run_of(path, ALL), tmp_path)
    finally:
        file.write_text(before)
    assert records.overridden_fields(run_of(path, ALL)) == []
    on_other_data = replace(run_of(path, ALL), digest="of other data")
    assert records.overridden_fields(on_other_data) == ["start"]


def test_another_similarity_takes_the_folded_network(path):
    """Of dynamic M, which folds into nothing, it is refused."""
    run = run_of(path, ALL)
    other = replace(run.recipe, similarity=Static(Diagonal()))
    if isinstance(run.recipe.similarity, Dynamic):
        with pytest.raises(RunError, match="cannot be a backbone"):
            replace(run, recipe=other).begin_network()
        return
    images = torch.randn(2, 1, 8, 8)
    before = session.load(run_of(path, ALONE)).double()
    begun = replace(run, recipe=other).begin_network().double().eval()
    assert torch.allclose(begun(images.double()), before(images.double()), atol=1e-5)


def test_a_named_path_needs_its_backbone(path, capsys):
    assert cli.main(["train", ALL, "--data", str(path)]) == 2
    assert f"{ALL} needs --backbone RUN, the folder of a run of {ALONE}" in capsys.readouterr().err


def test_every_path_begins_with_the_plain_network_and_ends_after_as_many_updates():
    for name in FAMILIES["pretrained"][1]:
        chain = [name]
        while chain[-1] in STARTS:
            chain.append(STARTS[chain[-1]])
        assert chain[-1] == "cifar10-cnn"
        if not name.endswith("-m"):
            assert sum(RECIPES[part].steps for part in chain[:-1]) == 64_000
