"""Work that is killed before any of its writes, or has no space from any write on, loses nothing.

Begun again, it ends as if never stopped: in files, in their names, in what is in them.
"""

import bisect
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import warnings
from functools import partial as partial_of

import pytest
import torch
from reliability.children import ended, started
from reliability.counts import record
from reliability.works import READING, WORKS, outcome, prepare, write_picture
from reliability.writes import FILLING, Copy, Count, FullDisk, Kill, forbid, watch
from tiny_classes import use_tiny_classes
from tiny_images import use_tiny_images
from tiny_results import tiny_table as tiny_table

from neural_similarity import visualize
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.tasks.few_shot import partial

ALONE = (1,)
PROCESSES = dict.fromkeys(("classification", "few-shot", "adaptation"), (1, 2, 4))
EVERY = int(os.environ.get("RELIABILITY_EVERY", "1"))
"""Of the writes, one in so many is tried."""


pytestmark = pytest.mark.usefixtures("tiny_table", "tiny_world")


@pytest.fixture
def tiny_world(monkeypatch):
    use_tiny_images(monkeypatch)
    use_tiny_classes(monkeypatch)
    monkeypatch.setattr(visualize, "draw", write_picture)
    monkeypatch.setattr(partial, "SAVE_SECONDS", 0.0)
    torch.set_num_threads(1)


class Trial:
    """One work in a folder of its own, done by processes of their own.

    Attributes:
        here: the folder that it works in.
        copies: of `here`, see `copied_run`.
    """

    def __init__(self, name, folder, processes=1):
        self.work, self.processes = (WORKS | READING)[name], processes
        self.folder, self.here, self.copies = folder, folder / "here", folder / "copies"
        self.begin()

    def begin(self, copy=None):
        """Make `here` anew: as it is before the work, or a copy."""
        shutil.rmtree(self.here, ignore_errors=True)
        if copy is None:
            prepare(self.work, self.here, self.folder / "known")
        else:
            copy.rename(self.here)

    def warm_up(self):
        """Do the work in this process, so that its children need not import what it imports."""
        with contextlib.chdir(self.here), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert self.work() == 0
        self.begin()

    def run(self, act=None):
        """The exit code, and what is printed; `act` watches the writes of the first process."""
        output, port = self.folder / "output", free_port()
        output.unlink(missing_ok=True)

        def process(rank):
            os.chdir(self.here)
            if self.processes > 1:
                os.environ.update(torchrun_environment(rank, self.processes, port))
            if act:
                watch(forbid if rank else act, self.here)
            sys.exit(self.work())

        ranks = range(self.processes)
        first, *others = [started(partial_of(process, rank), output) for rank in ranks]
        code = ended(first)
        for number in others:  # As torchrun does where one process has died.
            if code:
                os.killpg(number, signal.SIGKILL)
            ended(number)
        return code, output.read_text()

    def counted_run(self, make):
        """The events of a whole run, one for each write; `make` makes what watches them."""
        log = self.folder / "writes"
        with log.open("wb", buffering=0) as file:
            code, printed = self.run(make(file.fileno()))
        assert code == 0, printed
        return log.read_text().splitlines()

    def copied_run(self):
        """The events of a whole run, and `here` as it is before those that change it."""
        shutil.rmtree(self.copies, ignore_errors=True)
        events = self.counted_run(partial_of(Copy, self.here, self.copies))
        return events, sorted(self.copies.iterdir(), key=lambda copy: int(copy.name))

    def fault_of_rest(self, expected):
        """What is wrong where the work is begun again, or None."""
        done = self.work.once and outcome(self.here) == expected
        code, printed = self.run()
        if code != done:
            return f"code {code}: {printed}"
        return difference(outcome(self.here), expected) or None


def torchrun_environment(rank, processes, port):
    """What torchrun tells a process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    texts = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"}
    return texts | {name: str(number) for name, number in numbers.items()}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def kills(name, folder, processes=1):
    """The number of writes, and what is wrong after a kill before each, by the write."""
    trial, wrong = Trial(name, folder, processes), {}
    trial.warm_up()
    events, copies = trial.copied_run()
    expected = outcome(trial.here)
    for copy in copies[::EVERY]:
        trial.begin(copy)
        if fault := trial.fault_of_rest(expected):
            wrong[events[int(copy.name)]] = fault
    return len(events), wrong


def full_disks(name, folder):
    """The number of writes that need space, and what is wrong where there is none, by the write."""
    trial, wrong = Trial(name, folder), {}
    trial.warm_up()
    before = outcome(trial.here)
    events = [event for event in trial.counted_run(Count) if event.startswith(FILLING)]
    expected = outcome(trial.here)
    for number in range(0, len(events), EVERY):
        trial.begin()
        code, printed = trial.run(FullDisk(number))
        left = hidden_names(outcome(trial.here)) - hidden_names(before)
        fault = full_disk_fault(code, printed, left) or trial.fault_of_rest(expected)
        if fault:
            wrong[events[number]] = fault
    return len(events), wrong


def hidden_names(found):
    """The names below a folder that are hidden, as those of unfinished files are."""
    return {name for name in found if any(part.startswith(".") for part in name.split("/"))}


def full_disk_fault(code, printed, left):
    """What is wrong with the end of work that had no space, or None."""
    if code == 0:  # What needs space came after all that was asked for, or none did.
        return f"left {left}" if left else None
    lines = [line for line in printed.splitlines() if line.startswith("nsim: ")]
    if code != 1 or "Traceback" in printed:
        return f"code {code}: {printed}"
    if not any("space" in line and re.search(r"'[^']+'|\S/\S", line) for line in lines):
        return f"names no file or no lack of space: {printed}"
    return f"left {left}" if left else None


def difference(found, expected):
    """The names of what differs."""
    names = found.keys() | expected.keys()
    return sorted(n for n in names if found.get(n, "gone") != expected.get(n, "not there"))


def record_whole(name, kind, tried, wrong):
    """Record what was tried; a sample is not counted."""
    if EVERY == 1:
        record(name, **{kind: tried, f"{kind}, errors": len(wrong)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"), [(n, count) for n in WORKS for count in PROCESSES.get(n, ALONE)]
)
def test_killed_before_any_write_it_ends_as_if_never_stopped(tmp_path, name, processes):
    tried, wrong = kills(name, tmp_path, processes)
    record_whole(
        name, "kills" if processes == 1 else f"kills of {processes} processes", tried, wrong
    )
    assert not wrong, "\n".join(f"{event}: {what}" for event, what in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_without_space_from_any_write_on_it_says_so_and_loses_nothing(tmp_path, name):
    tried, wrong = full_disks(name, tmp_path)
    record_whole(name, "full disks", tried, wrong)
    assert not wrong, "\n".join(f"{event}: {what}" for event, what in wrong.items())


@pytest.mark.long
@pytest.mark.parametrize("name", READING)
def test_commands_that_only_read_write_nothing(tmp_path, name):
    assert Trial(name, tmp_path).counted_run(Count) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["save_adapter", "export to a new folder", "record"])
def test_a_kill_leaves_what_the_copy_holds(tmp_path, name):
    trial = Trial(name, tmp_path)
    events, copies = trial.copied_run()
    numbers = [int(copy.name) for copy in copies]
    for number in range(len(events)):
        copy = copies[bisect.bisect(numbers, number) - 1]
        trial.begin()
        assert trial.run(Kill(number))[0] == -signal.SIGKILL
        assert unnumbered(outcome(trial.here)) == unnumbered(outcome(copy))


def unnumbered(found):
    """An outcome without the numbers of processes in hidden names; of bytes, how many."""
    return {
        re.sub(r"\.\d+\.partial", "", name): len(content) if isinstance(content, bytes) else content
        for name, content in found.items()
    }


def test_every_command_has_a_work():
    """A new one belongs into `WORKS` if it writes files, else into `READING`."""
    covered = {work.command for work in [*WORKS.values(), *READING.values()]}
    assert set(COMMANDS) <= covered
