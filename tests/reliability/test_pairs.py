"""Processes that do the same at once."""

import os
import signal
import time
from pathlib import Path

import pytest
from paper.test_reproduce import start_quick
from reliability.children import ended, started
from reliability.counts import record
from reliability.test_writes import Trial
from reliability.test_writes import tiny_world as tiny_world
from reliability.works import outcome
from reliability.writes import Count, Kill, watch
from tiny_results import timeless
from tiny_results import tiny_table as tiny_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tiny_table", "tiny_world")]
PAIRS = 20
PLACES = 10
"""Writes before which the first process stops."""


def process_of(trial, act=None):
    """A process that begins the work of a trial; `act` watches its writes."""

    def work():
        os.chdir(trial.here)
        if act:
            watch(act, trial.here)
        raise SystemExit(trial.work())

    return started(work)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("classification", [0, 1]),
        ("evaluation on tasks", [0, 0]),
        ("save_adapter", [0, 0]),
        ("compilation", [0] * 8),
    ],
)
def test_one_wins_or_all_succeed(tmp_path, name, codes):
    trial, wrong = Trial(name, tmp_path), 0
    trial.warm_up()
    trial.run()
    expected = outcome(trial.here)
    for _ in range(PAIRS):
        trial.begin()
        processes = [process_of(trial) for _ in codes]
        wrong += sorted(map(ended, processes)) != codes or outcome(trial.here) != expected
    record(name, **{"pairs": PAIRS, "pairs, errors": wrong})
    assert not wrong


@pytest.mark.parametrize("name", ["classification", "few-shot", "adaptation", "reproduce a study"])
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, name):
    """The first one stops before a write; the second leaves all as it is.

    Where the first holds no lock, as before its first step, the second ends the work.
    """
    trial, wrong = Trial(name, tmp_path), {}
    trial.warm_up()
    events = trial.counted_run(Count)
    expected, step = outcome(trial.here), max(1, len(events) // (PLACES + 1))
    places = range(step, step * PLACES + 1, step)
    for number in places:
        trial.begin()
        first = process_of(trial, Kill(number, signal.SIGSTOP))
        os.waitid(os.P_PID, first, os.WSTOPPED)
        before = outcome(trial.here)
        code, printed = trial.run()
        refused = code == 1 and "another process" in printed and outcome(trial.here) == before
        os.killpg(first, signal.SIGKILL if refused else signal.SIGCONT)
        ended(first)
        fault = trial.fault_of_rest(expected)
        if fault or not (refused or code == 0):
            wrong[events[number]] = fault or f"code {code}: {printed}"
    record(name, **{"second refused": len(places), "second refused, errors": len(wrong)})
    assert not wrong, "\n".join(f"{event}: {what}" for event, what in wrong.items())


def test_of_killed_jobs_each_goes_on_once(tmp_path):
    """`nsim reproduce --jobs 2` dies with one training; the other lives on and is not begun again.

    What is recorded in the end is what one undisturbed call records.
    """
    words = "--budget", "0.1", "--jobs", "2"
    whole = start_quick(tmp_path / "whole", *words)
    killed = start_quick(tmp_path / "killed", *words)
    logs = [tmp_path / "killed" / "runs" / f"quickstart-0.1-seed{seed}.log" for seed in (1, 2)]
    while not all(log.with_suffix("").joinpath("metrics.jsonl").exists() for log in logs):
        assert killed.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{killed.pid}/task").glob("*/children")
    living, dying = (int(child) for path in children for child in path.read_text().split())
    os.kill(living, signal.SIGSTOP)
    killed.kill()
    os.kill(dying, signal.SIGKILL)
    again = start_quick(tmp_path / "killed", *words)
    _, errors = again.communicate()
    assert (again.returncode, errors.count("another process runs it already")) == (1, 1), errors
    os.kill(living, signal.SIGCONT)
    while Path(f"/proc/{living}/exe").exists():  # until it is reaped
        time.sleep(0.05)
    killed.communicate()
    for process in (start_quick(tmp_path / "killed", *words), whole):
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    found, expected = (
        [timeless(path) for path in sorted((tmp_path / name / "results").rglob("*.json"))]
        for name in ("killed", "whole")
    )
    assert found == expected
    record("reproduce --jobs", **{"kills": 2, "kills, errors": 0})
