"""What importing brings along, what the library needs, what is said where the extra lacks; and
that the table of modules shows the imports."""

import inspect
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
LIBRARY = "ops functional nn models conversion regularize visualize testing hub peft files".split()
LABORATORY = ("data", "train", "tasks", "session", "recipes", "cli")
PAPER_SOURCES = ROOT / "src" / "neural_similarity_paper"
PAPER = (
    "corruption",
    "learned",
    "recipes",
    "rival_layers",
    "rival_methods",
    "statistics",
    "tables",
    "theory",
    "studies",
    "cli",
)
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


def test_the_face_shows_what_a_user_may_use_and_nothing_else():
    assert dir(ns) == sorted([*ns.__all__, "__version__"])
    assert all(getattr(ns, name) is not None for name in dir(ns))
    assert callable(ns.convert)


def test_every_public_name_says_what_it_is():
    assert not [name for name in ns.__all__ if not inspect.getdoc(getattr(ns, name))]


def files(room, sources=SOURCES):
    path = sources / room
    return [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")


def imported(room, package, rooms, sources=SOURCES):
    """The other rooms of `rooms` that a room's files import, rooms of `package`."""
    found = set()
    for file in files(room, sources):
        for module, names in IMPORT.findall(file.read_text()):
            if module == package:
                found |= {name.strip().split(" ")[0] for name in names.split(",")}
            elif module.startswith(f"{package}."):
                found.add(module.removeprefix(f"{package}.").partition(".")[0])
    return found & set(rooms) - {Path(room).name}


def described():
    """The imports in the table of modules."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    rows = re.findall(
        r"^\| `(?:lab/)?([\w/]+?)[/.]?(?:py)?`[^|]*\| ([\w, ]*) \|", text, re.MULTILINE
    )
    return {(room, other) for room, others in rows for other in others.split(", ") if other}


def test_the_table_has_the_imports_and_no_others():
    arrows = {("lab", "library"), ("benchmarks", "lab"), ("benchmarks", "library")}
    for room in LIBRARY:
        arrows |= {(room, other) for other in imported(room, "neural_similarity", LIBRARY)}
    for room in LABORATORY:
        others = imported(f"lab/{room}", "neural_similarity.lab", LABORATORY)
        arrows |= {(room, other) for other in others}
    for room in PAPER:
        others = imported(room, "neural_similarity_paper", PAPER, PAPER_SOURCES)
        arrows |= {(f"paper/{room}", other) for other in others}
    assert described() | {("lab", "library")} == arrows


def test_every_room_is_described():
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    for room in (
        *LIBRARY,
        *(f"lab/{name}" for name in LABORATORY),
        "benchmarks",
        *(f"paper/{name}" for name in PAPER),
    ):
        assert re.search(rf"^\| `{room}[/.`]", text, re.MULTILINE), room
