"""`nsim recipes`, from a list that ships with the package: recipes themselves need torch.

`python -m neural_similarity.lab.recipes` writes the list; a test compares it with the recipes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neural_similarity.lab.cli.commands import print_table, say, say_json
from neural_similarity.lab.errors import UsageError

LIST = Path(__file__).parents[1] / "recipes" / "list.json"
HELP = """usage: nsim recipes [--json]

List the named recipes.

examples:
  nsim recipes
  nsim recipes --json"""


def recipes(args: Sequence[str]) -> int:
    """Print the named recipes, a table for every group."""
    if args and args[0] in ("-h", "--help"):
        say(HELP)
        return 0
    if list(args) == ["--json"]:
        say_json(
            [
                {"group": title} | dict(zip(group["columns"], row, strict=True))
                for title, group in groups().items()
                for row in group["rows"]
            ]
        )
        return 0
    if args:
        raise UsageError(f"nsim recipes takes no options but --json, got {args[0]!r}")
    for title, group in groups().items():
        print_table(group["columns"], group["rows"], wraps="description", title=title)
    return 0


def groups() -> dict[str, Any]:
    """Columns and rows of every group of recipes."""
    return json.loads(LIST.read_text(encoding="utf-8"))


def bench(args: Sequence[str]) -> int:
    """Print where the benchmarks went."""
    raise UsageError(f"benchmarks run in a clone: python -m benchmarks {' '.join(args)}".rstrip())
