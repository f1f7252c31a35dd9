"""Images a second of the quick start's network by one process and by several, through torchrun."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import given
from neural_similarity.lab.cli.commands import say
from neural_similarity.lab.train.files import read_json, write_json

ABOUT = "images a second of one run by one process and by several"
GPUS = {8: 450e9, 64: 50e9}
"""Bytes a second that a GPU exchanges with its neighbours, by the vendors: NVLink within a machine
of 8, a 400 Gb/s link between machines."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `python -m benchmarks distributed` takes."""

    processes: tuple[int, ...] = (1, 2)
    """Numbers of processes."""
    recipe: str = "quickstart"
    """Recipe that is trained."""
    steps: int = 60
    """Updates of each run."""
    rounds: int = 3
    """Runs of each number, taken in turn; the fastest counts."""
    device: str = "auto"
    """Where they run."""
    out: Path = Path("runs/benchmarks")
    """Folder of distributed.json."""


def main(args: Sequence[str]) -> int:
    """Measure, print and save."""
    options = given(Options(), args, "distributed", ABOUT)
    summaries: dict[int, list[dict]] = {count: [] for count in options.processes}
    for _ in range(options.rounds):
        for count, found in summaries.items():
            found.append(summary(count, options))
    fastest = {
        count: max(one["images_per_second"] for one in found) for count, found in summaries.items()
    }
    parameters = summaries[options.processes[0]][0]["parameters"]
    say("| processes | images/s | efficiency |\n|---|---|---|")
    base = fastest[options.processes[0]] / options.processes[0]
    for count, rate in fastest.items():
        say(f"| {count} | {rate:,.0f} | {rate / count / base:.2f} |")
    for count, bandwidth in GPUS.items():
        seconds = exchange_seconds(parameters, count, bandwidth)
        say(f"{count} GPUs: at least {1e3 * seconds:.2f} ms a step for gradients (arithmetic)")
    path = options.out / "distributed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"recipe": options.recipe, "images_per_second": fastest})
    say(str(path))
    return 0


def summary(processes: int, options: Options) -> dict:
    """What a run by so many processes says of itself."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    train = ["-m", "neural_similarity", "train", options.recipe, "--device", options.device]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fields = ["--steps", str(options.steps), "--drops", "--threads", "1", "--out", str(run)]
        subprocess.run(
            [sys.executable, *launch, *train, *fields],
            check=True,
            capture_output=True,
            env=environment,
        )
        return read_json(run / "summary.json")


def exchange_seconds(parameters: int, gpus: int, bandwidth: float) -> float:
    """What a ring all-reduce of float32 gradients takes: 2 (N - 1) / N of their bytes a GPU."""
    return 2 * (gpus - 1) / gpus * 4 * parameters / bandwidth
