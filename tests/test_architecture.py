"""docs/architecture.md shows the imports as they are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "neural_similarity"
LIBRARY = "ops functional nn models conversion regularize visualize testing hub files".split()
LABORATORY = ("data", "train", "tasks", "session", "recipes", "paper", "theory", "cli")
IMPORT = re.compile(r"^\s*from ([\w.]+) import ([\w, ]+|\()", re.MULTILINE)


def files(room):
    path = SOURCES / room
    return [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")


def imported(room, package, rooms):
    """The other rooms of `rooms` that a room's files import, rooms of `package`."""
    found = set()
    for file in files(room):
        for module, names in IMPORT.findall(file.read_text()):
            if module == package:
                found |= {name.strip().split(" ")[0] for name in names.split(",")}
            elif module.startswith(f"{package}."):
                found.add(module.removeprefix(f"{package}.").partition(".")[0])
    return found & set(rooms) - {Path(room).name}


def described():
    """The imports in the table of modules."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(?:lab/)?(\w+)[/.`][^|]*\| ([\w, ]*) \|", text, re.MULTILINE)
    return {(room, other) for room, others in rows for other in others.split(", ") if other}


def test_the_table_has_the_imports_and_no_others():
    arrows = {("lab", "library"), ("benchmarks", "lab"), ("benchmarks", "library")}
    for room in LIBRARY:
        arrows |= {(room, other) for other in imported(room, "neural_similarity", LIBRARY)}
    for room in LABORATORY:
        others = imported(f"lab/{room}", "neural_similarity.lab", LABORATORY)
        arrows |= {(room, other) for other in others}
    assert described() | {("lab", "library")} == arrows


def test_every_room_is_described():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for room in (*LIBRARY, *(f"lab/{name}" for name in LABORATORY), "benchmarks"):
        assert re.search(rf"^\| `{room}[/.`]", text, re.MULTILINE), room
