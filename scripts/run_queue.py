"""Run a queue of tables' rows within a time; the next call goes on where this one stopped.

    python scripts/run_queue.py scripts/queues/gpu.txt --seconds 540 --home $OUT --device cuda
    python scripts/run_queue.py HOME --unpack

A line of the file holds words of `nsim reproduce`, to which other options are added. Lines run one
after another; what is recorded is skipped. When the time is over, the run that is on saves itself.
HOME gets the new records and the log, and runs to go on with, which `--unpack` puts into place.
"""

import argparse
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

PROGRAM = (sys.executable, "-m", "neural_similarity", "reproduce")
RESULTS, RUNS, LOG = Path("results"), Path("runs"), Path("queue.log")
LEAST, GRACE = 15, 60  # Seconds to begin a line, and at most to save a run that is told to stop.


def read_queue(file: Path, extra: Sequence[str]) -> list[list[str]]:
    """The words of each line, with those that go to every line."""
    lines = file.read_text("utf-8").splitlines()
    return [[*own, *extra] for line in lines if (own := shlex.split(line, comments=True))]


def run_line(words: Sequence[str], seconds: float) -> int:
    """Run a line for at most so many seconds, its output to the log; its exit code."""
    with LOG.open("a", encoding="utf-8") as log:
        process = subprocess.Popen([*PROGRAM, *words], stdout=log, stderr=subprocess.STDOUT)
    for wait, end in ((seconds, process.terminate), (GRACE, process.kill)):
        try:
            return process.wait(wait)
        except subprocess.TimeoutExpired:
            end()
    return process.wait()


def run_queue(lines: Sequence[Sequence[str]], seconds: float) -> int:
    """Run lines until the time is over; the number of those that are not done."""
    end, undone = time.monotonic() + seconds, 0
    for words in lines:
        began = time.monotonic()
        code = run_line(words, end - began) if end - began > LEAST else "not begun"
        undone += code != 0
        line = f"queue: {shlex.join(words)}: exit code {code}, {time.monotonic() - began:.0f} s\n"
        with LOG.open("a", encoding="utf-8") as log:
            log.write(line)
    return undone


def unfinished_runs() -> Iterator[list[Path]]:
    """The files of each run without a summary, the latest first, with its newest checkpoint."""
    begun = sorted(RUNS.glob("**/config.json"), key=lambda path: -path.stat().st_mtime)
    for folder in (path.parent for path in begun if not path.with_name("summary.json").exists()):
        saved = folder.glob("checkpoints/step-*")
        old = sorted(saved, key=lambda path: int(path.name.removeprefix("step-")))[:-1]
        files = (path for path in folder.rglob("*") if path.is_file())
        yield [path for path in files if not {*old}.intersection(path.parents)]


def pack_home(home: Path, began: float) -> None:
    """Pack the records since `began`, the log, and unfinished runs."""
    home.mkdir(parents=True, exist_ok=True)
    records = [path for path in RESULTS.rglob("*.json") if path.stat().st_mtime >= began]
    for number, files in enumerate([[*records, LOG], *islice(unfinished_runs(), 6)]):
        name = f"unfinished-{number}.tar" if number else "records.tar"
        with tarfile.open(home / name, "w") as pack:
            for path in files:
                pack.add(path)


def main(words: Sequence[str]) -> int:
    """Run a queue, print what it would run, or unpack what came home."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("queue", type=Path, help="file of lines; with --unpack, the folder HOME")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--home", type=Path, default=Path("home"))
    parser.add_argument("--dry-run", action="store_true", help="print the runs that are missing")
    parser.add_argument("--unpack", action="store_true")
    options, extra = parser.parse_known_args(words)
    if options.unpack:
        for file in options.queue.glob("*.tar"):
            with tarfile.open(file) as pack:
                pack.extractall(filter="data")
        return 0
    lines = read_queue(options.queue, extra)
    if options.dry_run:
        return max(subprocess.call([*PROGRAM, *line, "--print"]) for line in lines)
    began, undone = time.time(), run_queue(lines, options.seconds)
    pack_home(options.home, began)
    return int(undone > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
