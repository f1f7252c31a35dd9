"""`nsim fewshot reproduce`: nothing is done twice, and every run starts where it should."""

import json
import shutil
from dataclasses import replace

import pytest
from tiny_classes import TINY, tiny_classes_world

from neural_similarity import cli
from neural_similarity.fewshot import session
from neural_similarity.nn import Diagonal, Static
from neural_similarity.paper import few_shot_runs, few_shot_table
from neural_similarity.paper.few_shot_table import FewShotRow
from neural_similarity.recipes import FEW_SHOT_RECIPES

NAMING = replace(TINY, select_on="val")
META = replace(NAMING, method="meta-nsn", similarity=Static(Diagonal()), steps=2, drops=())
SMALL = replace(NAMING, model="resnet12", width=0.05)
RECIPES = {
    "mini-cnn4": NAMING,
    "mini-resnet12": SMALL,
    "mini-tadam": replace(SMALL, method="tadam", steps=2, drops=()),
    "mini-meta-static": META,
    "mini-anil": replace(NAMING, method="anil", steps=2, drops=()),
}
ROWS = (
    FewShotRow("meta-learned", "mini-meta-static", "meta-nsn"),
    FewShotRow("fine-tuning", "mini-cnn4", "fine-tuning"),
    FewShotRow("nearest neighbour", "mini-cnn4", "nearest-neighbour"),
    FewShotRow("ANIL", "mini-anil", "anil"),
    FewShotRow("TADAM", "mini-tadam", "tadam"),
)


@pytest.fixture(scope="module", autouse=True)
def world():
    with tiny_classes_world(), pytest.MonkeyPatch.context() as patch:
        for name, recipe in RECIPES.items():
            patch.setitem(FEW_SHOT_RECIPES, name, recipe)
        table = {"PANELS": {"tiny": ROWS}, "WAYS": 2, "QUERIES": 3, "SHOTS": (2,)}
        for name, value in table.items():
            patch.setattr(few_shot_table, name, value)
        yield


def reproduce(folder, *args):
    options = ["--seeds", "4", "--shots", "2", "--tasks", "5", "--device", "cpu", *args]
    folders = ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    return cli.main(["fewshot", "reproduce", *options, *folders])


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    assert world is None
    folder = tmp_path_factory.mktemp("table")
    assert reproduce(folder) == 0
    return folder


def records(folder):
    results = folder / "results/fewshot"
    return {str(path.relative_to(results)): path for path in results.rglob("*.json")}


def test_every_row_is_trained_on_its_classes_evaluated_and_recorded(done):
    methods = {"mini-tadam": ["tadam"], "mini-cnn4": ["fine-tuning", "nearest-neighbour"]}
    names = {
        f"{name}/1/{method}.{classes}.2w2s3q.test-5-0.running.4.json"
        for name, own in methods.items()
        for method in own
        for classes in ("train", "train+val")
    }
    alone = {"mini-anil": "anil", "mini-meta-static": "meta-nsn"}
    names |= {f"{n}/1/{m}.train.2w2s3q.test-5-0.support.4.json" for n, m in alone.items()}
    assert set(records(done)) == names


def test_runs_start_from_those_on_the_same_classes(done):
    for suffix, classes in (("", "train"), ("-all", "train+val")):
        folder = done / "runs" / f"mini-tadam-1-seed4{suffix}"
        environment = json.loads((folder / "environment.json").read_text())
        assert environment["start"] == {"recipe": "mini-resnet12", "seed": 4, "classes": classes}
        fields = json.loads((folder / "config.json").read_text())["fields"]
        assert fields["start"] == str(done / "runs" / f"mini-resnet12-1-seed4{suffix}")


def refuse(*_, **__):
    raise AssertionError("done again")


def test_nothing_is_done_again(done, monkeypatch, capsys):
    monkeypatch.setattr(session, "train", refuse)
    monkeypatch.setattr(few_shot_runs, "evaluate_run", refuse)
    assert reproduce(done) == 0
    assert "table 6: 0 to evaluate, 8 recorded" in capsys.readouterr().out
    lost = next(path for name, path in records(done).items() if "nearest" in name)
    before = lost.read_bytes()
    lost.unlink()
    assert reproduce(done) == 0
    assert lost.read_bytes() == before


def test_only_what_is_missing_is_evaluated(done, monkeypatch, capsys):
    evaluated, real = [], few_shot_runs.evaluate_run

    def noted(run, *args, **options):
        evaluated.append((run.path.name, options["method"]))
        return real(run, *args, **options)

    monkeypatch.setattr(few_shot_runs, "evaluate_run", noted)
    monkeypatch.setattr(session, "train", refuse)
    for path in (done / "runs/mini-cnn4-1-seed4/evaluations").glob("nearest*"):
        path.unlink()
    for name, path in records(done).items():
        if "nearest-neighbour.train." in name:
            path.unlink()
    assert reproduce(done) == 0
    assert "1 to evaluate, 7 recorded" in capsys.readouterr().out
    assert evaluated == [("mini-cnn4-1-seed4", "nearest-neighbour")]


def test_a_plan_is_only_shown(tmp_path, capsys):
    assert reproduce(tmp_path, "--dry-run", "--only", "mini-c*,mini-anil") == 0
    told = capsys.readouterr().out
    assert "5 to evaluate, 0 recorded" in told
    assert "mini-cnn4 seed 4 on train+val: fine-tuning, 2 shots" in told
    assert "mini-anil seed 4 on train: anil, 2 shots" in told
    runs = ["mini-cnn4-1-seed4", "mini-cnn4-1-seed4-all", "mini-anil-1-seed4"]
    assert f"to train for them, of {tmp_path / 'runs'}: {', '.join(runs)}" in told
    assert not list(tmp_path.iterdir())


def test_a_plan_tells_the_trainings_that_are_missing(done, tmp_path):
    work = few_shot_runs.Reproduction(
        budget=1.0,
        tasks=5,
        results=tmp_path,
        runs=tmp_path,
        data_root=tmp_path,
    )
    wanted = few_shot_runs.wanted_evaluations([4], [2], ["mini-tadam"])
    everything = [
        f"mini-{name}-1-seed4{suffix}"
        for name, suffix in (
            ("resnet12", ""),
            ("tadam", ""),
            ("resnet12", "-all"),
            ("tadam", "-all"),
        )
    ]
    assert [path.name for path in work.trainings(wanted)] == everything
    assert not replace(work, runs=done / "runs").trainings(wanted)
    shutil.copytree(done / "runs/mini-tadam-1-seed4", tmp_path / "mini-tadam-1-seed4")
    (tmp_path / "mini-tadam-1-seed4/summary.json").unlink()
    assert [path.name for path in work.trainings(wanted[:1])] == ["mini-tadam-1-seed4"]


def test_another_run_in_the_folder_is_refused(tmp_path, capsys):
    other = replace(NAMING, seed=4, lr=0.5)
    folder = tmp_path / "runs" / "mini-cnn4-1-seed4"
    session.train(other, name="mini-cnn4", out=folder, device="cpu")
    assert reproduce(tmp_path, "--only", "mini-cnn4") == 1
    assert "holds another run than mini-cnn4 with seed 4 at budget 1: it differs in lr" in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "mini-cnn5"], "`only` must match a recipe of the table (mini-meta-static, "),
        (["--shots", "3"], "`shots` must be among (2,), got 3"),
        (["--tasks", "1"], "`tasks` must be at least 2, got 1"),
    ],
)
def test_wrong_command_lines(tmp_path, capsys, words, message):
    assert reproduce(tmp_path, *words) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_another_run_that_fails_keeps_none_from_being_done(tmp_path, monkeypatch, capsys):
    real, calls = session.train, []

    def diverge(recipe, **options):
        calls.append(options["name"])
        if options["name"] == "mini-cnn4":
            raise FloatingPointError("the loss is not finite")
        return real(recipe, **options)

    monkeypatch.setattr(session, "train", diverge)
    assert reproduce(tmp_path, "--only", "mini-cnn4,mini-meta*,mini-anil") == 1
    assert calls == ["mini-cnn4", "mini-cnn4", "mini-anil"]  # For meta-learning, for itself.
    assert [path.parts[-3] for path in records(tmp_path).values()] == ["mini-anil"]
    told = capsys.readouterr().err
    assert told.count("the loss is not finite") == 5


def test_two_calls_do_not_train_one_run(tmp_path, capsys):
    assert reproduce(tmp_path, "--only", "mini-anil") == 0
    capsys.readouterr()
    for path in records(tmp_path).values():
        path.unlink()
    with few_shot_runs._alone(tmp_path / "runs" / "mini-anil-1-seed4"):
        assert reproduce(tmp_path, "--only", "mini-anil") == 1
    assert "another process works on" in capsys.readouterr().err
    assert reproduce(tmp_path, "--only", "mini-anil") == 0


def test_a_transductive_evaluation_stands_in_for_none(tmp_path, capsys):
    assert reproduce(tmp_path, "--only", "mini-anil") == 0
    (own,) = records(tmp_path).values()
    own.unlink()
    run = tmp_path / "runs" / "mini-anil-1-seed4"
    sizes = ["--ways", "2", "--shots", "2", "--queries", "3", "--tasks", "5"]
    words = ["fewshot", "evaluate", str(run), *sizes, "--batch-norm", "transductive"]
    assert cli.main(words) == 0
    capsys.readouterr()
    for path in (run / "evaluations").glob("*.support.*"):
        path.unlink()
    assert reproduce(tmp_path, "--only", "mini-anil") == 0
    assert "1 to evaluate" in capsys.readouterr().out
    assert own.exists()


def test_runs_on_other_classes_than_their_folder_says_are_refused(tmp_path, capsys):
    folder = tmp_path / "runs" / "mini-cnn4-1-seed4-all"
    session.train(replace(NAMING, seed=4), name="mini-cnn4", out=folder, device="cpu")
    assert reproduce(tmp_path, "--only", "mini-cnn4") == 1
    assert "it differs in train_on" in " ".join(capsys.readouterr().err.split())
