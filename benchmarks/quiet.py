"""Whether the machine had nothing else to do while something was timed."""

import os
import time
from pathlib import Path

STATISTICS = Path("/proc/stat")
IDLE, WAITING, GUESTS = 3, 4, 8
"""Columns of the first line: idle, waiting for disks, and, counted twice, guests."""


class Watch:
    """How much of the machine's time other processes take, from its making on."""

    def __init__(self) -> None:
        self.began = _readings()

    def others(self) -> float | None:
        """Cores that were busy with other processes, on average; None where unknown."""
        if self.began is None or (now := _readings()) is None:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self.began, strict=True))
        return max(0.0, busy - own) / wall if wall else None


def others_now() -> float | None:
    """Cores that are busy with other processes for the next half second; None where unknown."""
    watch = Watch()
    time.sleep(0.5)
    return watch.others()


def _readings() -> tuple[float, float, float] | None:
    """Seconds of all cores in work, of this process and its ended children, of the clock."""
    if not STATISTICS.exists():
        return None
    fields = STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields[:GUESTS]]
    busy = (sum(ticks) - ticks[IDLE] - ticks[WAITING]) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return busy, sum(own[:4]), own.elapsed
