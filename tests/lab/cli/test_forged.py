"""Run folders and results forged in every field: a page, or one line that names the file."""

from dataclasses import replace

import pytest
from forgeries import forged_json
from lab.cli.test_output import STEERING
from reliability.works import reproduce_study
from tiny_classes import BY_NAMES, tiny_classes_world
from tiny_images import TINY, tiny_world
from tiny_results import STATIC, TINY_RECIPES
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab import cli, session
from neural_similarity.lab.cli import report


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    with tiny_world():
        recipe = replace(TINY, validation=16, evaluate_every=3)
        named = session.train(recipe, out=folder / "named", device="cpu").path
    with tiny_classes_world():
        shots = session.train(BY_NAMES, out=folder / "shots", device="cpu").path
        words = ["evaluate", str(shots), "--tasks", "3", "--ways", "2", "--queries", "2"]
        assert cli.main(words) == 0
    return {"named": named, "shots": shots}


def files_of(run):
    found = [run / name for name in ("config.json", "environment.json", "summary.json")]
    return [*found, run / "metrics.jsonl", *sorted((run / "evaluations").glob("*.json"))]


def check(call, file, capsys):
    """Nothing steers a terminal; an error takes one line, which names the file."""
    code = cli.exit_code(call)
    told = capsys.readouterr()
    assert code in (0, 1)
    assert not STEERING.search(told.out + told.err)
    if code:
        assert told.err.count("\n") == 1, told.err
        assert file.name in told.err or "is a run of" in told.err
    return code


def check_forgeries(call, file, capsys, every=1):
    """Check every forgery of a file, or one in so many; some are read and some are not."""
    whole, codes = file.read_bytes(), set()
    for content in list(forged_json(file))[::every]:
        file.write_bytes(content)
        codes.add(check(call, file, capsys))
    file.write_bytes(whole)
    assert codes == {0, 1}, file


@pytest.mark.long
@pytest.mark.parametrize("kind", ["named", "shots"])
def test_a_report_of_forged_runs(runs, kind, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(report, "_draw_curves", lambda logs: drawn.append(logs) or "")

    def call():
        assert not STEERING.search(report.report_page([session.open_run(runs[kind])]))
        return 0

    for file in files_of(runs[kind]):
        check_forgeries(call, file, capsys)
    steps = [step for logs in drawn for log in logs.values() for step, _ in log.get("loss", [])]
    assert all(isinstance(step, float) for step in steps)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e308, 1e-308])
def test_any_number_can_be_drawn(value):
    logs = {"$\\frac$": {"loss": [(0.0, value), (1e30, 1.0)]}}
    assert "data:image/png" in report._draw_curves(logs)


def make_record(folder):
    run = session.train(TINY_RECIPES[STATIC], name=STATIC, out=folder / "run", device="cpu")
    assert cli.main(["record", str(run.path), "--results", "results"]) == 0


RESULTS = {"tiny": make_record, "adapt-known": lambda _: reproduce_study()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # What peft imports warns.
@pytest.mark.usefixtures("tiny_table")
@pytest.mark.parametrize("name", RESULTS)
def test_a_table_of_forged_results(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    RESULTS[name](tmp_path)
    capsys.readouterr()
    files = [*(tmp_path / "results").rglob("*.json")]
    assert files
    for file in files:
        check_forgeries(
            lambda: cli.main(["table", name, "--results", "results"]), file, capsys, every=5
        )
