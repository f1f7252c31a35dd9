import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_classes import TINY as SMALL
from tiny_classes import make_split, tiny_classes_world
from tiny_results import edit

from neural_similarity.lab import cli, session
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation, Evaluator
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.recipe import recipe_to_json, scale_recipe
from neural_similarity.lab.train.statistics import by_task
from neural_similarity_paper import tables
from neural_similarity_paper.tables import TABLES, kinds, make_report, records
from neural_similarity_paper.tables import rows as table_rows

pytestmark = pytest.mark.usefixtures("tiny_table")
SIZES = TaskSizes(ways=2, shots=2, queries=3)
RECORD = Path("fewshot/mini-cnn4/1/fine-tuning.train.2w2s3q.test-10-0.running.1.json")
METHODS = ("fine-tuning", "nearest neighbour")
OWN = {"mini-cnn4": SMALL, "mini-proto": replace(SMALL, method="proto")}


@pytest.fixture(scope="module", autouse=True)
def _code_without_local_changes():
    """Whatever this checkout has: records, and so tables, tell of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neural_similarity.lab.train.environment.checkout_commit", lambda: "0" * 40)
        yield


@pytest.fixture(scope="module")
def world():
    with tiny_classes_world(), pytest.MonkeyPatch.context() as patch:
        for name, recipe in OWN.items():
            patch.setitem(RECIPES, name, recipe)
        yield


def evaluated(
    folder, name, method, seed=0, *, count=10, task_seed=0, part="test", sizes=SIZES, **changes
):
    """A run that was trained and evaluated on the same ten tasks, or on others."""
    path = folder / f"{name}-{seed}"
    recipe = replace(OWN[name], seed=seed, **changes)
    run = session.open_run(path) if path.exists() else None
    run = run or session.train(recipe, name=name, out=path, device="cpu")
    split = make_split()
    images = split.images_of_part(part)
    tasks = draw_tasks(images, sizes, count, seed=task_seed, data=split.digest, part=part)
    Evaluator(method=method, device="cpu")(run, split, tasks)
    return run


@pytest.fixture(scope="module")
def results(world, tmp_path_factory):
    assert world is None
    folder = tmp_path_factory.mktemp("few-shot")
    for seed in (0, 1):
        for method in ("fine-tuning", "nearest-neighbour"):
            run = evaluated(folder, "mini-cnn4", method, seed)
        tables.write_records(run, folder / "results")
    tables.write_records(evaluated(folder, "mini-proto", "proto"), folder / "results")
    return folder / "results"


def accuracies(record):
    return record.evaluation.accuracies


def difference(ours, base):
    """Mean and reach of the differences, task by task, as a table has them."""
    change = by_task(100 * ours - 100 * base)
    return f"{change.mean:+.2f} ± {change.half_width:.2f}".replace("-", "−")


def read(results, recipe, method):
    found = records.read_records(results, recipe, 1.0)
    return [one for one in found if one.evaluation.method == method]


def copied(source, results, name, budget, pattern="*.json"):
    """Copies of records in a folder, as of another recipe or budget."""
    config = recipe_to_json(scale_recipe(SMALL, float(budget)))
    folder = results / "fewshot" / name / budget
    folder.mkdir(parents=True)
    for path in source.glob(pattern):
        content = json.loads(path.read_text())
        content |= {"recipe": name, "budget": float(budget)}
        content["config"] |= {field: config[field] for field in ("steps", "drops")}
        (folder / path.name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "mini-proto"}, "holds fine-tuning.train.2w2s3q.test-10-0.running.1 of mini-p"),
        ({"budget": 0.5}, "of mini-cnn4, budget 0.5; move it there or delete it"),
        ({"config": {"seed": 2}}, "fine-tuning.train.2w2s3q.test-10-0.running.2 of mini-cnn4"),
        ({"config": {"lr": 0.1, "threads": 3}}, r"than mini-cnn4 has now \(lr\); delete it"),
        ({"start": {"recipe": "mini-cnn4"}}, r"than mini-cnn4 has now \(start\)"),
        ({"retrained": {"step": 2, "growth": 1.4}}, r"has now \(steps, drops, train_on\)"),
    ],
)
def test_records_of_other_places_or_settings_are_refused(results, tmp_path, changes, message):
    copied((results / RECORD).parent, tmp_path, "mini-cnn4", "1", RECORD.name)
    path = tmp_path / RECORD
    content = json.loads(path.read_text())
    config = content["config"] | changes.get("config", {})
    path.write_text(json.dumps(content | changes | {"config": config}))
    with pytest.raises(ValueError, match=message):
        records.read_records(tmp_path, "mini-cnn4", 1.0)


def test_records_tell_every_task(results):
    path = results / RECORD
    content = json.loads(path.read_text())
    assert {"code", "environment", "data", "config", "training", "tasks"} <= content.keys()
    one = records.read_record(path)
    assert one.evaluation.accuracies.shape == (10,)
    right = by_task(one.evaluation.accuracies)
    assert (right.mean, right.half_width) == (one.summary["accuracy"], one.summary["reach"])
    assert one.recipe.seed == one.seed == 1
    assert one.evaluation.tasks["count"] == 10
    assert one.evaluation.statistics == "running"
    wrong = [content | {"summary": content["summary"] | {"accuracy": 0.123}}, {}]
    for changed in (*wrong, content | {"correct": content["correct"] | {"tasks": 11}}):
        path = results.parent / "damaged.json"
        path.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=r"damaged.json cannot be read as a run record"):
            records.read_record(path)


@pytest.fixture
def tiny_table(monkeypatch):
    """Table 6 of tasks as small as ours."""
    monkeypatch.setattr(kinds, "TABLE_TASKS", SIZES)
    entry = tomllib.loads(table_rows.TABLES_FILE.read_text("utf-8"))["6"]
    monkeypatch.setitem(TABLES, "6", table_rows.make_table(entry | {"shots": (2, 1)}))


def few_shot_markdown(results, budget=None):
    return tables.to_markdown(make_report(TABLES["6"], budget=budget, results=results))


def lines_of(text):
    """The cells of every row of two shots."""
    lines = [[c.strip() for c in x.split("|")[1:-1]] for x in text.splitlines() if "|" in x]
    return [cells for cells in lines if cells[2] == "2"]


def rows(results, budget=None):
    """Those by label."""
    return {cells[0]: cells for cells in lines_of(few_shot_markdown(results, budget))}


def test_the_table_has_means_intervals_and_paired_differences(results, tmp_path):
    found = rows(results)
    base = read(results, "mini-cnn4", "fine-tuning")
    near = read(results, "mini-cnn4", "nearest-neighbour")
    assert len(base) == len(near) == 2
    mean, before = ((accuracies(one) + accuracies(two)) / 2 for one, two in (near, base))
    ours = by_task(100 * mean)
    row = found["nearest neighbour"]
    assert row[4] == f"{ours.mean:.2f} ± {ours.half_width:.2f}"
    assert row[5] == difference(mean, before)
    for record in (*near, base[0]):
        place = tmp_path / record.path.relative_to(results)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(record.path.read_bytes())
    row = rows(tmp_path)["nearest neighbour"]
    assert row[5] == f"{difference(accuracies(near[0]), accuracies(base[0]))} (n = 1)"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("task_seed", "changes", "compared"),
    [(0, {}, True), (1, {}, False), (0, {"data": {"name": "embedded", "digest": "d"}}, False)],
    ids=["same", "other seed", "other data"],
)
def test_a_shorter_list_of_a_seed_is_compared_on_its_tasks(tmp_path, task_seed, changes, compared):
    evaluated(tmp_path, "mini-cnn4", "fine-tuning")
    run = evaluated(tmp_path, "mini-cnn4", "nearest-neighbour", count=6, task_seed=task_seed)
    (path,) = [p for p in tables.write_records(run, tmp_path) if "nearest" in p.name]
    edit(path, **changes)
    methods = ("fine-tuning", "nearest-neighbour")
    base, near = (accuracies(read(tmp_path, "mini-cnn4", method)[0]) for method in methods)
    row = rows(tmp_path)["nearest neighbour"]
    assert row[5] == (difference(near, base[:6]) if compared else "")


@pytest.mark.usefixtures("world")
def test_of_evaluations_the_table_has_that_of_most_test_tasks(tmp_path):
    others = [
        {"count": 4},
        {"count": 4, "task_seed": 1},  # Another list, in a line of its own.
        {"count": 30, "part": "val"},
        {"count": 30, "sizes": replace(SIZES, queries=1)},
        {"count": 30, "sizes": replace(SIZES, shots=1)},
        {"count": 30, "sizes": replace(SIZES, ways=3), "part": "test"},
    ]
    for facts in ({}, *others):
        run = evaluated(tmp_path, "mini-cnn4", "fine-tuning", **facts)
    paths = tables.write_records(run, tmp_path)
    assert len(paths) == len(set(paths)) == 1 + len(others)
    name = "fine-tuning.train.2w2s3q.test-10-0.running.0.json"
    wanted = records.read_record(paths[0].with_name(name))
    text = few_shot_markdown(tmp_path)
    lines = [cells for cells in lines_of(text) if cells[0] == "fine-tuning"]
    assert [cells[13] for cells in lines] == ["10", "4"]
    ours = by_task(100 * accuracies(wanted))
    assert lines[0][4] == f"{ours.mean:.2f} ± {ours.half_width:.2f}"
    assert text.count("| fine-tuning |") == 3  # Of two shots and of one.


def test_a_row_keeps_its_budget_where_another_has_a_larger_one(results, tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "mini-cnn4-64", SMALL)
    source = results / "fewshot/mini-cnn4/1"
    for budget, pattern in (("0.25", "*.json"), ("1", "fine-tuning.*")):
        copied(source, tmp_path, "mini-cnn4", budget, pattern)
    title = f"# {TABLES['6'].title} (reduced schedule, budget 0.25)"
    assert few_shot_markdown(tmp_path).startswith(title)
    assert [rows(tmp_path)[name][9] for name in METHODS] == ["0.25", "0.25"]
    copied(source, tmp_path, "mini-cnn4-64", "1", "fine-tuning.*")
    assert [rows(tmp_path)[name][9] for name in METHODS] == ["1", "0.25"]
    assert rows(tmp_path)["nearest neighbour"][5] == rows(results)["nearest neighbour"][5] != ""
    assert rows(tmp_path, 1.0)["nearest neighbour"][4] == "not run"


def test_what_was_not_run_is_said(tmp_path, capsys):
    assert cli.main(["table", "6", "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    shown = {cells[0]: cells[3:5] for cells in lines_of(text)}
    assert shown["dynamic NSN"] == ["71.26 ± 0.65", "not run"]
    out = tmp_path / "new" / "table.md"
    assert cli.main(["table", "6", "--results", str(tmp_path), "--out", str(out)]) == 0
    assert out.read_text() == text


@pytest.mark.usefixtures("world")
def test_a_run_without_evaluations_has_no_records(tmp_path):
    run = session.train(OWN["mini-cnn4"], name="mini-cnn4", out=tmp_path / "b", device="cpu")
    with pytest.raises(RunError, match="has no evaluations; `nsim evaluate"):
        tables.write_records(run, tmp_path)


@pytest.mark.usefixtures("world")
def test_retrained_runs_are_of_their_recipe(tmp_path):
    """Those that `retrain` made; a number of steps that nothing chose is another setting."""
    chosen = {"train_on": "train+val", "steps": 5, "drops": ()}
    run = evaluated(tmp_path / "by-hand", "mini-cnn4", "fine-tuning", **chosen)
    with pytest.raises(RunError, match="it overrides steps, drops, train_on"):
        tables.write_records(run, tmp_path / "results")
    recipe = replace(OWN["mini-cnn4"], select_on="val")
    chooses = session.train(recipe, name="mini-cnn4", out=tmp_path / "chooses", device="cpu")
    session.retrain(chooses, out=tmp_path / "mini-cnn4-0", device="cpu")
    run = evaluated(tmp_path, "mini-cnn4", "fine-tuning")
    (record,) = tables.write_records(run, tmp_path / "results")
    assert record.name == "fine-tuning.train+val.2w2s3q.test-10-0.running.0.json"
    assert records.read_records(tmp_path / "results", "mini-cnn4", 1.0)
    path = run.path / "environment.json"
    for changed in ({"step": 1, "growth": 9.0}, json.loads(path.read_text())["retrained"]):
        edit(path, retrained=changed)
        assert ("steps" in records.overridden_fields(run)) == (changed["growth"] == 9.0)


@pytest.mark.parametrize("change", ["statistics", "classes"])
def test_rows_are_compared_with_the_same_classes_and_usual_statistics(results, tmp_path, change):
    """Of the baseline there are other evaluations, where everything is wrong."""
    folder = copied(results / "fewshot/mini-cnn4/1", tmp_path, "mini-cnn4", "1")
    for one in read(tmp_path, "mini-cnn4", "fine-tuning"):
        content, summary = json.loads(one.path.read_text()), one.summary | {"accuracy": 0.0}
        statistics = "support" if change == "statistics" else one.evaluation.statistics
        wrong = {"correct": 0 * one.correct, "summary": summary, "statistics": statistics}
        other = replace(one.evaluation, **wrong)
        classes = "train+val" if change == "classes" else "train"
        content |= other.to_json() | {"config": content["config"] | {"train_on": classes}}
        path = folder / f"{other.file_name(classes, one.seed)}.json"
        path.write_text(json.dumps(content))
    found, before = (rows(r)["nearest neighbour"] for r in (tmp_path, results))
    assert found[5] == before[5] != ""


@pytest.mark.parametrize("change", ["start", "tasks", "statistics", "classes"])
def test_what_differs_in_more_than_the_seed_is_never_averaged(
    results, tmp_path, monkeypatch, change
):
    """Two seeds, the second from another budget, on other tasks, by other statistics or classes."""
    name = "mini-proto-pretrained"
    monkeypatch.setitem(RECIPES, name, OWN["mini-proto"])
    (path,) = copied(results / "fewshot/mini-proto/1", tmp_path, name, "1").iterdir()
    content = json.loads(path.read_text())
    path.unlink()
    for seed, other in enumerate(("", change)):
        classes = "train+val" if other == "classes" else "train"
        budget = 0.5 if other == "start" else 1.0
        start = {"recipe": "mini-cnn4", "seed": seed, "classes": classes, "budget": budget}
        config = content["config"] | {"seed": seed, "train_on": classes}
        facts = {"tasks": content["tasks"] | {"seed": 1, "digest": "d"}, "statistics": "support"}
        content |= {"start": start, "config": config} | {k: facts[k] for k in facts if k == other}
        stem = Evaluation.from_json(content).file_name(classes, seed)
        (path.parent / f"{stem}.json").write_text(json.dumps(content))
    ours = [cells for cells in lines_of(few_shot_markdown(tmp_path)) if cells[1] == f"`{name}`"]
    assert [cells[14] for cells in ours] == ["1", "1"]
    budgets = ["1", "1 (start: 0.5)"] if change == "start" else ["1", "1"]
    assert sorted(cells[9] for cells in ours) == budgets


def test_step_precision_and_parameters_are_those_of_all_seeds(results, tmp_path):
    folder = copied(results / "fewshot/mini-cnn4/1", tmp_path, "mini-cnn4", "1", "fine-tuning.*")
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        content["summary"]["parameters"] = 2_000_000
        if content["config"]["seed"] == 1:
            content["checkpoint"]["step"] += 4
            content["environment"]["precision"] = "bf16"
            content["summary"]["score_precision"] = "fp32"
        path.write_text(json.dumps(content))
    row = rows(tmp_path)["fine-tuning"]
    assert (row[7], row[10], row[11]) == ("2,000.0 k", "8", "bf16 (scores: fp32) and fp32")
