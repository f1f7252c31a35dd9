"""Compare two checkouts of the project: every table, the quick start, a few-shot run.

    python scripts/same_as_before.py OTHER_CHECKOUT

Both need their environment (`uv sync`). Tables are printed from this checkout's records, and their
numbers are compared: words may change. Training is a short quick start and a short few-shot run on
one thread, by the command of each checkout; losses and weights must be equal bit for bit. Scores
are not compared. It prints "equal", or what differs, losses by how much, and exits with 1.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TABLES = "1 2 3 4 5 6 8 response ablations costs adapt sharing shapes bounds rivals".split()
TABLES += ["pretrained", "adapt-lite0", "adapt-flowers", "adapt-cifar"]
SHORT = ("--steps", "60", "--drops", "--threads", "1", "--seed", "0", "--device", "cpu")
RUNS = {"quick start": ("train",), "few-shot": ("train", "fewshot-quickstart")}
"""Words of `nsim`."""
NUMBER = re.compile(r"[+\-−]?\d[\d,]*(?:\.\d+)?")
SEPARATOR = "=== table ===\n"
CLI = """
import json, sys
from neural_similarity.lab import cli
"""
NSIM = CLI + "sys.exit(cli.main(sys.argv[1:]))"
PRINT = f"""{CLI}
for index, words in enumerate(json.loads(sys.argv[1])):
    if index:
        sys.stdout.write({SEPARATOR!r})
    folders = ["--results", sys.argv[2] + "/results"]
    folders += ["--costs", sys.argv[2] + "/benchmarks/recipes.json"]
    if cli.main(["table", *words, *folders]):
        sys.exit(f"table {{words}} failed")
"""


def main() -> int:
    """Compare, print what differs, and return the exit code."""
    other = Path(sys.argv[1]).resolve()
    mine, theirs = (printed_numbers(checkout) for checkout in (HERE, other))
    different = [f"table {' '.join(words)}" for words in mine if mine[words] != theirs[words]]
    different += differing_trainings(other)
    sys.stdout.write("\n".join(different or ["equal"]) + "\n")
    return 1 if different else 0


def printed_numbers(checkout: Path) -> dict[tuple[str, ...], list[str]]:
    """The numbers that a checkout prints in the tables at every recorded budget, by the command.

    One process prints all tables.
    """
    budgets = {path.name for path in (HERE / "results").glob("**/*") if path.is_dir()}
    budgets = sorted(name for name in budgets if name.replace(".", "").isdecimal())
    choices = [[], *(["--budget", budget] for budget in budgets)]
    commands = [[table, *choice] for table in TABLES for choice in choices]
    parts = run_python(checkout, PRINT, json.dumps(commands), str(HERE)).split(SEPARATOR)
    return dict(zip(map(tuple, commands), map(NUMBER.findall, parts), strict=True))


def differing_trainings(other: Path) -> list[str]:
    """The runs whose losses or weights differ."""
    different = []
    for name, words in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            mine, theirs = (Path(folder) / side for side in ("mine", "theirs"))
            for checkout, out in ((HERE, mine), (other, theirs)):
                run_python(checkout, NSIM, *words, *SHORT, "--out", str(out))
            (ours, weights), (before, earlier) = training_outcome(mine), training_outcome(theirs)
            if (ours, weights) != (before, earlier):
                apart = max(abs(a - b) / abs(b) for a, b in zip(ours, before, strict=True))
                different.append(f"{name}: losses {apart:.1e} apart")
    return different


def training_outcome(run: Path) -> tuple[list[float], bytes]:
    """Losses and the file of the last weights, without its header, whose texts have no order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (weights,) = (run / "checkpoints").glob("step-*60/weights.safetensors")
    content = weights.read_bytes()
    header = int.from_bytes(content[:8], "little")
    return [line["loss"] for line in lines if "loss" in line], content[8 + header :]


def run_python(checkout: Path, code: str, *arguments: str) -> str:
    """What a program prints in a checkout's environment."""
    command = [str(checkout / ".venv/bin/python"), "-c", code, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{checkout}, {' '.join(arguments)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
