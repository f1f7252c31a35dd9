"""A function of many inputs by several processes."""

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

import torch

from neural_similarity.lab.train import RunError
from neural_similarity.lab.train.memory import keep_freed_memory

Input = TypeVar("Input")
Output = TypeVar("Output")
AHEAD = 2
"""Inputs of every process that wait or are worked on."""
_function: Callable[[Any], Any]
"""A process's own copy of what it computes."""


def spread(
    function: Callable[[Input], Output], inputs: Iterable[Input], processes: int
) -> Iterator[Output]:
    """`map(function, inputs)` by `processes` others, which share this one's threads.

    Function, inputs and outputs must pickle. Inputs are taken a few ahead of the outputs.

    Raises:
        RunError: a process ended, as Linux ends what takes too much memory.
    """
    # Pickled here, as multiprocessing would put tensors into shared memory, of which there may be
    # little. And no forks: those inherit torch's threads in whatever state.
    start = pickle.dumps(function), max(1, torch.get_num_threads() // processes)
    waiting: deque[Future[Output]] = deque()
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, start) as pool:
        try:
            for given in inputs:
                waiting.append(pool.submit(_compute, pickle.dumps(given)))
                if len(waiting) >= AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RunError(
                "one of the processes ended before its work, maybe for lack of memory; what was "
                "finished is kept"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(function: bytes, threads: int) -> None:
    """What a process does first."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word.
    Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(threads)
    _function = pickle.loads(function)


def _end_with_parent() -> None:
    """A process whose parent is killed would wait for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compute(given: bytes) -> Any:
    return _function(pickle.loads(given))
