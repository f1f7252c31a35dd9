"""`nsim recipes`, from a list that ships with the package: recipes themselves need torch.

`python -m neural_similarity.lab.recipes` writes the list; a test compares it with the recipes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neural_similarity.lab.cli.commands import say
from neural_similarity.lab.cli.table import print_table
from neural_similarity.lab.errors import UsageError

FEW_SHOT_GROUP = "Few-shot learning, table 6"
LIST = Path(__file__).parents[1] / "recipes" / "list.json"
HELP = """usage: nsim recipes

List the named recipes.

example:
  nsim recipes"""


def recipes(args: Sequence[str]) -> int:
    """Print the named recipes, a table for every group."""
    if args:
        if args[0] not in ("-h", "--help"):
            raise UsageError(f"nsim recipes takes no options, got {args[0]!r}")
        say(HELP)
        return 0
    for title, group in groups().items():
        print_table(group["columns"], group["rows"], wraps="description", title=title)
    return 0


def groups() -> dict[str, Any]:
    """Columns and rows of every group of recipes."""
    return json.loads(LIST.read_text(encoding="utf-8"))


def bench(args: Sequence[str]) -> int:
    """Say where the benchmarks went."""
    raise UsageError(f"benchmarks run in a clone: python -m benchmarks {' '.join(args)}".rstrip())
