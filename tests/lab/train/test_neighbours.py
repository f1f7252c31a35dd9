"""The project reads, renames and deletes only names that it makes itself.

Whatever else lies in a folder that it writes to stays bit for bit and changes no result.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kills import Killed, assert_same, killed_after, outcome
from lab.train.test_checkpoint import advance, make_state
from neighbours import GONE, KINDS, NAMES, Neighbours
from neighbours import neighbours as neighbours
from PIL import Image
from reliability.works import fake_compiler
from tiny_classes import BY_TASKS
from tiny_images import TINY, tiny_world
from tiny_results import STATIC
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab import session
from neural_similarity.lab.folders import locked_folder, remove_folder
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks.few_shot.evaluation import read_evaluations
from neural_similarity.lab.train import RunError, checkpoint
from neural_similarity.lab.train.checkpoint import (
    list_checkpoints,
    newest_checkpoint,
    save_checkpoint,
    tidy,
)
from neural_similarity.ops.native import compiling
from neural_similarity_paper.tables.records import read_records, recorded_budgets

SHORT = replace(TINY, steps=8, drops=(5,), validation=16, checkpoint_every=2, evaluate_every=3)
MOST_KINDS = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])]
most_kinds = pytest.mark.parametrize("neighbours", MOST_KINDS, indirect=True)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saving_touches_no_neighbour(neighbours, tmp_path):
    state, folder = make_state(), tmp_path / "checkpoints"
    for _ in range(3):
        advance(state)
        before = save_checkpoint(folder, state, {}, keep=2)
    neighbours.add(folder, likeness=before)
    for _ in range(3):
        assert newest_checkpoint(folder) == before
        advance(state)
        before = save_checkpoint(folder, state, {}, keep=2)
        neighbours.assert_untouched()
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000005", "step-00000006"]


def test_a_step_of_more_than_eight_digits_is_the_newest(tmp_path):
    state = make_state()
    for state.step in (99_999_999, 100_000_000, 1_000_000_000):
        path = save_checkpoint(tmp_path, state, {}, keep=2)
        assert newest_checkpoint(tmp_path) == path
    assert names_in(tmp_path) == ["step-100000000", "step-1000000000"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_lies_in_a_checkpoints_place_is_no_checkpoint_and_not_replaced(tmp_path, kind):
    state, there = make_state(), Neighbours(kind, tmp_path / "elsewhere")
    before = save_checkpoint(tmp_path / "checkpoints", state, {}, keep=2)
    there.add(tmp_path / "checkpoints", likeness=before, names=["step-00000001"])
    assert newest_checkpoint(before.parent) == before
    advance(state)
    what = "file" if kind == "file" else "link"
    with pytest.raises(RunError, match=f"step-00000001 must be a folder .*, got a {what}; move it"):
        save_checkpoint(before.parent, state, {}, keep=2)
    there.assert_untouched()
    assert list_checkpoints(before.parent) == [before]
    advance(state)
    save_checkpoint(before.parent, state, {}, keep=1)
    there.assert_untouched()


def test_leftovers_of_killed_processes_go_and_those_of_running_ones_stay(tmp_path):
    state = make_state()
    for state.step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, state, {}, keep=4)
    running = f".step-00000009.{os.getppid()}.partial"
    for name in (running, f".step-00000007.{GONE}.partial", f".step-100000000.{GONE}.partial"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    (tmp_path / f".step-00000006.{os.getpid()}.partial").touch()
    with locked_folder(tmp_path / running):  # As a process does that writes to it.
        tidy(tmp_path, step=3, keep=2)
    assert names_in(tmp_path) == [running, "step-00000002", "step-00000003", "step-00000004"]
    tidy(tmp_path / "missing", step=3, keep=2)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_after_the_last_save_leaves_no_old_checkpoint(tmp_path, monkeypatch, renamed):
    def killed(path):
        if path.name == "step-00000004":
            path.rename(path.with_name(f".{path.name}.{GONE}.partial")) if renamed else None
            raise Killed
        remove_folder(path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "remove_folder", killed)
        with pytest.raises(Killed):
            session.train(SHORT, out=tmp_path / "run", device="cpu")
    assert len(names_in(tmp_path / "run" / "checkpoints")) == 4
    run = session.resume(tmp_path / "run", device="cpu")
    assert names_in(run.checkpoints) == ["best", "step-00000006", "step-00000008"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    with tiny_world():
        run = session.train(SHORT, out=tmp_path_factory.mktemp("reference") / "run", device="cpu")
        return outcome(run, "last", "best")


@most_kinds
@pytest.mark.usefixtures("tiny")
def test_commands_touch_no_neighbour(reference, neighbours, tmp_path, monkeypatch, nsim):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "run"
    killed_after(7, lambda: session.train(SHORT, out=out, device="cpu"))
    places = (out, out.parent, out / "checkpoints", out / "checkpoints" / "best", out / "plots")
    likeness = out / "checkpoints" / "step-00000006"
    neighbours.add(*places, tmp_path / "data", likeness=likeness)
    assert_same(outcome(session.resume(out, device="cpu"), "last", "best"), reference)
    neighbours.assert_untouched()
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    neighbours.add(*places, tmp_path)
    commands = (
        *("train --resume runs/run", "evaluate runs/run", "evaluate runs/run --checkpoint best"),
        *("predict runs/run image.png", "inspect runs/run", "export runs/run --format safetensors"),
        *("export runs/run --format safetensors --out new/network.safetensors",),
        "report runs/run --out report.html",
    )
    for command in (*commands, *commands[3:]):
        nsim(command)
        neighbours.add(*places, tmp_path, tmp_path / "new")
    neighbours.assert_untouched()
    assert_same(outcome(session.open_run(out), "last", "best"), reference)


@most_kinds
@pytest.mark.usefixtures("tiny_table")
def test_records_of_other_names_are_not_read(neighbours, tmp_path, nsim):
    run, results = tmp_path / "run", tmp_path / "results"
    session.train(RECIPES[STATIC], name=STATIC, out=run, device="cpu")
    words = f"record {run} --results {results}"
    nsim(words)
    folder = results / STATIC / "1"
    likeness = folder.parent
    others = {*NAMES, "1.0", "01", "one", "nan", "inf", "-1", "0x1"} - {"1.json"}
    neighbours.add(results, folder.parent, folder, likeness=likeness, names=others)
    expected = read_records(results, STATIC, 1.0)
    assert [record.path.name for record in expected] == [f"{RECIPES[STATIC].seed}.json"]
    assert recorded_budgets(results, [STATIC]) == ["1"]
    (folder / f"{RECIPES[STATIC].seed}.json").unlink()
    nsim(words)
    nsim(f"table tiny --results {results}")
    neighbours.assert_untouched()


@most_kinds
@pytest.mark.usefixtures("tiny_classes")
def test_a_few_shot_run_and_its_evaluations_touch_no_neighbour(neighbours, tmp_path, nsim):
    out = tmp_path / "run"
    killed_after(5, lambda: session.train(BY_TASKS, out=out, device="cpu"))
    best = newest_checkpoint(out / "checkpoints" / "best")
    places = (out, out / "checkpoints", best.parent, out / "evaluations")
    neighbours.add(*places, likeness=best)
    session.resume(out, device="cpu")
    command = f"evaluate {out} --ways 2 --shots 2 --queries 3 --tasks 5 --device cpu"
    for part in ("test", "val"):
        nsim(f"{command} --part {part}")
        neighbours.add(*places)
    run = session.open_run(out)
    assert [one.tasks["part"] for one in read_evaluations(run)] == ["test", "val"]
    page = tmp_path / "page.html"
    nsim(f"report {out} --out {page}")
    assert page.read_text().count(" ± ") == 2
    neighbours.assert_untouched()


@most_kinds
def test_the_cache_of_compiled_code_keeps_its_neighbours(neighbours, tmp_path, monkeypatch):
    fake_compiler(tmp_path)
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    for _ in range(2):
        built = Path(compiling._build_library([str(tmp_path / "compiler")])._name)
        stem = built.stem.rpartition("-")[0]
        names = [f"{stem}-old.so", f"{stem}-.so", f"{built.stem}-2.so", f"{built.stem}.bak.so"]
        neighbours.add(built.parent, likeness=tmp_path, names=names)
        built.unlink()  # It is mapped: to write into it would end this process.
        built.write_bytes(b"damaged")
    neighbours.assert_untouched()
