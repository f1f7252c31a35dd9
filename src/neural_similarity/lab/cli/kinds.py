"""Which kind of run a command line is about. Importing it loads no torch."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from neural_similarity.lab.cli.recipes import FEW_SHOT_GROUP, groups

FEW_SHOT = "nsim fewshot train"
"""What the configuration of a few-shot run calls its command; others may lack it."""

RUN_OPTIONS = ("--resume", "--retrain")


def is_few_shot(args: Sequence[str]) -> bool:
    """Whether words name a few-shot recipe, a few-shot run to work on, or table 6."""
    words = [word for arg in args for word in arg.split("=", 1)]
    named = {"6", *(row[0] for row in groups()[FEW_SHOT_GROUP]["rows"])}
    runs = words[:1] + [run for option, run in pairwise(words) if option in RUN_OPTIONS]
    return not named.isdisjoint(words[:1]) or any(map(is_few_shot_run, runs))


def is_few_shot_run(path: str | Path) -> bool:
    """Whether a path is the folder of a few-shot run."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("command") == FEW_SHOT
