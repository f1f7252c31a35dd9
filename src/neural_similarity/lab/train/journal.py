"""What a run leaves behind while it trains: lines of metrics and checkpoints."""

import json
import time
from math import isnan
from pathlib import Path
from typing import Any

from neural_similarity.lab.data.files import named, sync
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train import checkpoint
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.files import write_text
from neural_similarity.lab.train.progress import Progress
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.run import Run

KEPT = 2


class Journal:
    """Writes metrics and checkpoints into a run folder and shows them on the screen."""

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.saved_at = time.monotonic()

    def stepped(self, step: int) -> None:
        """Show that a step is done."""
        self.progress.stepped(step)

    def log(self, state: State, rate: float) -> None:
        """Write a line of metrics on the steps since the last one, and start counting anew."""
        loss, correct, images = state.totals.tolist()
        record = {
            "step": state.step,
            "loss": loss / images,
            "accuracy": correct / images,
            "lr": rate,
            "images_per_second": images / (state.seconds - state.logged_seconds),
            "seconds": state.seconds,
        }
        if isnan(correct):
            del record["accuracy"]
        append_line(self.run.metrics, record)
        self.progress.measured(record)
        state.totals.zero_()
        state.logged_seconds = state.seconds

    def log_validation(self, state: State, scores: dict[str, Any]) -> None:
        """Write a line with the scores of what is held out."""
        record = {"step": state.step} | scores
        append_line(self.run.metrics, record)
        self.progress.measured(record)

    def checkpoint_is_due(self, step: int) -> bool:
        """Whether `checkpoint_every` or `checkpoint_seconds` asks for a checkpoint after `step`."""
        recipe: Recipe = self.run.recipe
        by_step = recipe.checkpoint_every > 0 and step % recipe.checkpoint_every == 0
        return by_step or time.monotonic() - self.saved_at >= recipe.checkpoint_seconds

    def save(self, state: State) -> None:
        """Write a checkpoint from which training can go on."""
        if self.run.metrics.exists():
            sync(self.run.metrics)
        checkpoint.save(self.run.checkpoints, state, self.run.metadata, keep=KEPT)
        self.saved_at = time.monotonic()

    def save_best(self, state: State) -> None:
        """Write the checkpoint that is best on the held-out images."""
        checkpoint.save(self.run.best, state, self.run.metadata, keep=1)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append `record` to a file of JSON lines."""
    with named(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; a last line cut short by a kill is left out.

    Raises:
        RunError: a line is damaged.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [dict(json.loads(line)) for line in lines if line.endswith("\n")]
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{path} has a line that cannot be read: {error}") from error


def cut_back(path: Path, step: int) -> None:
    """Drop the records after `step`, so that a resumed run writes no line twice."""
    try:
        kept = [record for record in read_lines(path) if record["step"] <= step]
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} has a line without a step: {error!r}") from error
    write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
