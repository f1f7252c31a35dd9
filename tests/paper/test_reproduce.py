"""What a table lacks, as commands in stages; running, resuming and never repeating them."""

import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kills import killed_after
from launches import Ended
from launches import launched as launched
from tiny_results import PLAIN, STATIC, TINY_TABLE, lines_of, timeless, write_by_hand
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab import cli
from neural_similarity.lab.recipes import RECIPES, STARTS
from neural_similarity.lab.session import train
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity_paper.tables import (
    Scope,
    read_records,
    run_lines,
    running,
    training_seconds,
    wanted_records,
)

pytestmark = pytest.mark.usefixtures("tiny_table")
PROGRAM = """
import sys
from neural_similarity.lab import cli
from neural_similarity_paper.tables import TABLES
from neural_similarity_paper.tables.rows import Panel, Row, Table

TABLES["quick"] = Table("Quick", (Panel("Quick", "error", (Row("quick", "quickstart", 1.0),)),))
sys.exit(cli.main(["reproduce", "quick", *sys.argv[1:]]))
"""


def reproduce(folder, *args):
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    options = ("--data", str(folder / "data"), "--device", "cpu")
    return cli.main(["reproduce", "tiny", *folders, *options, *args])


def records(folder):
    return sorted((folder / "results").rglob("*.json"))


def trainings(launched):
    return [words[:2] for words in launched if words[0] == "train"]


def test_everything_is_run_once_and_a_lost_record_is_made_again(tmp_path, launched, capsys):
    """From its run folder, or where that is gone by running that one again."""
    assert reproduce(tmp_path, "--seeds", "1,2") == 0
    told = capsys.readouterr()
    assert "A tiny table, budget 1: 4 of 4 records missing" in told.err
    assert "nsim table tiny --budget 1 shows the table" in told.out
    assert trainings(launched) == [["train", n] for n in (PLAIN, STATIC) * 2]
    before = {path: timeless(path) for path in records(tmp_path)}
    names = [tmp_path / f"results/{n}/1/{seed}.json" for n in (PLAIN, STATIC) for seed in (1, 2)]
    assert [*before] == names
    for words in ([], ["record"], ["train", "record"]):
        launched.clear()
        assert reproduce(tmp_path, "--seeds", "1,2") == 0
        assert f"{bool(words):d} of 4 records missing" in capsys.readouterr().err
        assert [own[0] for own in launched] == words
        assert {path: timeless(path) for path in records(tmp_path)} == before
        names[0].unlink()
        if words:
            (tmp_path / "runs").rename(tmp_path / words[0])  # As in a fresh clone.
    words = launched[0]
    assert (words[1], words[words.index("--seed") + 1]) == (PLAIN, "1")


@pytest.mark.parametrize("steps", [1, 5], ids=["before its first checkpoint", "later"])
def test_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path, launched, steps):
    assert reproduce(tmp_path / "whole", "--seeds", "1") == 0
    folder = tmp_path / "runs" / "tiny-static-1-seed1"
    recipe = replace(RECIPES[STATIC], seed=1, threads=1)
    killed_after(steps, lambda: train(recipe, out=folder, name=STATIC, device="cpu"))
    launched.clear()
    assert reproduce(tmp_path, "--seeds", "1", "--only", STATIC) == 0
    assert launched[0][:3] == ["train", "--resume", str(folder)]
    path = Path("results") / STATIC / "1" / "1.json"
    assert timeless(tmp_path / path) == timeless(tmp_path / "whole" / path)


@pytest.mark.parametrize(
    ("changes", "difference"), [({"seed": 2}, "recipe, budget or seed"), ({"lr": 0.2}, "lr")]
)
def test_folder_of_another_run_is_refused(tmp_path, launched, capsys, changes, difference):
    folder = tmp_path / "runs" / "tiny-plain-1-seed1"
    train(replace(RECIPES[PLAIN], **{"seed": 1} | changes), name=PLAIN, out=folder)
    assert reproduce(tmp_path, "--seeds", "1") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"than {PLAIN} with seed 1 at budget 1: it differs in {difference};" in told
    assert launched == []


@pytest.mark.usefixtures("launched")
def test_failed_run_is_reported_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(RECIPES, PLAIN, replace(RECIPES[PLAIN], lr=1e30))
    assert reproduce(tmp_path, "--seeds", "1") == 1
    assert [path.parts[-3] for path in records(tmp_path)] == [STATIC]
    told = capsys.readouterr().err
    assert "the loss is not finite at step" in told
    assert "nsim: tiny-plain seed 1: nsim train ended with 1\n" in told


def test_a_log_that_cannot_be_written_fails_its_line_alone(tmp_path, launched):
    """As where a folder is in its place; what another command recorded meanwhile is not made."""
    lines = lines_of(tmp_path, seeds=(1, 2), device="cpu")
    log = lines[0].folder.with_name(f"{lines[0].folder.name}.log")
    log.mkdir(parents=True)
    assert reproduce(tmp_path, "--seeds", "2", "--only", PLAIN) == 0
    launched.clear()
    failed, _ = run_lines(lines, 2)
    assert failed == {lines[0].run: f"{log} must be a regular file or not exist, got a folder"}
    assert sorted(trainings(launched)) == [["train", STATIC]] * 2


def test_a_line_that_waits_for_one_that_fails_fails_with_it(tmp_path, monkeypatch):
    """Each is tried once, and the others are run."""
    monkeypatch.setitem(STARTS, STATIC, PLAIN)
    monkeypatch.setattr("tiny_images.Recipe.START", "start", raising=False)
    first, waiting, *others = lines_of(tmp_path, seeds=(1, 2))
    started = []

    def start(words, _):
        started.append(words)
        return Ended(int(words == first.commands[0]))

    monkeypatch.setattr(running, "start_process", start)
    failed, _ = run_lines([first, waiting, *others], 1)
    assert failed == dict.fromkeys((first.run, waiting.run), "nsim train ended with 1")
    assert started == [first.commands[0], *(words for line in others for words in line.commands)]


class Busy:
    """A process that trains until it is told to stop."""

    def __init__(self):
        self.signals = []

    def wait(self, timeout=None):
        if not self.signals:
            raise subprocess.TimeoutExpired("nsim", timeout)
        return 143

    def send_signal(self, sig, /):
        self.signals.append(sig)


@pytest.mark.skipif(not running.FORWARDS, reason="the console hands Ctrl-C to all processes")
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_stops_all_and_says_how_to_go_on(tmp_path, monkeypatch, capsys, jobs):
    """What was stopped has not failed, and what waits does not begin.

    The system may hand a signal to any thread, and wakes none of the others.
    """
    processes = []

    def start(*_):
        processes.append(Busy())
        if len(processes) == jobs:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return processes[-1]

    monkeypatch.setattr(running, "start_process", start)
    handler = signal.getsignal(signal.SIGINT)
    assert reproduce(tmp_path, "--seeds", "1,2", "--jobs", f"{jobs}") == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert [process.signals for process in processes] == [[signal.SIGTERM]] * jobs
    told = capsys.readouterr().err
    assert "stopped, all is saved; the same command goes on" in told
    assert "tiny-plain seed 1:" not in told


def test_print_shows_the_lines_and_runs_nothing(tmp_path, launched, capsys):
    assert reproduce(tmp_path, "--print", "--budget", "0.5") == 0
    told = capsys.readouterr()
    assert "A tiny table, budget 0.5: 6 of 6 records missing" in told.err
    lines = lines_of(tmp_path, seeds=(1, 2, 3), budget=0.5, device="cpu")
    assert told.out.splitlines() == [str(line) for line in lines]
    assert launched == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reproduce 9", "no table is named '9'; there are 1, 2, 3, 4, 5, 6, 8, response, "),
        ("reproduce 4 --seeds 1,x", "--seeds: items must be integers separated by commas, got 'x'"),
        ("reproduce 4 --seeds 1,1", "`seeds` must be distinct, not negative and below 2**63, got "),
        (
            "reproduce 4 --seeds=-1",
            "`seeds` must be distinct, not negative and below 2**63, got (-1",
        ),
        (f"reproduce 4 --seeds {2**63}", "`seeds` must be distinct, not negative and below 2**63"),
        ("reproduce 4 --seeds ''", "items must be integers separated by commas, got ''"),
        (f"reproduce 4 --results {__file__}", "`results` must be a folder, got the file"),
        (f"reproduce 4 --runs {__file__}", "`runs` must be a folder, got the file"),
        ("reproduce 4 --jobs 0", "`jobs` must be an integer of at least 1, got 0"),
        ("reproduce 4 --budget -1", "`budget` must be above 0, got -1.0"),
        ("reproduce 4 --job 1", "--jobs"),
        ("reproduce 4 --stage 1", "--stage goes with --print"),
        ("reproduce 4 --only x", "`only` must match a recipe of the table (cifar10-cnn, "),
        ("reproduce 6 --shots 3", "`shots` must be among (5, 1), got 3"),
        ("reproduce 6 --shots 5,5", "`shots` must be distinct, got (5, 5)"),
        ("reproduce 6 --tasks 1 --print", "`tasks` must be at least 2, got 1"),
        ("table 7", "no table is named '7'; there are 1, 2, 3, 4, 5, 6, 8, response, "),
        ("table respnse", "no table is named 'respnse'; did you mean 'response'?"),
        ("table 4 --out table.txt", "`out` must end in .md, got table.txt"),
        ("table 4 --budget 0", "`budget` must be above 0, got 0.0"),
        ("table 4 --results nowhere", "--results must be a folder of records, got nowhere"),
        ("table adapt-map --out map.txt", "--out must end in .md, got map.txt"),
        ("reproduce adapt-map --print --only none-10", "--only must name cells of adapt-map, such"),
        ("reproduce new-heads --only A", "--only must name no cells of new-heads, got 'A'"),
        ("table", "TABLE"),
        (f"record RUN --results {__file__}", "`results` must be a folder, got the file"),
        ("theory eulr", "did you mean 'euler'?"),
        ("theory spectra", "nsim theory spectra needs run folders, see --runs"),
        ("theory order --seeds 2", "`seeds` must be at least 3, got 2"),
    ],
)
def test_wrong_command_lines_exit_with_2(words, message, capsys):
    assert cli.main(shlex.split(words)) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def start_quick(folder, *args):
    """`nsim reproduce` as a process, with real processes of its own, over the quick start."""
    folders = ("--results", str(folder / "results"), "--runs", str(folder / "runs"))
    command = [sys.executable, "-c", PROGRAM, *folders, "--seeds", "1,2", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_train_side_by_side_as_in_the_shell(tmp_path):
    budget = ("--budget", "0.002")
    line, _ = start_quick(tmp_path, *budget, "--seeds", "3", "--print").communicate()
    line = line.replace("nsim ", f"{sys.executable} -m neural_similarity ")
    subprocess.run(line, shell=True, check=True, capture_output=True)
    process = start_quick(tmp_path, *budget, "--jobs", "2")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    found = read_records(tmp_path / "results", "quickstart", 0.002)
    assert [(r.seed, r.environment["threads"]) for r in found] == [(1, 1), (2, 1), (3, 1)]
    assert len(found[0].correct) == 2_000


@pytest.mark.slow
def test_ctrl_c_lets_real_processes_save(tmp_path):
    process = start_quick(tmp_path, "--jobs", "2")
    folders = [tmp_path / "runs" / f"quickstart-1-seed{seed}" for seed in (1, 2)]
    while not all((folder / "metrics.jsonl").exists() for folder in folders):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped, all is saved; the same command goes on" in errors
    for folder in folders:
        assert list_checkpoints(folder / "checkpoints")
        log = folder.with_name(f"{folder.name}.log")
        assert "stopped by SIGTERM after step" in log.read_text()


def test_lines_go_seed_by_seed_and_leave_out_what_is_recorded(tmp_path):
    write_by_hand(tmp_path / "results", STATIC, 1, [1, 0])
    write_by_hand(tmp_path / "results", STATIC, 2, [1, 0], budget=0.5)
    lines = lines_of(tmp_path)
    titles = ["tiny-plain seed 1", "tiny-plain seed 2", "tiny-static seed 2"]
    assert [str(line.run) for line in lines] == titles
    assert {line.stage for line in lines} == {1}
    assert lines[0].folder == tmp_path / "runs" / "tiny-plain-1-seed1"
    assert lines[0].records == (tmp_path / "results" / PLAIN / "1" / "1.json",)


def test_a_line_trains_and_records_with_one_thread_and_every_place_named(tmp_path):
    folder = f"{tmp_path}/runs/tiny-plain-0.5-seed1"
    own = {"only": (PLAIN,), "budget": 0.5, "precision": "bf16", "device": "cpu"}
    (line,) = lines_of(tmp_path, seeds=(1,), **own)
    assert str(line) == (
        f"nsim train tiny-plain --budget 0.5 --seed 1 --threads 1 --precision bf16 --out {folder} "
        f"--data {tmp_path}/data --device cpu && nsim record {folder} --results {tmp_path}/results"
    )
    words = [shlex.split(part) for part in str(line).split(" && ")]
    assert words == [["nsim", *command] for command in line.commands]


def test_a_run_that_starts_from_another_is_of_a_later_stage(tmp_path, monkeypatch):
    monkeypatch.setitem(STARTS, STATIC, PLAIN)
    monkeypatch.setattr("tiny_images.Recipe.START", "start", raising=False)
    plain, static = lines_of(tmp_path, seeds=(1,), only=(STATIC,))
    assert (plain.stage, plain.records) == (1, ())
    assert [words[0] for words in plain.commands] == ["train"]
    assert (static.stage, static.after) == (2, (plain.run,))
    words = static.commands[0]
    assert words[words.index("--start") + 1] == f"{plain.folder}"


def test_only_takes_patterns(tmp_path):
    for only, names in ((("*-static",), {STATIC}), ((PLAIN, "tiny-s*"), {PLAIN, STATIC})):
        assert {line.run.name for line in lines_of(tmp_path, only=only)} == names
    with pytest.raises(ValueError, match=r"`only` must match .* \(tiny-plain, .*\), got 'tiny-x'"):
        lines_of(tmp_path, only=("tiny-*", "tiny-x"))


def test_a_record_is_wanted_once():
    wanted = wanted_records(TINY_TABLE.all_rows * 2, (1, 2))
    assert len(wanted) == len(set(wanted)) == 4


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 66 / 6 * 3), ("cuda", 6 / 6 * 3)])
def test_time_is_that_of_the_recipes_records_on_such_devices(tmp_path, device, seconds):
    """Half a schedule of six updates takes half the median; of one recipe nothing is known."""
    environment = {"threads": 1, "precision": "fp32", "torch": "2.15"}
    taken = {8: ("cpu", 60), 9: ("cpu", 600), 10: ("cpu", 66), 11: ("H200", 6)}
    for seed, (where, known) in taken.items():
        facts = environment | {"cpu": f"CPU {seed}", "device": where}
        write_by_hand(tmp_path / "results", PLAIN, seed, [1, 0], seconds=known, environment=facts)
    scope = Scope(budget=0.5, results=tmp_path / "results")
    lines = lines_of(tmp_path, seeds=(1,), budget=0.5)
    assert training_seconds(lines, scope, device) == (pytest.approx(seconds), 1)
