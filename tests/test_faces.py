"""What importing by dotted names gives, and what `dir` of the library's faces shows."""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import neural_similarity as ns

FACES = ("conversion", "functional", "hub", "models", "nn", "ops", "peft", "regularize")
FACES = ("", *(f".{name}" for name in (*FACES, "testing", "visualize")))


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


@pytest.mark.parametrize("face", FACES)
def test_dir_shows_public_names_alone(face):
    module = importlib.import_module(f"{ns.__name__}{face}")
    expected = public_names(Path(module.__file__), module.__name__)
    if not face:
        expected = {*ns.__all__, "__version__"}
    assert dir(module) == sorted(expected)
    assert all(hasattr(module, name) for name in dir(module))
