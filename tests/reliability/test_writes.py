"""Work that is killed before any of its writes, or has no space from any write on, loses nothing.

Begun again, it ends as if never stopped: in files, in their names, in what is in them.
"""

import os
import re
import shutil
import signal
import socket
import sys
from functools import partial as partial_of

import pytest
import torch
from reliability.children import ended, started
from reliability.counts import record
from reliability.works import READING, WORKS, outcome, prepare
from reliability.writes import Count, FullDisk, Kill, watch
from tiny_classes import use_tiny_classes
from tiny_images import DRAW, use_tiny_images
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
    monkeypatch.setattr(visualize, "draw", DRAW)
    monkeypatch.setattr(partial, "SAVE_SECONDS", 0.0)
    torch.set_num_threads(1)


class Trial:
    """One work in a folder of its own, done by processes of their own."""

    def __init__(self, name, folder, processes=1):
        self.work, self.processes = (WORKS | READING)[name], processes
        self.folder, self.here = folder, folder / "here"
        shutil.rmtree(self.here, ignore_errors=True)
        prepare(self.work, self.here, folder / "known")

    def run(self, act=None):
        """The exit code, and what is printed; `act` watches the writes of the first process."""
        output, port = self.folder / "output", free_port()
        output.unlink(missing_ok=True)

        def process(rank):
            os.chdir(self.here)
            if self.processes > 1:
                os.environ.update(torchrun_environment(rank, self.processes, port))
            if act and not rank:
                watch(act, self.here)
            sys.exit(self.work())

        ranks = range(self.processes)
        first, *others = [started(partial_of(process, rank), output) for rank in ranks]
        code = ended(first)
        for number in others:  # As torchrun does where one process has died.
            if code:
                os.killpg(number, signal.SIGKILL)
            ended(number)
        return code, output.read_text()

    def finish(self):
        """What is in the folder after a whole run, or after one that goes on."""
        code, printed = self.run()
        assert code == 0, printed
        return outcome(self.here)


def writes_of(name, folder, processes=1):
    """The events of a whole run, one for each write."""
    log = folder / "writes"
    with log.open("wb", buffering=0) as file:
        code, printed = Trial(name, folder, processes).run(Count(file.fileno()))
    assert code == 0, printed
    return log.read_text().splitlines()


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
    """What is wrong after a kill before every write, by the write."""
    events, wrong = writes_of(name, folder, processes), {}
    expected = Trial(name, folder, processes).finish()
    for number in range(0, len(events), EVERY):
        trial = Trial(name, folder, processes)
        code, printed = trial.run(Kill(number))
        assert code == -signal.SIGKILL, (events[number], printed)
        code, printed = trial.run()
        if code or (found := outcome(trial.here)) != expected:
            wrong[events[number]] = printed if code else difference(found, expected)
    return len(events), wrong


def full_disks(name, folder):
    """What is wrong where no space is left from a write on, by the write."""
    events, wrong = writes_of(name, folder), {}
    before = outcome(Trial(name, folder).here)
    expected = Trial(name, folder).finish()
    for number in range(0, len(events), EVERY):
        trial = Trial(name, folder)
        code, printed = trial.run(FullDisk(number))
        left = hidden_names(outcome(trial.here)) - hidden_names(before)
        if fault := full_disk_fault(code, printed, left):
            wrong[events[number]] = fault
        elif (found := trial.finish()) != expected:
            wrong[events[number]] = difference(found, expected)
    return len(events), wrong


def hidden_names(found):
    """The names below a folder that are hidden, as those of unfinished files are."""
    return {name for name in found if any(part.startswith(".") for part in name.split("/"))}


def full_disk_fault(code, printed, left):
    """What is wrong with the end of work that had no space, or None."""
    if code == 0:  # What needs space came after all that was asked for, or none did.
        return f"left {left}" if left else None
    last = printed.splitlines()[-1]
    if code != 1 or "Traceback" in printed or not last.startswith("nsim: "):
        return f"code {code}: {printed}"
    if "space" not in last or not re.search(r"'[^']+'|\S/\S", last):
        return f"names no file or no lack of space: {last}"
    return f"left {left}" if left else None


def difference(found, expected):
    """The names of what differs."""
    names = found.keys() | expected.keys()
    return sorted(n for n in names if found.get(n, "gone") != expected.get(n, "not there"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"), [(n, count) for n in WORKS for count in PROCESSES.get(n, ALONE)]
)
def test_killed_before_any_write_it_ends_as_if_never_stopped(tmp_path, name, processes):
    tried, wrong = kills(name, tmp_path, processes)
    kind = "kills" if processes == 1 else f"kills of {processes} processes"
    record(name, **{kind: tried, f"{kind}, errors": len(wrong)})
    assert not wrong, "\n".join(f"{event}: {what}" for event, what in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_without_space_from_any_write_on_it_says_so_and_loses_nothing(tmp_path, name):
    tried, wrong = full_disks(name, tmp_path)
    record(name, **{"full disks": tried, "full disks, errors": len(wrong)})
    assert not wrong, "\n".join(f"{event}: {what}" for event, what in wrong.items())


@pytest.mark.long
@pytest.mark.parametrize("name", READING)
def test_commands_that_only_read_write_nothing(tmp_path, name):
    assert writes_of(name, tmp_path) == []


def test_every_command_has_a_work():
    """A new one belongs into `WORKS` if it writes files, else into `READING`."""
    covered = {work.command for work in [*WORKS.values(), *READING.values()]}
    assert set(COMMANDS) <= covered
