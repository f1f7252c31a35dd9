"""Build wheel and sdist, and check all that a user gets of them, in some minutes.

    python scripts/release.py

Checked are `twine check --strict`, the files in both, that the sdist builds the same wheel, and the
wheel in fresh environments: at the lowest and the newest requirements, the library alone, then
`[lab]`, by the checks of `versions.py`. It ends with 1 if anything fails.
"""

import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

from versions import CHECKS, checked_row, make_environment, print_row

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
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
    """What the archives lack, and what the wheel must not have."""
    paths = (SOURCES / "neural_similarity").rglob("*")
    files = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(SOURCES).as_posix() for path in files}
    licences = {"LICENSE", "src/neural_similarity/lab/data/embedded/LICENSE"}
    modules = {name for name in wheel if ".dist-info/" not in name}
    missing = wanted - modules | licences - {n.partition("/licenses/")[2] for n in wheel}
    needed = {"LICENSE", "README.md", "pyproject.toml", "scripts/index_page.py"}
    needed |= {f"src/{name}" for name in wanted}
    lines = {"the wheel lacks": missing, "the wheel has": modules - wanted}
    lines["the sdist lacks"] = needed - set(sdist)
    return [f"{words} {name}" for words, names in lines.items() for name in sorted(names)]


def run_command(*command: object, cwd: Path = ROOT, code: int = 0) -> str:
    """What a command prints, if it ends with `code`."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout + done.stderr


def build_archives(folder: Path) -> Path:
    """Build and check the archives; the wheel."""
    run_command("uv", "build", "--quiet", "--out-dir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run_command("uvx", "twine", "check", "--strict", wheel, sdist)
    again = folder / "again"
    run_command("uv", "build", "--quiet", "--wheel", "--out-dir", again, sdist)
    found = archive_problems(archive_files(wheel), archive_files(sdist))
    if archive_files(again / wheel.name) != archive_files(wheel):
        found.append("the sdist builds another wheel")
    if found:
        raise SystemExit("\n".join(found))
    return wheel


def try_library(python: Path, folder: Path) -> None:
    """The library without the laboratory: it runs, and `nsim` says what is missing."""
    run_command(python, "-c", LIBRARY, cwd=folder)
    output = run_command(python, "-m", "neural_similarity", "train", cwd=folder, code=1)
    if "neural-similarity[lab]" not in output:
        raise SystemExit(f"`nsim` does not name the extra: {output}")


def main() -> int:
    """Check all, and print how the checks of the environments end."""
    failed, python = 0, platform.python_version()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = build_archives(folder).as_uri()
        print_row("torch / Python / numpy", *CHECKS)
        print_row("---", *["---" for _ in CHECKS])
        for resolution in RESOLUTIONS:
            library = f"neural-similarity @ {address}"
            try_library(make_environment(python, resolution, folder / "library", library), folder)
            laboratory = f"neural-similarity[lab] @ {address}"
            row = checked_row(make_environment(python, resolution, folder / "lab", laboratory))
            print_row(row[0], *row[1])
            failed += row[1].count("fails")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
