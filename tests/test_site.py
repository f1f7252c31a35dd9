"""The generated pages of the site: every public name has one."""

import dataclasses

import build_site as builder
import pytest

from neural_similarity.lab.tasks.few_shot import FewShotRecipe


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
