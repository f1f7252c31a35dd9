"""Cores of two that a backward pass keeps busy: the CPU time of all threads over the busiest's.

`busy_cores` runs this module in a process of its own, because threads are to sleep while they wait
(OMP_WAIT_POLICY, which is read once). What other processes do does not change it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks import subjects
from benchmarks.case import Case, Subject
from benchmarks.measure import PROCESS, Call
from benchmarks.oracle import trained
from neural_similarity.lab.train import choose_runtime

SETTINGS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
WARM_UP, CALLS = 3, 30


def busy_cores(channels: int, size: int) -> tuple[float, ...]:
    """Cores busy in backward of the plain convolution and of our layer, at batch 1."""
    command = [sys.executable, "-m", "benchmarks.cores", str(channels), str(size)]
    output = subprocess.run(
        command, env=os.environ | SETTINGS, stdout=subprocess.PIPE, text=True, check=True
    )
    return tuple(map(float, output.stdout.split()))


def _main(channels: int, size: int) -> Iterator[float]:
    case = Case(runtime=choose_runtime("cpu", "fp32"), batch=1, channels=channels, size=size)
    for one in (subjects.torch_layer(case), subjects.our_layer(case)):
        call = _backward(one, case)
        for _ in range(WARM_UP):
            call()
        before = _thread_seconds()
        for _ in range(CALLS):
            call()
        spent = [now - before.get(name, 0.0) for name, now in _thread_seconds().items()]
        yield sum(spent) / max(spent)


def _backward(one: Subject, case: Case) -> Call:
    y, wanted = one.module(*one.inputs), [*one.inputs, *trained(one.module)]
    return partial(torch.autograd.grad, y, wanted, case.operands.grad, retain_graph=True)


def _thread_seconds() -> dict[str, float]:
    """CPU time of every thread of the process, by Linux."""
    files = {task.name: task / "schedstat" for task in (PROCESS / "task").iterdir()}
    return {name: int(path.read_text().split()[0]) / 1e9 for name, path in files.items()}


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, _main(*map(int, sys.argv[1:])))))
