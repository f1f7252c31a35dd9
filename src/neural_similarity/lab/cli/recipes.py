"""`nsim recipes`, from a list that ships with the package: recipes themselves need torch.

`python -m neural_similarity.lab.recipes` writes the list; a test compares it with the recipes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neural_similarity.files import read_json
from neural_similarity.lab.cli.commands import print_line, print_table, require_known_name, say_json
from neural_similarity.lab.errors import UsageError

LIST = Path(__file__).parents[1] / "recipes" / "list.json"
HELP = """usage: nsim recipes [--family NAME | --all | --json]

List the families of recipes, or the recipes of one (--family), of all (--all), or as JSON (--json).

examples:
  nsim recipes
  nsim recipes --family cifar10
  nsim recipes --json"""


def recipes(args: Sequence[str]) -> int:
    """Print the families of recipes, or the recipes in them."""
    columns, families = recipe_list()
    match list(args):
        case []:
            _print_families(families)
        case ["-h" | "--help", *_]:
            print_line(HELP)
        case ["--all"]:
            _print_recipes(columns, families)
        case ["--family", name]:
            require_known_name("family", name, families)
            _print_recipes(columns, {name: families[name]})
        case ["--json"]:
            say_json(
                [
                    {"family": name} | dict(zip(columns, row, strict=True))
                    for name, family in families.items()
                    for row in family["rows"]
                ]
            )
        case words:
            raise UsageError(
                f"nsim recipes takes --family NAME, --all or --json, got {' '.join(words)!r}"
            )
    return 0


def recipe_list() -> tuple[list[str], dict[str, Any]]:
    """Columns, and title and rows of every family."""
    content = read_json(LIST)
    return content["columns"], content["families"]


def _print_families(families: dict[str, Any]) -> None:
    rows = [[name, f"{len(each['rows'])}", each["title"]] for name, each in families.items()]
    print_table(("family", "recipes", "description"), rows, wraps="description")
    print_line("\nnsim recipes --family NAME lists the recipes of a family, --all those of all.")


def _print_recipes(columns: Sequence[str], families: dict[str, Any]) -> None:
    for name, family in families.items():
        title = f"{name}: {family['title']}"
        print_table(columns, family["rows"], wraps="description", title=title)
