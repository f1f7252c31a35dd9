"""Images a second of the quick start's network by one process and by several, through torchrun."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import given_options
from neural_similarity.files import read_json, write_json
from neural_similarity.lab.cli.commands import print_line

RECIPE = "quickstart"
GPUS = {8: 450e9, 64: 50e9}
"""Bytes a second that a GPU exchanges with its neighbours, by the vendors: NVLink within a machine
of 8, a 400 Gb/s link between machines."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `python -m benchmarks distributed` takes."""

    processes: tuple[int, ...] = (1, 2)
    """Numbers of processes."""
    steps: int = 60
    """Updates of each run."""
    rounds: int = 3
    """Runs of each number, taken in turn; the fastest counts."""
    device: str = "auto"
    out: Path = Path("runs/benchmarks")
    """Folder of distributed.json."""


def main(args: Sequence[str]) -> int:
    """Images a second of one run by one process and by several."""
    options = given_options(Options(), args, "distributed", str(main.__doc__))
    fastest, parameters = dict.fromkeys(options.processes, 0.0), 0
    for _ in range(options.rounds):
        for count, rate in fastest.items():
            found = summary(count, options)
            fastest[count] = max(rate, found["images_per_second"])
            parameters = found["parameters"]
    print_line("| processes | images/s | efficiency |\n|---|---|---|")
    first = options.processes[0]
    for count, rate in fastest.items():
        print_line(f"| {count} | {rate:,.0f} | {rate / count / (fastest[first] / first):.2f} |")
    for count, bandwidth in GPUS.items():
        # A ring all-reduce of float32 gradients takes 2 (N - 1) / N of their bytes a GPU.
        seconds = 2 * (count - 1) / count * 4 * parameters / bandwidth
        print_line(
            f"{count} GPUs: at least {1e3 * seconds:.2f} ms a step for gradients (arithmetic)"
        )
    path = options.out / "distributed.json"
    write_json(path, {"recipe": RECIPE, "images_per_second": fastest})
    print_line(str(path))
    return 0


def summary(processes: int, options: Options) -> dict:
    """What a run by so many processes says of itself."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    train = ["-m", "neural_similarity", "train", RECIPE, "--device", options.device]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fields = ["--steps", str(options.steps), "--drops", "--threads", "1", "--out", str(run)]
        words = [sys.executable, *launch, *train, *fields]
        subprocess.run(words, check=True, capture_output=True, env=environment)
        return read_json(run / "summary.json")
