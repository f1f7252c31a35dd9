"""What importing brings along and the library's faces show, what the library needs, what is said
where the extra lacks; and that the table of modules shows the imports."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from importlib.metadata import PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest

import neural_similarity as ns
from neural_similarity.choices import EXTRA, install_command

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "neural_similarity"
HOUSES = {
    "": "ops functional nn models conversion regularize visualize testing hub peft files",
    "lab/": "data train tasks session recipes cli",
    "paper/": "corruption learned recipes rival_layers rival_methods statistics tables theory "
    "studies cli",
}
"""The rooms of every house, by how the table of modules names it."""
FACES = "conversion functional hub models nn ops peft regularize testing visualize".split()
IMPORT = re.compile(r"^\s*from ([\w.]+) import ([\w, ]+|\()", re.MULTILINE)
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({EXTRA}))\n"
USE = """
import torch
from torch import nn
import neural_similarity as ns
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
x = torch.randn(2, 3, 8, 8)
for similarity in ("static-full", "dynamic-diagonal"):
    converted = ns.convert(network, similarity)
    assert ns.max_difference(network, converted, x) < 1e-5
    optimizer = torch.optim.SGD(ns.parameter_groups(converted, weight_decay=0.0), lr=0.5)
    converted(x).square().sum().backward()
    optimizer.step()
    assert ns.max_difference(network, converted, x) > 1e-3
    plain = ns.fold(converted, dynamic="keep")
    assert ns.max_difference(converted, plain, x) < 1e-4
    assert (type(plain[0]) is nn.Conv2d) == (similarity == "static-full")
print("done")
"""


DRAW = """
import torch, neural_similarity as ns
layer = ns.Conv2d(3, 4, 3, similarity='static-full')
ns.visualize.draw(layer, torch.zeros(1, 3, 8, 8), '.')
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_library_needs_nothing_of_the_extra():
    """Without numpy torch warns, as the page of errors says, and nothing else does."""
    done = run(BLOCKED + USE)
    assert done.stdout == "done\n", done.stderr
    (warning,) = re.findall(r"Warning: (.{26})", done.stderr)
    assert f"`{warning}" in (ROOT / "docs/how-to/questions.md").read_text("utf-8")


@pytest.mark.long
def test_the_library_runs_from_an_archive_without_its_c_code(tmp_path):
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        for path in [*SOURCES.rglob("*.py"), *SOURCES.rglob("*.pyi")]:
            archive.write(path, Path("neural_similarity", path.relative_to(SOURCES)))
    done = run(f"""
import sys, warnings
sys.path.insert(0, {archive.filename!r})
import torch, neural_similarity as ns
assert ns.__file__.startswith(sys.path[0])
with warnings.catch_warnings(record=True) as caught:
    ns.Conv2d(2, 2, 3, similarity="dynamic-diagonal")(torch.zeros(1, 2, 4, 4))
assert "eager form" in str(caught[0].message) and "operators.c is missing" in str(caught[0].message)
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import neural_similarity as ns; ns.load", "ns.load"),
        (DRAW, "ns.visualize"),
        ("from neural_similarity.lab.cli import main; main(['train'])", "nsim"),
        ("from neural_similarity.lab.cli import main; main(['recipes'])", "nsim"),
    ],
)
def test_what_lacks_the_extra_says_what_to_install(code, what):
    last = run(BLOCKED + code).stderr.splitlines()[-1]
    assert f"{what} needs the extra `lab` (" in last
    assert last.endswith(f"is missing): {install_command('lab')}")


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, "pip install 'neural-similarity[lab]'"),  # from an index
        (
            '{"url": "file:///a/b%20c", "dir_info": {"editable": true}}',
            "pip install -e '/a/b c[lab]'",
        ),
        (
            '{"url": "file:///a", "dir_info": {}}',
            "pip install 'neural-similarity[lab] @ file:///a'",
        ),
        (
            '{"url": "https://host/x", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            "pip install 'neural-similarity[lab] @ git+https://host/x'",
        ),
        ("not JSON", "pip install 'neural-similarity[lab]'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came(monkeypatch, noted, command):
    monkeypatch.setattr(PathDistribution, "read_text", lambda *_: noted)
    assert install_command("lab") == command


def test_of_a_clone_on_the_path_the_clone_is_installed(monkeypatch):
    def nothing_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing_installed)
    root = Path(ns.__file__).parents[2]
    assert (root / "pyproject.toml").is_file()
    assert install_command("lab") == f"pip install -e '{root}[lab]'"


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("lab", {"pillow", *EXTRA} - {"PIL"}),
        ("adapt", {"timm", "torchvision"}),
        ("baselines", {"lycoris"}),
    ],
)
def test_an_extra_has_the_modules_that_it_is_named_for(extra, names):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = project["optional-dependencies"][extra]
    assert {re.match(r"\w+", line)[0] for line in lines} == names


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["recipes"], ["recipes", "--all"]])
def test_help_and_lists_load_no_torch(words):
    code = f"import sys; from neural_similarity.lab.cli import main; main({words})\n"
    code += "print('torch' in sys.modules, file=sys.stderr)"
    assert run(code).stderr.splitlines()[-1] == "False"


WITHOUT_THE_CLONE = """
import sys
sys.path = [{target!r}, *(path for path in sys.path if not path.endswith("src"))]
import neural_similarity
assert neural_similarity.__file__.startswith({target!r})
from neural_similarity.lab.cli import main
sys.exit(main({words}))
"""


@pytest.mark.long
def test_rooms_have_what_other_packages_add():
    done = run("""
from neural_similarity.lab.data import load_dataset
try:
    load_dataset("cifar10-noise-25", "nowhere")
except FileNotFoundError:
    from neural_similarity.lab.train import Recipe
    Recipe(model="cnn9_condconv")
    print("both")
""")
    assert done.stdout == "both\n", done.stderr


@pytest.mark.long
def test_the_wheel_says_what_needs_a_clone_and_lists_its_own_recipes(tmp_path):
    """Built and unpacked, beside the requirements that are installed here."""
    build = ["uv", "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,), target = tmp_path.glob("*.whl"), str(tmp_path / "wheel")
    zipfile.ZipFile(wheel).extractall(target)
    for command in ("table", "reproduce", "record", "theory"):
        for words in ([command, "4"], [command, "--help"]):
            done = run(WITHOUT_THE_CLONE.format(target=target, words=words))
            assert done.returncode == 2, done.stderr
            assert f"nsim {command} needs a clone of the repository" in done.stderr
    done = run(WITHOUT_THE_CLONE.format(target=target, words=["recipes", "--all"]))
    names = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert {"quickstart", "fewshot-quickstart", "adapt"} <= set(names)
    assert "cifar10-cnn" not in names
    done = run(WITHOUT_THE_CLONE.format(target=target, words=["train", "cifar10-cnn"]))
    assert "no recipe is named 'cifar10-cnn'" in done.stderr


def test_importing_loads_nothing_heavy():
    heavy = ["torchvision", "triton", "matplotlib", "PIL", "tyro", "rich", "scipy", "pandas"]
    code = (
        "import sys, torch; before = set(sys.modules); import neural_similarity as ns\n"
        "ns.Conv2d, ns.convert, ns.parameter_groups\n"
        f"print([m for m in {heavy} if m in sys.modules and m not in before])"
    )
    assert run(code).stdout == "[]\n"


def test_every_public_name_says_what_it_is():
    assert not [name for name in ns.__all__ if not inspect.getdoc(getattr(ns, name))]


def modules():
    """The names of all modules of both houses."""
    found = pkgutil.walk_packages(ns.__path__, f"{ns.__name__}.")
    return [module for module in found if not module.name.endswith("__main__")]


def public_names(path, module):
    """Names that a module defines at its top, or hands on: imports as the same name, no parts."""
    names, stub = set(), path.with_suffix(".pyi")
    text = (stub if stub.exists() else path).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module != module:
            names |= {alias.name for alias in node.names if alias.name == alias.asname}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_every_dotted_name_of_a_module_is_that_module():
    for module in modules():
        importlib.import_module(module.name)
    wrong = {}
    for module in modules():
        found = {}
        exec(f"import {module.name} as module", found)
        if found["module"] is not sys.modules[module.name]:
            wrong[module.name] = type(found["module"])
    assert not wrong


def test_no_package_has_one_name_for_a_part_and_something_else():
    """Which of the two it is would depend on what was imported before."""
    packages = [module for module in modules() if module.ispkg]
    assert len(packages) > 10
    for module in packages:
        path = Path(module.module_finder.path, module.name.rpartition(".")[2])
        parts = {part.name for part in pkgutil.iter_modules([str(path)])}
        names = public_names(path / "__init__.py", module.name)
        assert not names & parts, module.name


@pytest.mark.parametrize("face", ["", *(f".{name}" for name in FACES)])
def test_dir_shows_public_names_alone(face):
    module = importlib.import_module(f"{ns.__name__}{face}")
    expected = public_names(Path(module.__file__), module.__name__)
    if not face:
        expected = {*ns.__all__, "__version__"}
    assert dir(module) == sorted(expected)
    assert all(hasattr(module, name) for name in dir(module))


def imported(house, room):
    """The other rooms of a house that the files of a room import."""
    folder = ROOT / "src" / f"neural_similarity{'_paper' if house == 'paper/' else ''}"
    folder /= "lab" * (house == "lab/")
    package, path = ".".join(folder.relative_to(ROOT / "src").parts), folder / room
    found = set()
    for file in (path.with_suffix(".py"), *path.rglob("*.py")):
        for module, names in IMPORT.findall(file.read_text() if file.exists() else ""):
            whole = [f"{module}.{name.split()[0]}" for name in names.split(",")]
            parts = [
                name.removeprefix(f"{package}.") for name in whole if name.startswith(f"{package}.")
            ]
            found |= {part.partition(".")[0] for part in parts}
    return found & {*HOUSES[house].split()} - {room}


def test_the_table_of_modules_has_every_room_with_its_imports():
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([\w/]+?)/?(?:\.py)?`[^|]*\| ([\w, ]*) \|", text, re.MULTILINE)
    rooms = [(house, room) for house, names in HOUSES.items() for room in names.split()]
    expected = {f"{house}{room}": imported(house, room) for house, room in rooms}
    expected["benchmarks"] = {"lab", "library"}
    assert {room: {*filter(None, others.split(", "))} for room, others in rows} == expected


def test_pages_for_contributors_name_what_the_code_has():
    pages = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md")
    names = set(re.findall(r"`(?:\w+\.)?(\w+)`", "".join(page.read_text() for page in pages)))
    every = (path for folder in ("src", "scripts") for path in (ROOT / folder).rglob("*"))
    files = [path for path in every if path.suffix in (".py", ".pyi", ".toml")]
    files.append(ROOT / "mkdocs.yml")
    assert names <= set(re.findall(r"\w+", "".join(path.read_text() for path in files)))
    for path in re.findall(r"`((?:\w+/)+[a-z_]+\.\w+)`", pages[1].read_text()):
        place = f"neural_similarity/{path}".replace("/paper/", "_paper/")
        assert (ROOT / "src" / place).exists() or (ROOT / path).exists()
