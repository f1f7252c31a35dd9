"""What to find out in the first half hour with a GPU, in one report: nothing here has seen one yet.

    python scripts/gpu_first_contact.py [--out gpu-report.md]

Runs the tests that need a GPU, the operators' benchmark in bf16, and a training with its profile,
each within a time of its own, and writes what they say. A step that fails does not end the others.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
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


def steps(folder: Path) -> list[tuple[str, int, list[str]]]:
    """Title, seconds at most, and words of every step."""
    train = ["-m", "neural_similarity", "train", "quickstart", "--device", "cuda"]
    return [
        ("Correctness", 300, ["-m", "pytest", "-q", "-m", "gpu", "-n", "8", "tests"]),
        ("Operators, bf16", 400, ["-m", "benchmarks", "operators", "--device", "cuda",
                                  "--dtype", "bf16", "--out", str(folder / "benchmarks")]),
        ("One update", 120, ["-c", PROFILE]),
        ("The quick start", 200, [*train, "--out", str(folder / "run")]),
    ]  # fmt: skip


def outcome(seconds: int, words: list[str]) -> str:
    """What a step says, and how it ends."""
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {seconds} s"
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


def main() -> int:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report.md"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("torch finds no GPU here\n")
        return 1
    card = torch.cuda.get_device_properties(0)
    report = [f"# {card.name}, torch {torch.__version__}, CUDA {torch.version.cuda}"]
    with tempfile.TemporaryDirectory() as folder:
        for title, seconds, words in steps(Path(folder)):
            report.append(f"## {title}\n\n```\n{outcome(seconds, words)}\n```")
            options.out.write_text("\n\n".join(report) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
