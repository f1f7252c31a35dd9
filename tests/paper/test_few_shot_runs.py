"""`nsim reproduce 6`: nothing is done twice, and every run starts where it should."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from launches import launched_here
from tiny_classes import TINY, make_split, tiny_classes_world
from tiny_results import edit

from neural_similarity.lab import cli, data, session
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks.few_shot import evaluation
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.checkpoint import weights_digest
from neural_similarity.lab.train.run import find_checkpoint, usual_checkpoint
from neural_similarity.nn import Diagonal, Static
from neural_similarity_paper.tables import TABLES, Scope, kinds, missing_lines, wanted_records
from neural_similarity_paper.tables.kinds import Key
from neural_similarity_paper.tables.missing import require_same_run
from neural_similarity_paper.tables.records import overridden_fields
from neural_similarity_paper.tables.rows import Panel, Row, Table

NAMING = replace(TINY, select_on="val")
META = replace(NAMING, method="meta-nsn", similarity=Static(Diagonal()), steps=2, drops=())
SMALL = replace(NAMING, model="resnet12", width=0.05)
OWN = {
    "mini-cnn4": NAMING,
    "mini-resnet12": SMALL,
    "mini-tadam": replace(SMALL, method="tadam", steps=2, drops=()),
    "mini-meta-static": META,
    "mini-anil": replace(NAMING, method="anil", steps=2, drops=()),
}
SIZES = TaskSizes(ways=2, shots=2, queries=3)
ROWS = (
    Row("meta-learned", "mini-meta-static", method="meta-nsn", shots=2),
    Row("fine-tuning", "mini-cnn4", method="fine-tuning", shots=2),
    Row("nearest neighbour", "mini-cnn4", method="nearest-neighbour", shots=2),
    Row("ANIL", "mini-anil", method="anil", shots=2),
    Row("TADAM", "mini-tadam", method="tadam", shots=2),
)


@pytest.fixture(scope="module", autouse=True)
def world():
    with tiny_classes_world(), launched_here(), pytest.MonkeyPatch.context() as patch:
        for name, recipe in OWN.items():
            patch.setitem(RECIPES, name, recipe)
        patch.setitem(TABLES, "6", Table("Tiny", (Panel("tiny", "accuracy", ROWS),)))
        patch.setattr(kinds, "TABLE_TASKS", SIZES)
        yield


def reproduce(folder, *args):
    options = ["--seeds", "4", "--shots", "2", "--tasks", "5", "--device", "cpu", *args]
    folders = ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    return cli.main(["reproduce", "6", *options, *folders])


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    assert world is None
    folder = tmp_path_factory.mktemp("table")
    assert reproduce(folder) == 0
    return folder


def records(folder):
    results = folder / "results/fewshot"
    return {str(path.relative_to(results)): path for path in results.rglob("*.json")}


def test_runs_start_from_those_on_the_same_classes(done):
    """Records name no folder of the machine."""
    for suffix, classes in (("", "train"), ("-all", "train+val")):
        folder = done / "runs" / f"mini-tadam-1-seed4{suffix}"
        environment = json.loads((folder / "environment.json").read_text())
        facts = {"recipe": "mini-resnet12", "seed": 4, "classes": classes, "budget": 1.0}
        assert environment["start"].items() >= facts.items()
        (path,) = (p for n, p in records(done).items() if f"tadam.{classes}." in n)
        start = session.open_run(done / "runs" / f"mini-resnet12-1-seed4{suffix}")
        digest = {"weights": weights_digest(find_checkpoint(start, "last" if suffix else "best"))}
        assert json.loads(path.read_text())["start"] == facts | digest
        assert str(done) not in path.read_text()
        fields = json.loads((folder / "config.json").read_text())["fields"]
        assert fields["start"] == str(done / "runs" / f"mini-resnet12-1-seed4{suffix}")


def test_a_start_is_known_by_its_weights_in_its_own_records(done):
    found = {name: json.loads(path.read_text()) for name, path in records(done).items()}
    (ours,) = (one for name, one in found.items() if "meta-nsn." in name)
    weights = {name: one["checkpoint"]["weights"] for name, one in found.items()}
    same = {name for name, digest in weights.items() if digest == ours["start"]["weights"]}
    methods = {name.split("/")[-1].split(".2w")[0] for name in same}
    assert methods == {"fine-tuning.train", "nearest-neighbour.train"}


def refuse(*_, **__):
    raise AssertionError("done again")


def test_every_row_has_its_records_and_nothing_is_done_again(done, monkeypatch, capsys):
    """What was evaluated is recorded without the data, too."""
    trained = ("mini-tadam/1/tadam", "mini-cnn4/1/fine-tuning", "mini-cnn4/1/nearest-neighbour")
    names = [f"{name}.{classes}" for name in trained for classes in ("train", "train+val")]
    names = [f"{name}.2w2s3q.test-5-0.running.4.json" for name in names]
    for name in ("mini-anil/1/anil", "mini-meta-static/1/meta-nsn"):
        names.append(f"{name}.train.2w2s3q.test-5-0.support.4.json")
    assert set(records(done)) == set(names)
    for place, name in ((session, "train"), (Evaluator, "__call__"), (data, "load_split")):
        monkeypatch.setattr(place, name, refuse)
    assert reproduce(done) == 0
    assert "budget 1: 0 of 8 records missing" in capsys.readouterr().err
    for lost in (path for name, path in records(done).items() if re.search("nearest|anil", name)):
        before = lost.read_bytes()
        lost.unlink()
        assert reproduce(done) == 0
        assert lost.read_bytes() == before


def test_only_what_is_missing_is_evaluated(done, monkeypatch, capsys):
    evaluated, real = [], Evaluator.__call__

    def noted(evaluator, run, *args):
        evaluated.append((run.path.name, evaluator.method))
        return real(evaluator, run, *args)

    monkeypatch.setattr(Evaluator, "__call__", noted)
    monkeypatch.setattr(session, "train", refuse)
    for path in (done / "runs/mini-cnn4-1-seed4/evaluations").glob("nearest*"):
        path.unlink()
    for name, path in records(done).items():
        if "nearest-neighbour.train." in name:
            path.unlink()
    assert reproduce(done) == 0
    assert "1 of 8 records missing" in capsys.readouterr().err
    assert evaluated == [("mini-cnn4-1-seed4", "nearest-neighbour")]


def test_lines_are_printed_in_stages(tmp_path, capsys):
    only = ("--only", "mini-c*,mini-anil")
    shown = {}
    for stage in ("1", "2"):
        assert reproduce(tmp_path, "--print", "--stage", stage, *only) == 0
        told = capsys.readouterr()
        shown[stage] = [re.findall("nsim ([a-z]+) ", line) for line in told.out.splitlines()]
    assert "5 of 5 records missing; runs: 3, in 2 stages" in told.err
    assert shown == {
        "1": [["train", *["evaluate"] * 2, "record"], ["train", "evaluate", "record"]],
        "2": [["train", *["evaluate"] * 2, "record"]],
    }
    assert not list(tmp_path.iterdir())


def trainings(wanted, scope):
    lines = missing_lines(wanted, scope)
    return {line.folder.name: line.stage for line in lines if line.commands[0][0] == "train"}


def test_lines_are_of_the_trainings_that_are_missing(done, tmp_path):
    folders = {"results": tmp_path, "runs": tmp_path, "data": tmp_path}
    scope = Scope(budget=1.0, **folders)
    wanted = wanted_records(TABLES["6"].choose_rows(["mini-tadam"], ()), [4], 5)
    assert trainings(wanted, scope) == {
        "mini-resnet12-1-seed4": 1,
        "mini-tadam-1-seed4": 2,
        "mini-resnet12-1-seed4-all": 2,
        "mini-tadam-1-seed4-all": 3,
    }
    assert not trainings(wanted, replace(scope, runs=done / "runs"))
    shutil.copytree(done / "runs/mini-tadam-1-seed4", tmp_path / "mini-tadam-1-seed4")
    (tmp_path / "mini-tadam-1-seed4/summary.json").unlink()
    assert trainings(wanted[:1], scope) == {"mini-tadam-1-seed4": 1}


def test_another_run_in_the_folder_is_refused(done):
    """Not on validation classes, as the folder says."""
    run = session.open_run(done / "runs/mini-cnn4-1-seed4")
    told = "holds another run .* at budget 1: it differs in whether it is retrained;"
    with pytest.raises(RunError, match=told):
        require_same_run(run, Key("mini-cnn4", 4, retrained=True), 1.0)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"seed": 5}, ["start"]),
        ({"budget": 0.5, "config": {"steps": 3, "drops": [2]}}, []),
        ({"budget": 0.5}, ["start"]),
        ({"classes": "train+val"}, ["start"]),
        ({"recipe": "mini-cnn4"}, ["start"]),
        ({"config": {"lr": 0.5}}, ["start"]),
        ({"config": {"steps": 1, "drops": []}}, ["start"]),
        ({"classes": "train+val", "config": {}}, []),
        ({"classes": "train+val", "config": {"steps": 99}}, ["start"]),
    ],
)
def test_a_start_is_of_its_recipe_and_the_same_seed_and_classes(done, tmp_path, changes, fields):
    """One on all classes has the steps that were chosen."""
    suffix = "-all" if {"classes", "config"} <= changes.keys() else ""
    folder = shutil.copytree(done / f"runs/mini-tadam-1-seed4{suffix}", tmp_path / "run")
    path = folder / "environment.json"
    content = json.loads(path.read_text())
    config = content["start"]["config"] | changes.get("config", {})
    content["start"] |= changes | {"config": config}
    path.write_text(json.dumps(content))
    assert overridden_fields(session.open_run(folder)) == fields


@pytest.mark.parametrize(
    ("data", "message"),
    [("other", "must be of the data at hand"), (None, "is not finished; nsim train --resume")],
)
def test_nothing_is_tried_of_what_does_not_fit(done, tmp_path, data, message):
    """Tasks of other data, or half a run."""
    folder = shutil.copytree(done / "runs/mini-cnn4-1-seed4-all", tmp_path / "run")
    run, split = session.open_run(folder), make_split()
    if not data:
        run.summary.unlink()
    tasks = draw_tasks(split.test, SIZES, 6, seed=0, data=data or split.digest, part="test")
    before = set(folder.rglob("*"))
    with pytest.raises((ValueError, RunError), match=message):
        Evaluator(device="cpu")(run, split, tasks)
    assert set(folder.rglob("*")) == before


def test_an_evaluation_does_not_go_on_in_another_precision(done, tmp_path, monkeypatch):
    """It computes in float32, whatever the precision of training."""
    folder = shutil.copytree(done / "runs/mini-anil-1-seed4", tmp_path / "run")
    shutil.rmtree(folder / "evaluations")
    edit(folder / "environment.json", precision="bf16")
    run, split, told = session.open_run(folder), make_split(), []

    def note(*_, runtime, course, **__):
        told.append((runtime.precision, len(course.done)))
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_method", note)
    tasks = draw_tasks(split.test, SIZES, 5, seed=0, data=split.digest, part="test")
    best = find_checkpoint(run, usual_checkpoint(run))
    what = {"tasks": tasks.digest, "checkpoint": best.name}
    name = "anil.train.2w2s3q.test-5-0.support.4.partial"
    for precision in ("bf16", "fp32"):
        content = {"of": what | {"precision": precision}, "seconds": 1.0, "correct": [6, 6]}
        (folder / "evaluations").mkdir(exist_ok=True)
        (folder / "evaluations" / name).write_text(json.dumps(content))
        with pytest.raises(KeyboardInterrupt):
            Evaluator(device="cpu")(run, split, tasks)
    assert told == [("fp32", 0), ("fp32", 2)]


def test_a_transductive_evaluation_stands_in_for_none(done, tmp_path, capsys):
    run = shutil.copytree(done / "runs/mini-anil-1-seed4", tmp_path / "runs/mini-anil-1-seed4")
    sizes = ["--ways", "2", "--shots", "2", "--queries", "3", "--tasks", "5"]
    assert cli.main(["evaluate", str(run), *sizes, "--batch-norm", "transductive"]) == 0
    for path in (run / "evaluations").glob("*.support.*"):
        path.unlink()
    assert reproduce(tmp_path, "--only", "mini-anil") == 0
    assert "1 of 1 records missing" in capsys.readouterr().err
    assert any(".support." in name for name in records(tmp_path))
