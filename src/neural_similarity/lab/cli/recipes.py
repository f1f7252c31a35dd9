"""`nsim recipes`, from lists that lie beside the recipes: recipes themselves need torch.

`python -m neural_similarity.lab.cli` writes the lists; a test compares them with the recipes.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from neural_similarity.files import read_text
from neural_similarity.lab.cli.commands import print_line, print_table, require_known_name, say_json
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.plugins import installed_entries

COLUMNS = ("name", "data", "model", "similarity", "steps", "description")
HELP = """usage: nsim recipes [--family NAME | --all | --json]

List the families of recipes, or the recipes of one (--family), of all (--all), or as JSON (--json).

examples:
  nsim recipes
  nsim recipes --family quickstart
  nsim recipes --json"""


class ListedFamily(NamedTuple):
    """A family's title, and the columns of its recipes with their settings."""

    title: str
    rows: list[list[str]]


def recipe_lists() -> list[Path]:
    """The lists of this package and of those that add recipes, if they are here."""
    added = [entry.value for entry in installed_entries("recipes")]
    specs = map(find_spec, ("neural_similarity.lab.recipes", *added))
    return [Path(spec.origin).with_name("list.txt") for spec in specs if spec and spec.origin]


def listed_families() -> dict[str, ListedFamily]:
    """All families in the lists."""
    families: dict[str, ListedFamily] = {}
    rows: list[list[str]] = []
    for line in "".join(map(read_text, recipe_lists())).splitlines():
        if line.startswith("# "):
            name, _, title = line.removeprefix("# ").partition(": ")
            families[name] = ListedFamily(title, rows := [])
        else:
            rows.append(line.split("\t"))
    return families


def recipes(args: Sequence[str]) -> int:
    """Print the families of recipes, or the recipes in them."""
    families = listed_families()
    match list(args):
        case []:
            _print_families(families)
        case ["-h" | "--help", *_]:
            print_line(HELP)
        case ["--all"]:
            _print_recipes(families)
        case ["--family", name]:
            require_known_name("family", name, families)
            _print_recipes({name: families[name]})
        case ["--json"]:
            say_json(
                [
                    {"family": name} | dict(zip(COLUMNS, row, strict=False))
                    for name, family in families.items()
                    for row in family.rows
                ]
            )
        case words:
            raise UsageError(
                f"nsim recipes takes --family NAME, --all or --json, got {' '.join(words)!r}"
            )
    return 0


def _print_families(families: dict[str, ListedFamily]) -> None:
    rows = [[name, f"{len(family.rows)}", family.title] for name, family in families.items()]
    print_table(("family", "recipes", "description"), rows, wraps="description")
    print_line("\nnsim recipes --family NAME lists the recipes of a family, --all those of all.")


def _print_recipes(families: dict[str, ListedFamily]) -> None:
    for name, family in families.items():
        rows = [row[: len(COLUMNS)] for row in family.rows]
        print_table(COLUMNS, rows, wraps="description", title=f"{name}: {family.title}")
