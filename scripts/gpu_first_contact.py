"""What to find out in the first ten minutes with a GPU, in one report.

    python scripts/gpu_first_contact.py [--out gpu-report]

Names the card and its tools, times the operators and a ResNet's layers in bf16, profiles an update
and runs the tests that need a GPU, each within a time of its own, all within seven minutes. What
they say goes to report.md in that folder while they say it, and the benchmark's records beside it.
A step that fails does not end the others. What is then left of fifteen minutes is for records:
scripts/run_queue.py.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TextIO

import torch

ROOT = Path(__file__).parents[1]
TESTED = MappingProxyType({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
"""The tests ask for deterministic algorithms, which cuBLAS refuses without; it may cost time."""
SCRIPTS = MappingProxyType({"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)})
"""So that a script finds `benchmarks`, and a killed step has said all that it had to say."""
TOOLS = """
import shutil, subprocess

print(*map(shutil.which, ("ncu", "nvcc", "compute-sanitizer")))
subprocess.run(["nvidia-smi"], check=True)
"""
PROFILE = """
import torch
from torch.profiler import ProfilerActivity, profile
import neural_similarity as ns

net = ns.models.build("cnn9", 10, similarity="dynamic-diagonal").cuda()
net = net.to(memory_format=torch.channels_last)
x = torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)

def update():
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(x).float().square().mean()
    loss.backward()

for _ in range(5):
    update()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
    update()
    torch.cuda.synchronize()
print(recorded.key_averages().table(sort_by="cuda_time_total", row_limit=30))
"""


class Step(NamedTuple):
    title: str
    seconds: int
    """At most."""
    words: Sequence[str]
    """For Python."""
    environment: Mapping[str, str] = MappingProxyType({})


def steps(folder: Path) -> list[Step]:
    """What is run, in its order; `folder` keeps records."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [str(file) for file in files if "pytest.mark.gpu" in file.read_text("utf-8")]
    # pytest-benchmark, where it is installed, warns of several processes: an error here.
    tests = ["-m", "pytest", "-p", "no:benchmark", "-q", "-m", "gpu", "-n", "8", *marked]
    options = ["--device", "cuda", "--dtype", "bf16", "--batch", "128", "--out", str(folder)]
    return [
        Step("The card and its tools", 10, ["-c", TOOLS]),
        Step("Operators, bf16", 140, ["-m", "benchmarks", "operators", *options]),
        Step("Layers, bf16", 120, ["-m", "benchmarks", "widths", *options]),
        Step("One update", 40, ["-c", PROFILE]),
        Step("Correctness", 110, tests, TESTED),
    ]


def carry_out(step: Step, report: TextIO) -> str:
    """Run a step, whose words go to the report as they come; how it ended."""
    began = time.monotonic()
    try:
        code = subprocess.run(
            [sys.executable, *step.words], cwd=ROOT, stdout=report, stderr=subprocess.STDOUT,
            env=os.environ | SCRIPTS | step.environment, timeout=step.seconds,
            check=False,
        ).returncode  # fmt: skip
        end = f"exit code {code}"
    except subprocess.TimeoutExpired:
        end = f"not done after {step.seconds} s"
    return f"{step.title}: {time.monotonic() - began:.0f} s, {end}"


def main() -> int:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    folder = parser.parse_args().out.resolve()
    if not torch.cuda.is_available():
        sys.stderr.write("torch finds no GPU here\n")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_properties(0)
    with (folder / "report.md").open("w", encoding="utf-8") as report:
        report.write(f"# {card.name}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
        for step in steps(folder):
            report.write(f"\n## {step.title}\n\n```\n")
            report.flush()  # A step writes to the same file by itself.
            end = carry_out(step, report)
            report.write(f"```\n\n{end}\n")
            report.flush()
            sys.stdout.write(f"{end}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
