"""What runs on which versions: import, laws, images and a short training in fresh environments.

    python scripts/versions.py                      the floor and the newest, by this Python
    python scripts/versions.py --python 3.11 3.12   by others that uv finds
    python scripts/versions.py --floor              the floor alone, as .ci/run has it
    python scripts/versions.py --extras             what all extras together resolve to: seconds

Each environment holds the published requirements alone, at their lowest or their highest versions,
and is kept below `--folder`, so that the next call takes seconds to begin. Prints a table; the exit
code is 1 if anything failed.
"""

import argparse
import itertools
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = f"neural-similarity[lab] @ {ROOT.as_uri()}"
"""The package as it stands."""
TORCHES = ("torch==2.9.*", "torch==2.12.*", "torch")
"""The floor, one between, the newest."""
FACTS = """
import platform, torch, numpy
print(torch.__version__, "/", platform.python_version(), "/ numpy", numpy.__version__)
"""
IMPORT = """
import neural_similarity as ns, torch
print(ns.Conv2d(4, 8, 3, similarity="dynamic-full")(torch.zeros(2, 4, 8, 8)).shape)
"""
LAWS = """
from neural_similarity import testing
cases = [case for s in (ns.Diagonal(), ns.Full()) for case in testing.cases(s)]
[testing.check(law, case) for law in testing.QUICK for case in cases]
"""
IMAGES = """
from pathlib import Path
from PIL import Image
from neural_similarity.lab.data import load_dataset
for part in ("train", "val"):
    for name in ("ant", "bee"):
        Path(part, name).mkdir(parents=True)
        Image.new("RGB", (50, 40), "white").save(Path(part, name, "0.png"))
files = load_dataset("imagenet", ".", image_size=24).train
assert files.head(2).min() == files.random_windows([0, 1], seed=0, epoch=0, flip=True).min() == 255
"""
CHECKS = {
    "import": ("-W", "error", "-c", IMPORT),
    "laws": ("-c", f"import neural_similarity as ns\n{LAWS}"),
    "images": ("-W", "error", "-c", IMAGES),
    "training": ("-m", "neural_similarity", "train", "--steps", "8", "--drops", "4"),
}


def make_environment(python: str, resolution: str, folder: Path, package: str = HERE) -> Path:
    """The Python of an environment with the package and what it requires."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / f"{python}-{resolution}"
    found = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    created = ["uv", "venv", "--quiet", "--allow-existing", "--python", python, home]
    options = ["--quiet", "--python", found, "--resolution", resolution]
    fresh = ["--upgrade", "--reinstall-package", "neural-similarity"]
    for command in (created, ["uv", "pip", "install", *options, *fresh, package]):
        # Not in the project's folder, whose constraints are not those of its users.
        subprocess.run(command, cwd=folder, check=True)
    return found


def resolved_versions(torch: str, python: str, folder: Path) -> str:
    """The versions that all extras together resolve to beside a torch; empty if there are none.

    Nothing is installed. Not in the project's folder, whose constraints are not those of its users.
    """
    options = ["--all-extras", "--python-version", python, "--constraints", "-"]
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", *options]
    done = subprocess.run(
        [*command, ROOT / "pyproject.toml"],
        cwd=folder, input=torch, capture_output=True, text=True, check=False,
    )  # fmt: skip
    sys.stderr.write(done.stderr)
    return "" if done.returncode else done.stdout


def count_unresolved(pythons: list[str], folder: Path) -> int:
    """Print what the extras resolve to; how many of the torches have no solution."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    print_row("Python", "asked for", "all extras resolve to")
    print_row("---", "---", "---")
    for python, torch in itertools.product(pythons, TORCHES):
        versions = resolved_versions(torch, python, folder).split()
        failed += not versions
        shown = [v for v in versions if v.startswith(("torch", "numpy", "peft", "timm", "onnx"))]
        print_row(python, torch, ", ".join(shown) or "nothing")
    return failed


def checked_row(python: Path) -> tuple[str, list[str]]:
    """Versions, and how each check ends."""
    facts = subprocess.run([python, "-c", FACTS], capture_output=True, text=True, check=True)
    results = []
    for name, words in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = ["--out", str(Path(folder) / "run")] if name == "training" else []
            done = subprocess.run(
                [python, *words, *out], cwd=folder, capture_output=True, text=True, check=False
            )
        results.append("passes" if done.returncode == 0 else "fails")
        if done.returncode:
            sys.stderr.write(done.stderr)
    return facts.stdout.strip(), results


def print_row(*cells: str) -> None:
    """Print a row of the table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", nargs="*", default=[platform.python_version()])
    parser.add_argument("--floor", action="store_true", help="the lowest versions alone")
    parser.add_argument("--extras", action="store_true", help="resolve all extras, no environment")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ns-versions")
    options = parser.parse_args()
    if options.extras:
        return count_unresolved(options.python, options.folder) > 0
    resolutions = ["lowest-direct"] if options.floor else ["lowest-direct", "highest"]
    failed = 0
    print_row("torch / Python / numpy", *CHECKS)
    print_row("---", *["---" for _ in CHECKS])
    for python in options.python:
        for resolution in resolutions:
            versions, results = checked_row(make_environment(python, resolution, options.folder))
            print_row(versions, *results)
            failed += results.count("fails")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
