"""Run folders become records, and only those that may."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_images import make_dataset
from tiny_results import PLAIN, STATIC, edit
from tiny_results import tiny_table as tiny_table

import neural_similarity as ns
from neural_similarity.conversion import fold
from neural_similarity.lab import cli
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.session import load, train
from neural_similarity.lab.tasks.few_shot.evaluation import read_evaluation
from neural_similarity.lab.train import (
    RunError,
    choose_runtime,
    evaluate_model,
    pack_correct,
    unpack_correct,
)
from neural_similarity.lab.train.checkpoint import weights_digest
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.recipe import recipe_to_json
from neural_similarity.models.counts import macs
from neural_similarity_paper.tables import read_costs, read_records
from neural_similarity_paper.tables.records import read_record, write_records

pytestmark = pytest.mark.usefixtures("tiny_table")


def write_record(run, results):
    (path,) = write_records(run, results)
    return path


def run_of(name, folder, budget=1.0, **changes):
    recipe = replace(RECIPES[name], seed=3, **changes)
    return train(recipe, name=name, budget=budget, out=folder / "run", device="cpu")


def test_record_holds_the_run(tmp_path):
    run = run_of(STATIC, tmp_path, budget=0.5)
    edit(run.path / "environment.json", threads=2)
    path = write_record(run, tmp_path / "results")
    assert path == tmp_path / "results" / STATIC / "0.5" / "3.json"
    content = json.loads(path.read_text())
    facts = {"recipe": STATIC, "budget": 0.5, "seed": 3, "config": recipe_to_json(run.recipe)}
    facts |= {"data": {"name": "embedded", "digest": make_dataset().digest, "classes": 4}}
    assert content.items() >= facts.items()
    assert content["metrics"] == read_lines(run.metrics)
    assert set(content["code"]) == {"version", "commit", "dirty"}
    assert content["environment"]["torch"] == torch.__version__
    summary = json.loads(run.summary.read_text())
    digest = weights_digest(run.checkpoints / "step-00000003")
    assert content["checkpoint"] == {"which": "last", "step": 3, "weights": digest}
    left = ("test_correct", "test_class_accuracies", "command")
    kept = {key: value for key, value in summary.items() if key not in left}
    assert content["summary"] == kept | {"macs": macs(run.build(similarity=None), 1, 8, 8)}
    (record,) = read_records(tmp_path / "results", STATIC, 0.5)
    assert record.learned == content["learned"]
    network, plain = load(run), fold(load(run))
    for name, facts in record.learned.items():
        layer, folded = network.get_submodule(name), plain.get_submodule(name)
        m = layer.similarity.matrix().detach()
        torch.testing.assert_close(torch.tensor(facts["m"]), m, rtol=1e-3, atol=0)
        values = torch.linalg.svdvals(folded.weight.detach().flatten(1))
        torch.testing.assert_close(torch.tensor(facts["spectrum"]), values, rtol=1e-2, atol=1e-4)
    assert len(record.learned) == 9
    runtime = choose_runtime("cpu", "fp32")
    scores = evaluate_model(load(run), make_dataset().test, run.preprocess, runtime)
    assert torch.equal(record.correct, scores.correct)
    assert record.recipe == run.recipe


def test_records_name_no_folder_of_the_machine(tmp_path):
    run = run_of(PLAIN, tmp_path)
    environment = run.path / "environment.json"
    resumed = [json.loads(environment.read_text()) | {"command": f"nsim {tmp_path}"}]
    edit(environment, command=f"nsim train {tmp_path}", resumed=resumed)
    assert str(tmp_path) not in write_record(run, tmp_path / "results").read_text()


@pytest.mark.parametrize(
    ("began", "resumed", "code"),
    [
        ("abc", ["abc"], {"commit": "abc", "dirty": False}),
        ("abc-dirty", [], {"commit": "abc", "dirty": True}),
        ("abc", ["abd-dirty"], {"commit": "abc", "dirty": True, "resumed": ["abd"]}),
        ("abc", ["abd", "abc", "abd"], {"commit": "abc", "dirty": False, "resumed": ["abd"]}),
        (None, [None], {"commit": None, "dirty": False}),
    ],
)
def test_code_is_that_of_all_processes_and_dirty_if_any_was(tmp_path, began, resumed, code):
    run = run_of(PLAIN, tmp_path)
    environment = run.path / "environment.json"
    edit(environment, commit=began, resumed=[{"commit": commit} for commit in resumed])
    content = json.loads(write_record(run, tmp_path / "results").read_text())
    assert content["code"] == code | {"version": ns.__version__}


def test_machine_settings_are_free(tmp_path):
    settings = {"threads": 1, "checkpoint_seconds": 9.5, "channels_last": False}
    run = run_of(PLAIN, tmp_path, precision="bf16", **settings)
    (record,) = read_records(write_record(run, tmp_path / "results").parents[2], PLAIN, 1.0)
    assert (record.recipe, record.precision) == (run.recipe, "bf16 (scores: fp32)")


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 0.05}, {"steps": 7}, {"drops": (3,)}, {"width": 0.2}, {"crop": 2, "validation": 8},
        {"steps": 3, "drops": (2,)},  # as another budget has them
    ],
)  # fmt: skip
def test_overridden_fields_never_become_a_record(tmp_path, changes, capsys):
    run = run_of(PLAIN, tmp_path, **changes)
    with pytest.raises(RunError, match=f"it overrides {', '.join(changes)}; only runs with"):
        write_record(run, tmp_path / "results")
    assert cli.main(["record", str(run.path), "--results", str(tmp_path / "results")]) == 1
    assert "it overrides" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_record_is_never_overwritten(tmp_path, capsys):
    run = run_of(PLAIN, tmp_path)
    arguments = ["record", str(run.path), "--results", str(tmp_path / "results")]
    assert cli.main(arguments) == 0
    path = tmp_path / "results" / PLAIN / "1" / "3.json"
    assert capsys.readouterr().out == f"{path}\n"
    before = path.read_bytes()
    assert cli.main(arguments) == 0
    assert path.read_bytes() == before
    summary = json.loads(run.summary.read_text())
    other = pack_correct(~unpack_correct(summary["test_correct"]))
    edit(run.summary, test_correct=other)
    assert cli.main(arguments) == 1
    assert "3.json exists already with another outcome; delete it" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_runs_of_no_recipe_and_unfinished_runs_have_no_record(tmp_path):
    custom = train(RECIPES[PLAIN], out=tmp_path / "custom", device="cpu")
    with pytest.raises(RunError, match="is not a run of a named recipe, but of 'custom'"):
        write_record(custom, tmp_path / "results")
    run = run_of(PLAIN, tmp_path)
    run.summary.unlink()
    with pytest.raises(RunError, match="is not finished; nsim train --resume"):
        write_record(run, tmp_path / "results")


@pytest.mark.parametrize("read", [read_record, read_evaluation, read_costs])
def test_json_that_is_nested_without_end_is_named(tmp_path, read):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=f"{path}.*nested too deeply"):
        read(path)
