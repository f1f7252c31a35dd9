"""The files that a run writes while it trains: metrics, learning curves, checkpoints."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

from neural_similarity.choices import import_optional
from neural_similarity.files import MOST_BYTES, read_json, read_text, sync_path, write_text
from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.folders import append_text
from neural_similarity.lab.train import checkpoint, distributed
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.plots import Curve, draw_curves, write_picture
from neural_similarity.lab.train.progress import Progress
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import CONFIG, Run

KEPT, KEPT_BEST = 2, 1
MARKS = {"markersize": 4}


class Journal:
    """Writes metrics and checkpoints into a run folder and shows them on the screen.

    Every process has one; only the first process writes.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.saved_at = self.logged_at = time.monotonic()
        self.track = make_tracker(run)

    def show_step(self, step: int) -> None:
        self.progress.show_step(step)

    def show_metrics(self, state: TrainingState) -> None:
        """Show the metrics of the steps since the last line, about once a second."""
        if self.progress.metrics_due():
            self.progress.show_metrics(_measure_since(state, time.monotonic() - self.logged_at))

    def log_metrics(self, state: TrainingState, rate: float) -> None:
        """Write a line of metrics on the steps since the last one, and restart the counts."""
        record = _measure_since(state, state.seconds - state.logged_seconds)
        self._write_line(record | {"lr": rate, "seconds": state.seconds})
        self.logged_at = time.monotonic()
        state.totals.zero_()
        state.logged_seconds = state.seconds

    def log_validation(self, state: TrainingState, scores: dict[str, Any]) -> None:
        self._write_line({"step": state.step} | scores)

    def _write_line(self, record: dict[str, Any]) -> None:
        if distributed.is_first():
            append_line(self.run.metrics, record)
            self.track(record)
            self.progress.show_metrics(record)

    def checkpoint_is_due(self, step: int) -> bool:
        """Whether `checkpoint_every` or `checkpoint_seconds` asks for a checkpoint after `step`."""
        recipe: TrainingRecipe = self.run.recipe
        by_step = recipe.checkpoint_every > 0 and step % recipe.checkpoint_every == 0
        return by_step or time.monotonic() - self.saved_at >= recipe.checkpoint_seconds

    def save_state(self, state: TrainingState) -> None:
        if distributed.is_first() and self.run.metrics.exists():
            sync_path(self.run.metrics)
        checkpoint.save_checkpoint(self.run.checkpoints, state, self.run.metadata, keep=KEPT)
        self.saved_at = time.monotonic()

    def save_best(self, state: TrainingState) -> None:
        checkpoint.save_checkpoint(self.run.best, state, self.run.metadata, keep=KEPT_BEST)


def tidy_checkpoints(run: Run, step: int) -> None:
    """Remove the superfluous and partial checkpoints that a kill, at `step` or before, left."""
    checkpoint.tidy(run.checkpoints, step, KEPT)
    checkpoint.tidy(run.best, step, KEPT_BEST)


def _measure_since(state: TrainingState, seconds: float) -> dict[str, Any]:
    """Loss, accuracy (if the objective counts it) and speed since the last line of metrics."""
    loss, correct, images = state.totals.tolist()
    images = images or nan  # Only the first process has the totals of all.
    accuracy = {} if isnan(correct) else {"accuracy": correct / images}
    record = {"step": state.step, "loss": loss / images} | accuracy
    return record | {"images_per_second": images / seconds}


def make_tracker(run: Run) -> Callable[[dict[str, Any]], None]:
    """The function that gives the numbers of a line of metrics to a tracker, or does nothing."""
    if run.recipe.track == "none" or not distributed.is_first():
        return lambda _: None
    log = _TRACKERS[run.recipe.track][-1](run)

    def track(record: dict[str, Any]) -> None:
        numbers = {name: n for name, n in record.items() if isinstance(n, int | float)}
        log(numbers, numbers.pop("step"))

    return track


def import_tracker(track: str) -> Any:
    """The module of a tracker, None for none; the error says what to install."""
    if track == "none" or not distributed.is_first():
        return None
    module, extra, _ = _TRACKERS[track]
    return import_optional(module, f"--track {track}", extra)


def _log_to_tensorboard(run: Run) -> Callable[[dict[str, Any], Any], Any]:
    writer = import_tracker("tensorboard").SummaryWriter(run.path / "tensorboard")

    def log(numbers: dict[str, Any], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _log_to_wandb(run: Run) -> Callable[[dict[str, Any], Any], Any]:
    wandb, settings = import_tracker("wandb"), read_json(run.path / CONFIG)["fields"]
    return wandb.init(name=run.path.name, config=settings, reinit="finish_previous").log


def _log_to_mlflow(run: Run) -> Callable[[dict[str, Any], Any], Any]:
    mlflow = import_tracker("mlflow")
    mlflow.end_run()
    mlflow.start_run(run_name=run.path.name)
    mlflow.log_params(read_json(run.path / CONFIG)["fields"])
    return mlflow.log_metrics


_TRACKERS = {
    "tensorboard": ("torch.utils.tensorboard", "track", _log_to_tensorboard),
    "wandb": ("wandb", "wandb", _log_to_wandb),
    "mlflow": ("mlflow", "mlflow", _log_to_mlflow),
}
"""By `--track`: module, extra, and what gives the function that logs."""


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append `record` to a file of JSON lines."""
    append_text(path, json.dumps(record) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; a last line cut short by a kill is left out.

    Raises:
        RunError: a line is damaged.
    """
    if not path.exists():
        return []
    with content_errors(path):
        lines = read_text(path, most=MOST_BYTES, within=path.parent).split("\n")[:-1]
        return [_record(json.loads(line)) for line in lines]


def _record(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or type(value.get("step")) is not int:
        raise TypeError(f"every line must be an object with a step, got {value!r:.80}")
    return value


def curve(records: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    """The steps and values of the records that have a quantity."""
    return [(float(record["step"]), float(record[key])) for record in records if key in record]


def cut_back(path: Path, step: int) -> None:
    """Drop the records after `step`, so that a resumed run writes no line twice."""
    records = [record for record in read_lines(path) if record["step"] <= step]
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def draw_learning_curves(
    records: Sequence[dict[str, Any]], path: Path, summary: Mapping[str, Any] | None = None
) -> None:
    """Draw loss and accuracy against steps: training batches, held-out images, the test score."""
    from matplotlib.figure import Figure

    figure, summary = Figure(figsize=(9, 3.5), layout="constrained"), summary or {}
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        logged = [
            Curve(points, label, mark if len(points) > 1 else "o", MARKS)
            for label, key, mark in (
                ("training batches", name, "-"),
                ("held-out images", f"validation_{name}", "o--"),
            )
            if (points := curve(records, key))
        ]
        scored = [
            Curve([(summary["steps"], value)], "test images", "k*", {"markersize": 10})
            for value in [summary.get(f"test_{name}")]
            if value is not None
        ]
        draw_curves(axes, logged + scored, xlabel="step", ylabel=name)
    write_picture(figure, path)
