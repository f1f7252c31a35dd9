"""The generated pages of the site: every public name has one."""

import dataclasses
from pathlib import Path

import build_site as builder
import pytest

import neural_similarity as ns
from neural_similarity.lab.tasks.few_shot import FewShotRecipe

ROOT = Path(__file__).parents[1]


def test_every_public_name_has_a_page():
    pages = builder.reference()
    names = set(dir(ns)) - {"__version__"}
    assert set(pages) == {"index.md", *(f"{name}.md" for name in names)}
    for name in names:
        assert f"[`ns.{name}`]({name}.md)" in pages["index.md"]


@pytest.mark.long
def test_a_page_shows_the_definition_itself():
    """Re-exports render empty, so that a page names the module of the definition."""
    pages = builder.reference()
    for name in set(dir(ns)) - {"__version__"}:
        value = getattr(ns, name)
        if isinstance(value, type) or hasattr(value, "__qualname__"):
            assert f"::: {value.__module__}.{value.__qualname__}\n" in pages[f"{name}.md"]
    assert "::: neural_similarity.nn.similarity.SIMILARITIES\n" in pages["SIMILARITIES.md"]


@pytest.mark.long
def test_pages_of_modules_hold_what_has_no_page_of_its_own():
    nn = builder.reference()["nn.md"]
    assert "::: neural_similarity.nn.structure.StructureModule" in nn
    assert "[`Conv2d`](Conv2d.md)" in nn


def test_every_public_name_says_what_it_is():
    empty = [name for name, path in builder.targets().items() if not builder.summary(path)]
    assert not empty


@pytest.mark.long
def test_a_page_that_renders_empty_is_found(tmp_path):
    for name, path in builder.targets().items():
        page = tmp_path / "reference" / "api" / name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("" if name == "fold" else f'<h2 id="{path}">')
    assert builder.missing(tmp_path) == ["fold"]


def test_every_field_of_a_recipe_stands_in_the_table():
    rows = "".join(builder.fields(module, name) for module, name in builder.RECIPES.items())
    for field in dataclasses.fields(FewShotRecipe):
        assert f"\n| `{field.name}` | " in rows
    assert "| `batch_size` | int | `128` | Images of a training batch. |" in rows


def test_the_page_of_commands_has_their_help(monkeypatch):
    monkeypatch.setattr(builder, "COMMANDS", {"recipes": builder.COMMANDS["recipes"]})
    page = builder.commands()
    assert "  report      compare runs in one HTML file" in page
    assert "## nsim recipes\n\n```text\nusage: nsim recipes [--family NAME" in page
