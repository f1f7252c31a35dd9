"""Build the site: write the generated pages, run Zensical strictly, check every public name.

    uv run --group docs python scripts/build_site.py            # into site/
    uv run --group docs python scripts/build_site.py --serve    # and show it while you write

Generated pages are git-ignored: home (README), the reference (`api`, `commands.md`, `fields.md`),
the benchmarks of each processor (`docs/evidence/machines`), notebooks (`docs/notebooks/*.md`), and
what stands in the root (contributing, changelog). So is `mkdocs.site.yml`, mkdocs.yml with the
reference in its navigation.
"""

import ast
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import torch
from matplotlib.figure import Figure

import neural_similarity as ns
from neural_similarity import testing
from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.cli import main as nsim
from neural_similarity.visualize import plot_matrices

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.site.yml"
API = DOCS / "reference" / "api"
PACKAGE = ROOT / "src" / "neural_similarity"
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
RECIPES = {
    "TrainingRecipe": "neural_similarity.lab.train.recipe",
    "LossTerms": "neural_similarity.lab.train.recipe",
    "Recipe": "neural_similarity.lab.train.recipe",
    "FewShotRecipe": "neural_similarity.lab.tasks.few_shot.recipe",
}
"""A `Recipe` has the fields of the first three, a `FewShotRecipe` of the first and its own."""
STRUCTURES: dict[str, ns.nn.Structure] = {
    **{type(structure).__name__: structure for structure in testing.STRUCTURES.values()},
    "Diagonal": ns.Diagonal(),
    "Masked": ns.Masked(ns.Full()),
    "Shift": ns.Shift(),
    "Unshared": ns.Unshared(ns.Full(), channels=2),
}
"""The structures whose pages have a picture of M."""
DRAWN = """\
Left: the M that rotates a 3×3 kernel by 30°. Right: this structure, fitted to it by gradient
descent. Both are shown minus the identity. Each of the nine small maps belongs to the kernel tap at
its place, and shows which taps of the patch this kernel tap is multiplied with. A diagonal M has
one map. [What M learned](../../notebooks/what-m-learned.md) shows trained networks.
"""
METHODS = {
    "neural_similarity.nn.layer.SimilarityLayer.fuse": "layer.fuse",
    "neural_similarity.nn.similarity.StaticSimilarity.matrix": "layer.similarity.matrix, static",
    "neural_similarity.nn.similarity.DynamicSimilarity.matrix": "layer.similarity.matrix, dynamic",
}
"""What every layer and its `similarity` have beside their own, shown with the first of them."""
INDEX = """\
# Python

All names of `import neural_similarity as ns`, each with an example that runs. `nn.Conv2d` in a
signature is torch's. Begin with [`ns.convert`](convert.md),
[`ns.freeze_backbone`](freeze_backbone.md), [`ns.parameter_groups`](parameter_groups.md),
[`ns.save_adapter`](save_adapter.md) and [`ns.fold`](fold.md).
"""
KINDS = ("Layers and similarities", "Functions", "Modules")
"""The headings of the sidebar and of the index."""


def file_of(module: str) -> Path:
    """The source of a module of the package."""
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def names_of(module: str) -> str:
    """The text that says what a module hands out: its stub, where it has one."""
    stub = file_of(module).with_suffix(".pyi")
    return (stub if stub.exists() else file_of(module)).read_text("utf-8")


def public_names(module: str) -> dict[str, str]:
    """What a module hands out: names with the paths where they are defined.

    Names are those that it defines without a leading underscore, or imports `as` themselves.
    """
    found: dict[str, str] = {}
    body = ast.parse(names_of(module)).body
    for node in [*body, *(n for part in body if isinstance(part, ast.If) for n in part.body)]:
        match node:
            case ast.ImportFrom(module=str(home)):
                names = [a.name for a in node.names if a.asname == a.name]
                found |= {name: home_of(home, name) for name in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = f"{module}.{name}"
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = f"{module}.{name}"
    return {name: home for name, home in found.items() if not name.startswith("_")}


def home_of(module: str, name: str) -> str:
    """The path of the definition that `module` hands out as `name`."""
    if file_of(f"{module}.{name}").exists():
        return f"{module}.{name}"
    return public_names(module)[name]


def public_paths() -> dict[str, str]:
    """Every public name of the package with the path of its definition."""
    text = names_of("neural_similarity")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    return {
        name: home_of(homes.get(name, "neural_similarity"), name)
        for name in dir(ns)
        if name != "__version__"
    }


def first_line(path: str) -> str:
    """The first line of a docstring."""
    if file_of(path).exists():
        text = ast.get_docstring(ast.parse(file_of(path).read_text("utf-8"))) or ""
        return text.partition("\n")[0]
    module, _, name = path.rpartition(".")
    body = ast.parse(file_of(module).read_text("utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and target.id == name:
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return str(after.value.value).partition("\n")[0] if documented else ""
    raise ValueError(f"{module} must define {name}")


def reference_examples() -> dict[str, str]:
    """The example of every public name, in Markdown."""
    text = (ROOT / "examples" / "reference.md").read_text("utf-8")
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def kind_of(name: str, path: str) -> str:
    """The heading of a public name in the sidebar."""
    if file_of(path).exists():
        return "Modules"
    return "Functions" if name.islower() else "Layers and similarities"


def write_navigation(found: dict[str, str]) -> None:
    """Write mkdocs.yml anew with all pages of the reference, so that they have a sidebar."""
    lines = ["      - Python:", "          - All names: reference/api/index.md"]
    for kind in KINDS:
        names = [name for name, path in found.items() if kind_of(name, path) == kind]
        lines += [f"          - {kind}:"]
        lines += [f"              - {name}: reference/api/{name}.md" for name in names]
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    entry = "      - Python: reference/api/index.md"
    CONFIG.write_text(text.replace(entry, "\n".join(lines)), "utf-8")


def reference_pages() -> dict[str, str]:
    """The pages of the reference, by file name."""
    found, shown = public_paths(), reference_examples()
    pages = {
        name: f"{reference_page(name, path, found)}\n## Example\n{shown[name]}"
        for name, path in found.items()
    }
    for name in STRUCTURES:
        picture = f"![A rotation by 30°, and the nearest M of this structure]({name}.png){{.fit}}"
        pages[name] += f"## M\n\n{picture}\n\n{DRAWN}\n"
    for path, heading in METHODS.items():
        pages["Conv2d"] += f"\n::: {path}\n    options:\n      heading: {heading}\n"
    return {"index.md": index_page(found)} | {f"{n}.md": p for n, p in pages.items()}


def index_page(found: dict[str, str]) -> str:
    """The public names by kind, each with the first line of its docstring."""
    parts = [INDEX]
    for kind in KINDS:
        rows = [
            f"| [`ns.{name}`]({name}.md) | {first_line(path)} |"
            for name, path in found.items()
            if kind_of(name, path) == kind
        ]
        parts.append("\n".join((f"\n## {kind}\n", "| name | |", "|---|---|", *rows)) + "\n")
    return "".join(parts)


def reference_page(name: str, path: str, found: dict[str, str]) -> str:
    """The page of a name; of a module, with what else it hands out."""
    title = f"# ns.{name}\n"
    if not file_of(path).exists():
        return f"{title}\n::: {path}\n"
    elsewhere = {home: other for other, home in found.items()}
    parts = [title, f"::: {path}\n    options:\n      members: false\n      show_source: false\n"]
    members = public_names(path)
    links = [f"[`{m}`]({elsewhere[p]}.md)" for m, p in members.items() if p in elsewhere]
    if links:
        parts.append(f"It also has {', '.join(links)}.\n")
    own = [p for p in members.values() if p not in elsewhere and not file_of(p).exists()]
    parts += [f"::: {p}\n" for p in own]
    return "\n".join(parts)


def write_reference() -> None:
    """Write docs/reference/api anew."""
    shutil.rmtree(API, ignore_errors=True)
    API.mkdir(parents=True)
    for name, text in reference_pages().items():
        (API / name).write_text(text, "utf-8")
    for name, structure in STRUCTURES.items():
        draw_structure(structure).savefig(API / f"{name}.png", dpi=100)
    write_navigation(public_paths())


def draw_structure(structure: ns.nn.Structure) -> Figure:
    """A rotation by 30°, and the M of a structure that is fitted to it."""
    torch.manual_seed(0)
    turn = ns.Conv2d(1, 1, 3, similarity=ns.Static(ns.Affine("angle")))
    torch.nn.init.constant_(turn.similarity.raw, 1 / 3)  # of a right angle
    target = turn.similarity.matrix().detach()
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


def commands_page() -> str:
    """The page of the command line: what `nsim COMMAND --help` prints."""
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
    parts = ["# Command line\n\n" + _shell(help_text())]
    texts = {name: help_text(name) for name in COMMANDS}  # none of a command that has moved
    parts += [f"## nsim {name}\n\n{_shell(text)}" for name, text in texts.items() if text]
    return "\n".join(parts)


def help_text(*words: str) -> str:
    """What `nsim WORDS --help` prints."""
    output = io.StringIO()
    with redirect_stdout(output):
        nsim([*words, "--help"])
    return output.getvalue()


def _shell(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"```text\n{lines}\n```\n"


def fields_table(module: str, name: str) -> str:
    """A table of a dataclass's fields: name, type, default, docstring."""
    body = ast.parse(file_of(module).read_text("utf-8")).body
    (found,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field, after in zip(found.body, [*found.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = " ".join(str(after.value.value).split()) if documented else ""
        kind = ast.unparse(field.annotation).replace("|", "\\|")
        default = f"`{ast.unparse(field.value)}`" if field.value else "required"
        rows.append(f"| `{ast.unparse(field.target)}` | {kind} | {default} | {text} |")
    return "\n".join(rows) + "\n"


def write_command_line() -> None:
    """Write the pages of `nsim` and of what its recipes hold."""
    (DOCS / "reference" / "commands.md").write_text(commands_page(), "utf-8")
    text = "# Recipe fields\n\nEvery field is an option of `nsim train`: `--batch-size 64`.\n"
    text += "A `Recipe` has the fields of the first three tables, a `FewShotRecipe` those of the\n"
    text += "first and the last.\n"
    for name, module in RECIPES.items():
        text += f"\n## {name}\n\n{fields_table(module, name)}"
    (DOCS / "reference" / "fields.md").write_text(text, "utf-8")


def write_root_pages() -> None:
    """Copy what stands in the root, its links as seen from docs. README is the home page."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](").replace(".ipynb)", ".md)")
        for other, target in ROOT_PAGES.items():
            text = text.replace(f"]({other})", f"]({target})")
        (DOCS / page).write_text(text, "utf-8")


def missing_names(site: Path) -> list[str]:
    """Public names whose page does not show them: Zensical renders some silently empty."""
    found = []
    for name, path in public_paths().items():
        html = site / "reference" / "api" / name / "index.html"
        if not html.exists() or f'id="{path}"' not in html.read_text("utf-8"):
            found.append(name)
    return found


def shorten_search(file: Path) -> None:
    """Let the search find pages of the navigation alone: evidence has as many words as they."""
    index = json.loads(file.read_text("utf-8"))
    left_out = ("evidence/", "changelog/", "contributing/")
    index["items"] = [one for one in index["items"] if not one["location"].startswith(left_out)]
    file.write_text(json.dumps(index, ensure_ascii=False), "utf-8")


def run_command(*command: str) -> None:
    """Run a command from the root, which `scripts.mathml` is imported from."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["SITE_DESCRIPTION"] = project["description"]
    environment["SITE_NAME"] = f"neural-similarity {project['version']}"
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    """Build, or show."""
    write_reference()
    write_notebooks()
    write_machines()
    write_command_line()
    write_root_pages()
    zensical = str(Path(sys.executable).with_name("zensical"))
    if "--serve" in sys.argv[1:]:
        run_command(zensical, "serve", "--config-file", str(CONFIG))
        return
    run_command(zensical, "build", "--config-file", str(CONFIG), "--clean", "--strict")
    shorten_search(ROOT / "site" / "search.json")
    for folder in LINKED:
        shutil.copytree(ROOT / folder, ROOT / "site" / folder, dirs_exist_ok=True)
    if empty := missing_names(ROOT / "site"):
        raise SystemExit(f"no reference is shown of: {', '.join(empty)}")


if __name__ == "__main__":
    main()
