"""Work done ahead by worker processes, and handed out in order."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

AHEAD = 2
"""Positions that each process works ahead."""


def in_order(
    work: Callable[[int], Any], positions: Iterable[int], *, workers: int, pinned: bool = False
) -> Iterator[Any]:
    """`work` of every position, done ahead by processes, in the order of the positions.

    Args:
        work: makes tensors; picklable, and a function of the position alone.
        positions: may be endless.
        workers: number of processes, at most one a core; 0 works in this process.
        pinned: put tensors where a GPU fetches them without waiting.

    Raises:
        ValueError: `work` did, for this position.
    """
    workers = min(workers, cores())
    loader = DataLoader(
        _Guarded(work),
        batch_size=None,
        sampler=positions,
        num_workers=workers,
        worker_init_fn=_leave_signals_to_the_parent,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=pinned,
        generator=torch.Generator(),  # Else the loader draws from the random numbers of training.
    )
    for result in loader:
        if isinstance(result, str):
            raise ValueError(result)
        yield result


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Guarded(Dataset[Any]):
    """Returns the message of a `ValueError`, to which torch would add the worker's traceback."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self.work = work

    def __getitem__(self, position: int) -> Any:
        try:
            return self.work(position)
        except ValueError as error:
            return str(error)


def _leave_signals_to_the_parent(_: int) -> None:
    """Ctrl-C reaches the whole group; training stops its processes when all is saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):  # Not on Windows.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
