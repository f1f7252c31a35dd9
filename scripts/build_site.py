"""Build the site: write the generated pages, run Zensical strictly, check every public name.

    uv run --group docs python scripts/build_site.py            # into site/
    uv run --group docs python scripts/build_site.py --serve    # and show it while you write

Generated pages are git-ignored: home (README), the reference (`api`, `commands.md`), the benchmarks
of each processor (`docs/evidence/machines`), notebooks (`docs/notebooks/*.md`), and those of the
root (contributing, changelog). So is `mkdocs.site.yml`, mkdocs.yml with the reference in its
navigation.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import griffe
import torch
from matplotlib.figure import Figure

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.cli import main as nsim
from neural_similarity.lab.cli.help_pages import help_page
from neural_similarity.visualize import plot_matrices

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.site.yml"
API = DOCS / "reference" / "api"
MACHINES = {"xeon": "benchmarks", "epyc": "benchmarks/epyc", "epyc-avx2": "benchmarks/avx2"}
"""Pages below docs/evidence/machines by the folder of their reports."""
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FITTING_STEPS = 300
"""Updates of the matrices that the pages of structures show."""
LINKED = ("results/theory", "examples")
"""What pages show or link to outside of docs."""
STRUCTURES: dict[str, ns.nn.Structure] = {
    **{type(structure).__name__: structure for structure in testing.STRUCTURES.values()},
    "Diagonal": ns.Diagonal(),
    "Masked": ns.Masked(ns.Full()),
    "Shift": ns.Shift(),
    "Unshared": ns.Unshared(ns.Full(), channels=2),
}
"""The structures whose pages have a picture of M."""
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
METHODS = {
    "neural_similarity.nn.layer.SimilarityLayer.fuse": "layer.fuse",
    "neural_similarity.nn.similarity.StaticSimilarity.matrix": "layer.similarity.matrix, static",
    "neural_similarity.nn.similarity.DynamicSimilarity.matrix": "layer.similarity.matrix, dynamic",
}
"""What every layer and its `similarity` have beside their own, shown with the first of them."""
RECIPES = ("train adapt", "train fewshot-quickstart")
"""Recipes with fields of their own."""
KINDS = ("Layers and similarities", "Functions", "Modules")
"""The headings of the sidebar and of the index."""


@cache
def public_names() -> dict[str, griffe.Object]:
    """The definitions of all public names of the package; the stub names them."""
    package = griffe.load("neural_similarity", search_paths=[ROOT / "src"], resolve_aliases=True)
    return {name: package[name] for name in dir(ns) if name != "__version__"}


def kind_of(name: str, found: griffe.Object) -> str:
    """The heading of a public name in the sidebar."""
    if found.is_module:
        return "Modules"
    return "Functions" if name.islower() else "Layers and similarities"


def write_navigation() -> None:
    """Write mkdocs.yml anew with all pages of the reference, so that they have a sidebar."""
    lines = ["      - Python:", "          - All names: reference/api/index.md"]
    for kind in KINDS:
        lines += [f"          - {kind}:"]
        lines += [
            f"              - {name}: reference/api/{name}.md"
            for name, found in public_names().items()
            if kind_of(name, found) == kind
        ]
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    entry = "      - Python: reference/api/index.md"
    CONFIG.write_text(text.replace(entry, "\n".join(lines)), "utf-8")


def reference_pages() -> dict[str, str]:
    """The pages of the reference, by file name."""
    text = (ROOT / "examples" / "reference.md").read_text("utf-8")
    shown = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    pages = {
        name: f"{reference_page(name, found)}\n## Example\n{shown[name]}"
        for name, found in public_names().items()
    }
    for name in STRUCTURES:
        picture = f"![A rotation by 30°, and the nearest M of this structure]({name}.png){{.fit}}"
        pages[name] += f"## M\n\n{picture}\n\n{TEXTS['drawn']}\n"
    for path, heading in METHODS.items():
        pages["Conv2d"] += f"\n::: {path}\n    options:\n      heading: {heading}\n"
    return {"index.md": index_page()} | {f"{n}.md": p for n, p in pages.items()}


def index_page() -> str:
    """The public names by kind, each with the first line of its docstring."""
    parts = [TEXTS["index"]]
    for kind in KINDS:
        rows = [
            f"| [`ns.{name}`]({name}.md) | {text.value.partition(chr(10))[0] if text else ''} |"
            for name, found in public_names().items()
            for text in (found.docstring,)
            if kind_of(name, found) == kind
        ]
        parts.append("\n".join((f"\n## {kind}\n", "| name | |", "|---|---|", *rows)) + "\n")
    return "".join(parts)


def reference_page(name: str, found: griffe.Object) -> str:
    """The page of a name; of a module, with its other public names."""
    path = found.canonical_path
    title = f"# ns.{name}\n"
    if not found.is_module:
        return f"{title}\n::: {path}\n"
    elsewhere = {other.canonical_path: n for n, other in public_names().items()}
    parts = [title, f"::: {path}\n    options:\n      members: false\n      show_source: false\n"]
    members = [found[member] for member in found.members if member in dir(getattr(ns, name))]
    places = {member.canonical_path: member for member in members}
    links = [f"[`{m.name}`]({elsewhere[p]}.md)" for p, m in places.items() if p in elsewhere]
    if links:
        parts.append(f"It also has {', '.join(links)}.\n")
    rest = [p for p, member in places.items() if p not in elsewhere and not member.is_module]
    return "\n".join(parts + [f"::: {p}\n" for p in rest])


def write_reference() -> None:
    """Write docs/reference/api anew."""
    shutil.rmtree(API, ignore_errors=True)
    API.mkdir(parents=True)
    for name, text in reference_pages().items():
        (API / name).write_text(text, "utf-8")
    for name, structure in STRUCTURES.items():
        draw_structure(structure).savefig(API / f"{name}.png", dpi=100)
    write_navigation()


def draw_structure(structure: ns.nn.Structure) -> Figure:
    """A rotation by 30°, and the M of a structure that is fitted to it."""
    torch.manual_seed(0)
    rotation = ns.Conv2d(1, 1, 3, similarity=ns.Static(ns.Affine("angle")))
    torch.nn.init.constant_(rotation.similarity.raw, 1 / 3)  # of a right angle
    target = rotation.similarity.matrix().detach()
    layer = ns.Conv2d(2, 2, 3, similarity=ns.Static(structure))
    optimizer = torch.optim.Adam(layer.similarity.parameters(), lr=0.03)
    for _ in range(FITTING_STEPS):
        optimizer.zero_grad()
        _nine_by_nine(layer.similarity.matrix()).sub(target).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        fitted = layer.similarity.matrix()
    shown = fitted if fitted.dim() == 1 else _nine_by_nine(fitted)
    drawn = {"rotation by 30°": target, type(structure).__name__: shown}
    return plot_matrices(drawn, kernels=dict.fromkeys(drawn, (3, 3)))


def _nine_by_nine(matrix: torch.Tensor) -> torch.Tensor:
    """M of the first group or channel of a layer, as a matrix of taps."""
    first = matrix.flatten(0, matrix.dim() - 3)[0] if matrix.dim() > 2 else matrix
    return first.diag() if first.dim() == 1 else first[:9, :9]


def write_notebooks() -> None:
    """Write every executed notebook as a page, pictures beside it."""
    for file in sorted((DOCS / "notebooks").glob("*.ipynb")):
        cells = json.loads(file.read_text("utf-8"))["cells"]
        parts = [part for cell in cells for part in shown_cell(cell, file.stem)]
        file.with_suffix(".md").write_text("\n\n".join(parts) + "\n", "utf-8")


def shown_cell(cell: dict, stem: str) -> Iterator[str]:
    """A cell of a notebook in Markdown; its pictures are written."""
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            picture = DOCS / "notebooks" / f"{stem}-{cell['id']}.png"
            picture.write_bytes(base64.b64decode(data["image/png"]))
            yield f"![Output of the code above]({picture.name}){{.fit}}"
        elif "text/html" in data:
            yield "".join(data["text/html"])
        elif output["output_type"] == "stream":
            yield _shell("".join(output["text"]))


def write_machines() -> None:
    """Write the page of every processor's benchmarks."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import performance  # It needs torch, which the other pages do without.

    folder = DOCS / "evidence" / "machines"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, results in MACHINES.items():
        command = f"python -m benchmarks page --results {results}"
        text = performance.page(ROOT / results, command)
        text = text.replace(f"`{(ROOT / results).as_posix()}/`", f"`{results}/`")
        (folder / f"{name}.md").write_text(text, "utf-8")


def write_commands() -> None:
    """Write the page of the command line: what `nsim COMMAND --help` prints."""
    with redirect_stdout(StringIO()) as shown:
        nsim(["--help"])
    parts = [TEXTS["command_line"], _shell(shown.getvalue())]
    for line in (*COMMANDS, *RECIPES):
        if text := help_page(*line.split()):
            parts += [f"## nsim {line}\n", _shell(text)]
    (DOCS / "reference" / "commands.md").write_text("\n".join(parts), "utf-8")


def _shell(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"```text\n{lines}\n```\n"


def write_root_pages() -> None:
    """Copy what stands in the root, its links as seen from docs. README is the home page."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](").replace(".ipynb)", ".md)")
        for other, target in ROOT_PAGES.items():
            text = text.replace(f"]({other})", f"]({target})")
        (DOCS / page).write_text(text, "utf-8")


def missing_names(site: Path) -> list[str]:
    """Public names whose page does not show them: Zensical renders some silently empty."""
    pages = {name: site / "reference" / "api" / name / "index.html" for name in public_names()}
    return [
        name
        for name, found in public_names().items()
        if f'id="{found.canonical_path}"' not in pages[name].read_text("utf-8")
    ]


def shorten_search(file: Path) -> None:
    """Let the search find pages of the navigation alone: evidence has as many words as they."""
    index = json.loads(file.read_text("utf-8"))
    left_out = ("evidence/", "changelog/", "contributing/")
    index["items"] = [one for one in index["items"] if not one["location"].startswith(left_out)]
    file.write_text(json.dumps(index, ensure_ascii=False), "utf-8")


def run_zensical(*words: str) -> None:
    """Run Zensical from the root, which it imports `scripts.mathml` from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["SITE_DESCRIPTION"] = project["description"]
    environment["SITE_NAME"] = f"neural-similarity {project['version']}"
    command = [sys.executable, "-m", "zensical", *words, "--config-file", CONFIG]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    """Build, or show."""
    write_reference()
    write_notebooks()
    write_machines()
    write_commands()
    write_root_pages()
    if "--serve" in sys.argv[1:]:
        run_zensical("serve")
        return
    run_zensical("build", "--clean", "--strict")
    shorten_search(ROOT / "site" / "search.json")
    for folder in LINKED:
        shutil.copytree(ROOT / folder, ROOT / "site" / folder, dirs_exist_ok=True)
    if empty := missing_names(ROOT / "site"):
        raise SystemExit(f"no reference is shown of: {', '.join(empty)}")


if __name__ == "__main__":
    main()
