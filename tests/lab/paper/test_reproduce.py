"""Planning, running, resuming and never repeating the runs of a table."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kills import killed_after
from launches import launched as launched
from tiny_results import PLAIN, STATIC, plan_of, timeless
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab import cli
from neural_similarity.lab.paper import execution, read_records, show
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.session import train
from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.checkpoint import checkpoints
from neural_similarity.lab.train.journal import read_lines

pytestmark = pytest.mark.usefixtures("tiny_table")
PROGRAM = """
import sys
from neural_similarity.lab import cli
from neural_similarity.lab.paper import TABLES
from neural_similarity.lab.paper.tables import Panel, Row, Table

TABLES["quick"] = Table("Quick", (Panel("Quick", "error", (Row("quick", "quickstart", 1.0),)),))
sys.exit(cli.main(["reproduce", "quick", *sys.argv[1:]]))
"""


def reproduce(folder, *args):
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    options = ("--data", str(folder / "data"), "--device", "cpu")
    return cli.main(["reproduce", "tiny", *folders, *options, *args])


def records(folder):
    return sorted((folder / "results").rglob("*.json"))


@pytest.mark.long
def test_everything_is_run_recorded_and_never_repeated(tmp_path, launched, capsys):
    assert reproduce(tmp_path, "--seeds", "1,2") == 0
    told = capsys.readouterr()
    assert "A tiny table, budget 1: 4 to run, 0 recorded" in told.out
    assert "no recipe, left out: tiny-later" in told.out
    assert "4 recorded, 0 failed" in told.out
    assert "tiny-static seed 2: test accuracy" in told.err
    names = itertools.product((PLAIN, STATIC), ("1.json", "2.json"))
    assert records(tmp_path) == [tmp_path / "results" / a / "1" / b for a, b in names]
    assert [words[:2] for words in launched] == [["train", n] for n in (PLAIN, STATIC) * 2]
    before = [path.read_bytes() for path in records(tmp_path)]
    launched.clear()
    assert reproduce(tmp_path, "--seeds", "1,2") == 0
    assert "0 to run, 4 recorded" in capsys.readouterr().out
    assert launched == []
    assert [path.read_bytes() for path in records(tmp_path)] == before
    assert reproduce(tmp_path, "--seeds", "1,2,3", "--only", PLAIN) == 0
    assert len(launched) == 1
    assert launched[0][launched[0].index("--seed") + 1] == "3"


@pytest.mark.long
def test_deleting_one_record_reruns_exactly_that_one(tmp_path, launched):
    assert reproduce(tmp_path, "--seeds", "1,2") == 0
    before = {path: timeless(path) for path in records(tmp_path)}
    launched.clear()
    gone = tmp_path / "results" / STATIC / "1" / "1.json"
    gone.unlink()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")  # As in a fresh clone.
    assert reproduce(tmp_path, "--seeds", "1,2") == 0
    assert [words[1] for words in launched] == [STATIC]
    assert launched[0][launched[0].index("--seed") + 1] == "1"
    assert {path: timeless(path) for path in records(tmp_path)} == before


def test_record_of_a_finished_run_is_written_without_training(tmp_path, launched, capsys):
    assert reproduce(tmp_path, "--seeds", "1") == 0
    gone = tmp_path / "results" / STATIC / "1" / "1.json"
    before = gone.read_bytes()
    gone.unlink()
    launched.clear()
    assert reproduce(tmp_path, "--seeds", "1") == 0
    assert "is finished, to be recorded" in capsys.readouterr().out
    assert launched == []
    assert gone.read_bytes() == before


def test_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path, launched, capsys):
    assert reproduce(tmp_path / "whole", "--seeds", "1") == 0
    folder = tmp_path / "runs" / "tiny-static-1-seed1"
    recipe = replace(RECIPES[STATIC], seed=1, threads=1)
    killed_after(5, lambda: train(recipe, out=folder, name=STATIC, device="cpu"))
    job = plan_of(tmp_path, only=(STATIC,)).jobs[0]
    so_far = read_lines(folder / "metrics.jsonl")[-1]
    assert job.seconds == pytest.approx(so_far["seconds"] / so_far["step"] * (6 - 4))
    launched.clear()
    capsys.readouterr()
    assert reproduce(tmp_path, "--seeds", "1", "--only", STATIC) == 0
    assert "goes on from step 4 of 6" in capsys.readouterr().out
    assert [words[:3] for words in launched] == [["train", "--resume", str(folder)]]
    path = Path("results") / STATIC / "1" / "1.json"
    assert timeless(tmp_path / path) == timeless(tmp_path / "whole" / path)


@pytest.mark.usefixtures("launched")
def test_run_interrupted_before_its_first_checkpoint_begins_again(tmp_path):
    folder = tmp_path / "runs" / "tiny-plain-1-seed1"
    recipe = replace(RECIPES[PLAIN], seed=1)
    killed_after(1, lambda: train(recipe, out=folder, name=PLAIN, device="cpu"))
    assert plan_of(tmp_path, seeds=(1,), only=(PLAIN,)).jobs[0].done == 0
    assert reproduce(tmp_path, "--seeds", "1", "--only", PLAIN) == 0
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize(
    ("changes", "difference"), [({"seed": 2}, "recipe, budget or seed"), ({"lr": 0.2}, "lr")]
)
def test_folder_of_another_run_is_refused(tmp_path, launched, capsys, changes, difference):
    folder = tmp_path / "runs" / "tiny-plain-1-seed1"
    train(replace(RECIPES[PLAIN], **{"seed": 1} | changes), name=PLAIN, out=folder)
    assert reproduce(tmp_path, "--seeds", "1") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert (
        f"holds another run than {PLAIN} with seed 1 at budget 1: it differs in {difference};"
        in told
    )
    assert launched == []


@pytest.mark.usefixtures("launched")
def test_failed_run_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(RECIPES, PLAIN, replace(RECIPES[PLAIN], lr=1e30))
    assert reproduce(tmp_path, "--seeds", "1", "--jobs", "1") == 1
    told = capsys.readouterr()
    assert [path.parts[-3] for path in records(tmp_path)] == [STATIC]
    assert "1 recorded, 1 failed" in told.out
    assert "nsim: tiny-plain seed 1: the loss is not finite at step" in told.err
    assert "runs/*.log" in told.err


@pytest.mark.usefixtures("launched")
def test_run_that_cannot_be_recorded_is_a_failure(tmp_path, monkeypatch, capsys):
    def broken(run, *_, **__):
        if run.name == PLAIN:
            raise KeyError("macs")
        return write(run, *_, **__)

    write = execution.write_records
    monkeypatch.setattr(execution, "write_records", broken)
    assert reproduce(tmp_path, "--seeds", "1") == 1
    assert "tiny-plain seed 1: 'macs'" in capsys.readouterr().err
    assert [path.parts[-3] for path in records(tmp_path)] == [STATIC]


def test_record_that_another_command_wrote_meanwhile_is_not_made_again(tmp_path, launched, capsys):
    jobs = plan_of(tmp_path, seeds=(1,)).jobs
    assert reproduce(tmp_path, "--seeds", "1", "--only", PLAIN) == 0
    launched.clear()
    folders = {"results": tmp_path / "results", "data_root": tmp_path}
    executor = execution.Executor(places=1, device="cpu", **folders)
    with show(jobs) as display:
        outcome = executor(jobs, display)
    assert [words[1] for words in launched] == [STATIC]
    assert len(outcome.recorded) == 1
    assert "tiny-plain seed 1: recorded by another process (1 of 2)" in capsys.readouterr().err


class Busy:
    """A process that trains until it is told to stop, or for a while."""

    def __init__(self):
        self.signals, self.looks = [], 0

    def poll(self):
        self.looks += 1
        return 143 if self.signals else None if self.looks < 1_000 else 0

    def send_signal(self, sig, /):
        self.signals.append(sig)


@pytest.mark.parametrize("second", [True, False])
def test_ctrl_c_stops_all_and_says_how_to_go_on(tmp_path, monkeypatch, capsys, second):
    """With the second of two processes or with the first; what was stopped has not failed."""
    processes = []

    def launch(*_):
        processes.append(Busy())
        if len(processes) == 1 + second:
            os.kill(os.getpid(), signal.SIGINT)
        return processes[-1]

    monkeypatch.setattr(execution, "launch", launch)
    monkeypatch.setattr(execution, "POLL_SECONDS", 0)
    handler = signal.getsignal(signal.SIGINT)
    assert reproduce(tmp_path, "--seeds", "1,2", "--jobs", f"{1 + second}") == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert [process.signals for process in processes] == [[signal.SIGTERM]] * (1 + second)
    told = capsys.readouterr().err
    assert "stopped, all is saved; the same command goes on" in told
    assert "tiny-plain seed 1: stopped" in told
    assert "failed" not in told


@pytest.mark.usefixtures("launched")
def test_ctrl_c_when_all_is_done_stops_nothing(tmp_path, monkeypatch, capsys):
    def last(run, results):
        os.kill(os.getpid(), signal.SIGINT)
        return write(run, results)

    write = execution.write_records
    monkeypatch.setattr(execution, "write_records", last)
    assert reproduce(tmp_path, "--seeds", "1", "--only", PLAIN) == 0
    assert "stopped" not in capsys.readouterr().err


def test_processes_are_stopped_where_the_command_itself_fails(tmp_path, monkeypatch):
    process = Busy()
    monkeypatch.setattr(execution, "launch", lambda *_: process)
    monkeypatch.setattr(execution, "read_lines", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reproduce(tmp_path, "--seeds", "1", "--jobs", "1")
    assert process.signals == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("code", "written", "told"),
    [
        (1, "nsim: no space left\n\n", "no space left"),
        (3, "", "exit code 3"),
        (-9, "step 700/8000\n", "killed by SIGKILL (is memory short?)"),
        (-15, "", "killed by SIGTERM"),
    ],
)
def test_the_reason_of_a_failure_is_of_this_process(tmp_path, code, written, told):
    log = tmp_path / "run.log"
    log.write_text("nsim: something old\n")
    before = log.stat().st_size
    log.write_text(log.read_text() + written)
    assert execution.reason(code, log, before) == told


def test_a_log_has_one_writer(tmp_path):
    log = tmp_path / "runs" / "run.log"
    process = execution.launch(["sleep", "60"], log)
    try:
        with pytest.raises(RunError, match=r"another process runs it already and writes to .*run"):
            execution.launch(["sleep", "60"], log)
    finally:
        process.kill()
        process.wait()
    assert execution.launch(["true"], log).wait() == 0


def test_dry_run_only_shows_the_plan(tmp_path, launched, capsys):
    assert reproduce(tmp_path, "--dry-run", "--jobs", "2", "--budget", "0.5") == 0
    told = capsys.readouterr().out
    assert "A tiny table, budget 0.5: 6 to run, 0 recorded" in told
    assert "tiny-plain seed 3" in told
    assert re.search(r"tiny-plain seed 3 +3 steps +~0:\d\d\n", told)
    assert "2 at a time (~: by multiplications, as no such machine has a record)" in told
    assert launched == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answers", "words", "runs"),
    [(["y\n"], (), 1), (["\n"], (), 0), ([""], (), 0), ([], ("--yes",), 1)],
)
def test_it_asks_before_a_terminal(tmp_path, launched, monkeypatch, capsys, answers, words, runs):
    asked = bool(answers)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", [*answers].pop)
    assert reproduce(tmp_path, "--seeds", "1", "--only", PLAIN, *words) == 0
    assert len(launched) == runs
    told = capsys.readouterr()
    assert ("Start? [y/N]" in told.err) == asked
    assert ("Nothing was started." in told.out) == (runs == 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["9"], "no table is named '9'; there are 1, 2, 3, 4, 5, 8, response, "),
        (["4", "--seeds", "1,x"], "--seeds: items must be integers separated by commas, got 'x'"),
        (["4", "--seeds", "1,1"], "must be distinct, not negative and below 2**63, got (1, 1)"),
        (["4", "--seeds=-1"], "`seeds` must be distinct, not negative and below 2**63, got (-1,)"),
        (["4", "--seeds", str(2**63)], "`seeds` must be distinct, not negative and below 2**63"),
        (["4", "--seeds", ""], "items must be integers separated by commas, got ''"),
        (["4", "--results", __file__], "`results` must be a folder, got the file"),
        (["4", "--runs", __file__], "`runs` must be a folder, got the file"),
        (["4", "--jobs", "0"], "`jobs` must be at least 1, got 0"),
        (["4", "--budget", "-1"], "`budget` must be above 0, got -1.0"),
        (["4", "--job", "1"], "--jobs"),
        (["4", "--only", "x"], "`only` must match a recipe of the table (cifar10-cnn, "),
    ],
)
def test_wrong_command_lines_exit_with_2(args, message, capsys):
    assert cli.main(["reproduce", *args]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def start_quick(folder, *args):
    """`nsim reproduce` as a process, with real processes of its own, over the quick start."""
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    command = [sys.executable, "-c", PROGRAM, *folders, "--seeds", "1,2", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_processes_train_side_by_side(tmp_path):
    process = start_quick(tmp_path, "--budget", "0.002")
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "2 recorded, 0 failed" in told
    found = read_records(tmp_path / "results", "quickstart", 0.002)
    assert [(r.seed, r.environment["threads"]) for r in found] == [(1, 1), (2, 1)]
    assert len(found[0].correct) == 2_000


@pytest.mark.slow
def test_ctrl_c_lets_real_processes_save(tmp_path):
    process = start_quick(tmp_path)
    folders = [tmp_path / "runs" / f"quickstart-1-seed{seed}" for seed in (1, 2)]
    while not all((folder / "metrics.jsonl").exists() for folder in folders):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped, all is saved; the same command goes on" in errors
    for folder in folders:
        assert checkpoints(folder / "checkpoints")
        log = folder.with_name(f"{folder.name}.log")
        assert "stopped by SIGTERM after step" in log.read_text()
        assert execution.launch(["true"], log).wait() == 0  # Nothing holds it any more.


def test_processes_have_one_thread_and_a_session_of_their_own(tmp_path, monkeypatch):
    """So Ctrl-C reaches them through `execute` alone."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    log = tmp_path / "log"
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.getsid(0))"
    assert execution.launch([sys.executable, "-c", code], log).wait() == 0
    threads, own = map(int, log.read_text().split())
    assert threads == 1
    assert own != os.getsid(0)


@pytest.mark.long
@pytest.mark.parametrize("there", [True, False])
def test_runs_that_begin_or_go_on_have_one_thread_and_the_data_named(tmp_path, there):
    job = plan_of(tmp_path, seeds=(1,), only=(PLAIN,), precision="bf16").jobs[0]
    if there:
        job.folder.mkdir(parents=True)
    folders = {"results": tmp_path, "data_root": tmp_path / "sets"}
    words = execution.Executor(places=1, **folders).command(job)
    assert words[words.index("--data") + 1] == str(tmp_path / "sets")
    if there:
        assert words[words.index("--resume") + 1] == str(job.folder)
        assert "--precision" not in words
    else:
        assert words[words.index("--threads") + 1] == "1"
        assert words[words.index("--precision") + 1] == "bf16"
