"""Times on a GPU: replays of a CUDA graph, and apart from them what the host needs to launch it."""

import sys
import time
from collections.abc import Callable
from functools import cache
from math import ceil
from statistics import median

import torch

from benchmarks.measure import Call, Clock, seconds_per_call
from neural_similarity.lab.train.graph import capture_update, update_aside

CALLS = 18
"""Calls in a graph, a multiple of the sets of operands: what lies between two replays is then a
small part of the shortest ones."""
LAUNCHES = 5
"""Calls whose launch is timed; more could fill the queue, and the host would wait for the GPU."""


class Replays:
    """A clock of what a GPU works, without Python: each call is captured once, then replayed.

    Python needs 0.1 ms for an operator and 5 ms for a layer whose kernels take 1 ms, and in a
    captured training nothing. What cannot be captured, as it waits for the GPU, is timed with its
    launches, and a line of stderr says so.

    Operands of `compare.alternated_calls` are not in the GPU's cache from the call
    before: three sets of most cases exceed it (60 MB on an H200).
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._replay = cache(self._captured)

    def __call__(self, call: Call, repeats: int) -> float:
        """Seconds of one call, of at least so many in a row."""
        replay = self._replay(call)
        if replay is None:
            return seconds_per_call(call, repeats)
        count = ceil(repeats / CALLS)
        with torch.cuda.device(self.device):
            replay()
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            for _ in range(count):
                replay()
            ended.record()
            ended.synchronize()
        return began.elapsed_time(ended) / 1e3 / (count * CALLS)

    def host_seconds(self, call: Call) -> float | None:
        """Seconds until the host has launched a call, not waiting for its end.

        None where the call cannot be captured: it waits within.
        """
        if self._replay(call) is None:
            return None
        call()
        torch.cuda.synchronize(self.device)
        return median(map(_launch_seconds, [call] * LAUNCHES))

    def _captured(self, call: Call) -> Callable[[], None] | None:
        def calls() -> None:
            for _ in range(CALLS):
                call()

        update_aside(calls, self.device)  # Whatever is tuned, built and allocated at first.
        try:
            return capture_update(calls, self.device)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            sys.stderr.write(f"timed with its launches, as no CUDA graph can hold it: {reason}\n")
            return None


def clock_of(device: torch.device) -> Clock:
    """How calls on a device are timed: by the wall clock but on a GPU."""
    return Replays(device) if device.type == "cuda" else seconds_per_call


def _launch_seconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
