"""Build wheel and sdist, and check all that a user gets of them.

    python scripts/release.py            # some minutes, of which the quick start takes most
    python scripts/release.py --steps 8  # a shorter quick start

Checked are `twine check --strict`, the files in both, that the sdist builds the same wheel, and the
wheel in fresh environments: at the lowest and the newest requirements, the library alone, then
`[lab]`, which trains the quick start, evaluates and exports it. It ends with 1 if anything fails.
"""

import argparse
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

from versions import make_environment

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "neural_similarity"
RESOLUTIONS = ("lowest-direct", "highest")
LIBRARY = """
import warnings
import torch  # which warns that it finds no numpy
warnings.simplefilter("error")
import neural_similarity as ns
x = torch.randn(2, 4, 8, 8)
plain = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3))
similar = ns.convert(plain, "static-full")
torch.nn.init.normal_(similar[0].similarity.raw, std=0.1)
assert ns.max_difference(similar, ns.fold(similar), x) < 1e-5
ns.Conv2d(4, 8, 3, similarity="dynamic-diagonal")(x).sum().backward()
"""


def archive_files(archive: Path) -> set[str]:
    """The names of the files in a wheel or sdist; of an sdist, below its folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def archive_problems(wheel: Collection[str], sdist: Collection[str]) -> list[str]:
    """What the archives lack, and what they must not have."""
    sources = [
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    wanted = {f"neural_similarity/{path.relative_to(PACKAGE).as_posix()}" for path in sources}
    found = [f"the wheel lacks {name}" for name in sorted(wanted - set(wheel))]
    inside = {name.partition(".dist-info/licenses/")[2] for name in wheel}
    for licence in ("LICENSE", "src/neural_similarity/lab/data/embedded/LICENSE"):
        if licence not in inside:
            found.append(f"the wheel lacks the licence {licence}")
    own = re.compile(r"neural_similarity(-[\d.]+\.dist-info)?/")
    found += [f"the wheel has {name}" for name in sorted(wheel) if not own.match(name)]
    needed = {"LICENSE", "README.md", "pyproject.toml", "scripts/index_page.py"}
    needed |= {f"src/{name}" for name in wanted}
    return found + [f"the sdist lacks {name}" for name in sorted(needed - set(sdist))]


def relative_links(wheel: Path) -> list[str]:
    """Links of the long description that lead nowhere from the page of an index."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        page = archive.read(name).decode("utf-8")
    links = re.findall(r"\]\(([^)]*)\)", page)
    return [f"the page of an index links to {x}" for x in links if not x.startswith("https://")]


def run_command(*command: object, cwd: Path = ROOT, code: int = 0) -> str:
    """What a command prints, if it ends with `code`."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout + done.stderr


def print_line(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def build_archives(folder: Path) -> Path:
    """Build and check the archives; the wheel."""
    run_command("uv", "build", "--quiet", "--out-dir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run_command("uvx", "twine", "check", "--strict", wheel, sdist)
    print_line("twine check --strict: passed")
    again = folder / "again"
    run_command("uv", "build", "--quiet", "--wheel", "--out-dir", again, sdist)
    found = archive_problems(archive_files(wheel), archive_files(sdist)) + relative_links(wheel)
    if archive_files(again / wheel.name) != archive_files(wheel):
        found.append("the sdist builds another wheel")
    if found:
        raise SystemExit("\n".join(found))
    for archive in (wheel, sdist):
        megabytes = archive.stat().st_size / 1e6
        print_line(f"{archive.name}: {len(archive_files(archive))} files, {megabytes:.1f} MB")
    return wheel


def try_library(python: Path, folder: Path) -> None:
    """The library without the laboratory: it runs, and `nsim` says what is missing."""
    run_command(python, "-c", LIBRARY, cwd=folder)
    output = run_command(python, "-m", "neural_similarity", "train", cwd=folder, code=1)
    if "neural-similarity[lab]" not in output:
        raise SystemExit(f"`nsim` does not name the extra: {output}")
    print_line("library alone: converts, folds, learns; nsim names its extra")


def try_laboratory(python: Path, folder: Path, steps: int) -> None:
    """The quick start, folded and exported."""
    nsim, out = (python, "-m", "neural_similarity"), folder / "run"
    output = run_command(*nsim, "train", "--steps", steps, "--out", out, cwd=folder).splitlines()
    print_line(next(line for line in output if line.startswith("test accuracy")))
    run_command(*nsim, "evaluate", out, cwd=folder)
    run_command(
        *nsim, "export", out, "--format", "pt2", "--out", folder / "network.pt2", cwd=folder
    )


def main() -> None:
    """Check all, and say what passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="updates of the quick start")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build_archives(folder)
        python = platform.python_version()
        for resolution in RESOLUTIONS:
            home = folder / resolution
            print_line(f"{resolution} requirements")
            address = f"neural-similarity @ {wheel.as_uri()}"
            try_library(make_environment(python, resolution, home / "library", address), home)
            address = f"neural-similarity[lab] @ {wheel.as_uri()}"
            try_laboratory(make_environment(python, resolution, home, address), home, options.steps)
    print_line("all passed")


if __name__ == "__main__":
    main()
