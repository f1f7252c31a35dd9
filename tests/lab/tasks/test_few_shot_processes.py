"""Evaluation by several processes: the same numbers as by one, and nothing left behind."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_classes import make_split

from neural_similarity import models
from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.tasks.few_shot.evaluate import Course, evaluate, use_statistics
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.processes import AHEAD, spread
from neural_similarity.lab.tasks.few_shot.static import StaticTuning
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.tasks.few_shot.tuning import Tuning
from neural_similarity.lab.train import RunError, choose_runtime

KILLED = """
import os, signal, time
from multiprocessing import active_children
from neural_similarity.lab.tasks.few_shot.processes import spread

outputs = spread(time.sleep, [0, 60], 1)
next(outputs)
print(active_children()[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_outputs_are_those_of_map_in_order_and_inputs_are_taken_a_few_ahead():
    taken = []
    numbers = (taken.append(n) or str(n) for n in range(1_000))
    outputs = spread(int, numbers, 2)
    assert list(itertools.islice(outputs, 5)) == [0, 1, 2, 3, 4]
    assert len(taken) == 4 + 2 * AHEAD
    outputs.close()
    assert list(spread(int, [], 2)) == []


@pytest.mark.long
def test_processes_share_the_threads_of_this_one():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert list(spread(threads, [None], 1)) == [2]
        assert list(spread(threads, [None], 2)) == [1]
    finally:
        torch.set_num_threads(before)


def threads(_):
    return torch.get_num_threads()


@pytest.mark.long
def test_an_error_in_a_process_is_raised_here():
    with pytest.raises(ValueError, match="invalid literal"):
        list(spread(int, ["1", "one"], 1))


@pytest.mark.long
def test_a_process_that_ends_is_told_of():
    with pytest.raises(RunError, match="ended before its work"):
        list(spread(os._exit, [3], 1))


@pytest.mark.long
def test_processes_end_with_the_one_that_began_them():
    """Nothing but the end of their parent tells them, if that is killed."""
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        child = int(killed.stdout.readline())
        assert killed.wait() == -signal.SIGKILL
    for _ in range(100):
        if not runs(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the process went on")


def runs(process: int) -> bool:
    """Whether it is there and has not ended; one without a parent may stay as a zombie."""
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def network():
    torch.manual_seed(0)
    return models.build("convnet4", 3, in_channels=1, image_size=16)[:-1]


def method(name):
    """One that learns from images, one of fixed embedding whose statistics are the task's."""
    if name == "static-nsn":
        return StaticTuning(network(), 32, Tuning(epochs=2))
    return use_statistics(ProtoNet(network()), "support")


@pytest.mark.long
@pytest.mark.parametrize("name", ["static-nsn", "proto"])
def test_two_processes_find_what_one_finds(name):
    split = make_split()
    sizes = TaskSizes(ways=2, shots=2, queries=3)
    tasks = draw_tasks(split.test, sizes, 6, seed=0, data=split.digest, part="test")
    options = {
        "preprocess": Preprocess((0.5,), (0.25,)),
        "runtime": choose_runtime("cpu", "fp32"),
    }
    alone = evaluate(method(name), split.test, tasks, **options)
    told = []
    course = Course(progress=told.append, processes=2)
    both = evaluate(method(name), split.test, tasks, **options, course=course)
    assert torch.equal(both, alone)
    assert [len(found) for found in told] == [1, 2, 3, 4, 5, 6]
    rest = Course(done=torch.tensor([-1] * 5), processes=2)
    assert evaluate(method(name), split.test, tasks, **options, course=rest)[-1] == alone[-1]


@pytest.mark.parametrize(
    ("processes", "device", "message"),
    [
        (0, "cpu", "at least 1, got 0"),
        (9**9, "cpu", "at most 1024, got"),
        (2, "cuda", "1 on cuda, got 2"),
    ],
)
def test_a_number_of_processes_that_cannot_be_is_refused(processes, device, message):
    runtime = type(choose_runtime("cpu", "fp32"))(torch.device(device), "fp32", True)
    course = Course(processes=processes)
    with pytest.raises(ValueError, match=f"`processes` must be .*{message}"):
        evaluate(method("proto"), None, None, preprocess=None, runtime=runtime, course=course)
