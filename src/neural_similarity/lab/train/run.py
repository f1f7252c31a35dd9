"""Run folders: the settings and files of a run, and the network that it trained."""

import dataclasses
import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import nn

from neural_similarity import models
from neural_similarity.choices import require_count, require_known, require_positive
from neural_similarity.files import check_target, read_json, write_json
from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.errors import PeerDied, RunError, content_errors
from neural_similarity.lab.folders import new_folder, remove_folder
from neural_similarity.lab.train.checkpoint import (
    WEIGHTS,
    newest_checkpoint,
    step_of,
    weights_digest,
)
from neural_similarity.lab.train.files import hold_lock
from neural_similarity.lab.train.recipe import (
    Recipe,
    TrainingRecipe,
    recipe_from_json,
    recipe_to_json,
)
from neural_similarity.lab.train.runtime import Precision
from neural_similarity.lab.train.weights import load_weights

CONFIG, ENVIRONMENT, SUMMARY = "config.json", "environment.json", "summary.json"
METRICS = "metrics.jsonl"
BEGUN = (CONFIG, ENVIRONMENT, METRICS, "checkpoints", "tensorboard")
"""All that a run writes before its first metrics and checkpoint."""
FOLDERS = ("checkpoints", "checkpoints/best", "evaluations", "plots", "tensorboard")
"""The folders that a run may have."""
AnyRun = TypeVar("AnyRun", bound="Run")
Checkpoint = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder and its configuration: of classification, where no subclass says otherwise."""

    RECIPE: ClassVar[type[TrainingRecipe]] = Recipe
    COMMAND: ClassVar[str] = "nsim train"
    """The kind, which run folders store: the command that first trained such runs."""

    path: Path
    name: str
    budget: float
    """Share of the recipe's steps; `recipe` is scaled by it already."""
    recipe: TrainingRecipe
    data_root: str
    """Folder of the data sets."""
    digest: str
    """Digest of the data set."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of the logits."""
    channels: int
    image_size: int
    """Height and width of an image."""
    preprocess: Preprocess
    """Turns pixels into the network's input."""

    def __post_init__(self) -> None:
        for field in ("name", "data_root", "digest"):
            _require_text(field, getattr(self, field))
        if not self.classes:
            raise ValueError("`classes` must name one class at least")
        for name in self.classes:
            _require_text("classes", name)
        for field in ("channels", "image_size"):
            require_count(field, getattr(self, field))
        require_positive("budget", self.budget)
        if len(self.preprocess.mean) != self.channels:
            raise ValueError(f"`preprocess` must have {self.channels} channels")

    @property
    def checkpoints(self) -> Path:
        """Folder of the newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Folder of the checkpoint that is best on held-out images."""
        return self.checkpoints / "best"

    @property
    def metrics(self) -> Path:
        """JSON lines, one per log point."""
        return self.path / METRICS

    @property
    def summary(self) -> Path:
        """JSON; written last, so its presence means that the run is finished."""
        return self.path / SUMMARY

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def precision(self) -> Precision:
        """The precision that the run began with; on this machine "auto" may choose another."""
        path = self.path / ENVIRONMENT
        with content_errors(path):
            precision = read_facts(path)["precision"]
            require_known("precision", precision, get_args(Precision))
        return precision

    @property
    def metadata(self) -> dict[str, str]:
        """Texts for the header of the file of weights."""
        return {"classes": json.dumps(self.classes), "recipe": self.name}

    def build(self, **overrides: Any) -> nn.Module:
        """A fresh network of the run's kind, its weights drawn from the run's seed.

        `overrides` are options of `models.build`, such as `similarity=None`.
        """
        sizes = {"in_channels": self.channels, "image_size": self.image_size}
        torch.manual_seed(self.recipe.seed)
        return build_network(self.recipe, len(self.classes), **sizes | overrides)

    def begin_network(self) -> nn.Module:
        return self.build()


def _require_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"`{field}` must be text, got {value!r}")


def build_network(recipe: TrainingRecipe, classes: int, **overrides: Any) -> nn.Module:
    """A fresh network as `recipe` describes it.

    `overrides` are options of `models.build`.
    """
    options = {"similarity": recipe.similarity, "width": recipe.width}
    if "variant" in models.options(recipe.model):
        options["variant"] = recipe.variant
    model = models.build(recipe.model, classes, **options | overrides)
    return models.set_norms(model, momentum=recipe.norm_momentum, eps=recipe.norm_eps)


def require_new(path: Path, command: str = Run.COMMAND) -> None:
    """Check that the folder can be made: runs never overwrite each other."""
    check_target(path, folder=True)
    if not path.exists():
        return
    other = command_of(path)
    if other == command:
        hint = f"; continue it with `nsim train --resume {path}` or"
    else:
        hint = ", and is not a run folder;" if other is None else f", a run of kind {other!r};"
    raise RunError(f"{path} exists already{hint} name another folder with --out")


def require_finished(run: Run) -> None:
    """Check that a run is finished; the error says how to continue it."""
    if not run.summary.exists():
        raise RunError(f"{run.path} is not finished; nsim train --resume {run.path} continues it")


def require_same_data(run: Run, digest: str, root: str | Path) -> None:
    """Check that the data set in `root` has the digest with which the run began."""
    if digest != run.digest:
        raise RunError(
            f"the data set {run.recipe.dataset} in {root} is not the one that {run.path} was "
            f"trained on: its digest is {digest}, not {run.digest}"
        )


def read_facts(path: Path, *, within: Path | None = None) -> dict[str, Any]:
    """The JSON object in a file of a run, which must lie in `within`, or in its own folder.

    Raises:
        RunError: it holds none.
        FileNotFoundError: it is missing.
    """
    with content_errors(path):
        facts = read_json(path, within=within or path.parent)
        if not isinstance(facts, dict):
            raise TypeError(f"it must hold an object, got {type(facts).__name__}")
    return facts


def command_of(path: Path) -> str | None:
    """The command that trained the run in a folder, or None where that holds no run."""
    try:
        command = read_facts(path / CONFIG).get("command", Run.COMMAND)
    except (OSError, RunError):
        return None
    return command if isinstance(command, str) else None


def create_run(run: Run, environment: dict[str, Any]) -> None:
    """Make the folder of `run`; if several processes do so at once, one succeeds.

    Raises:
        RunError: the folder exists (and is left as it is) or cannot be written.
    """
    require_new(run.path, run.COMMAND)
    config = {
        "command": run.COMMAND,
        "recipe": run.name,
        "budget": run.budget,
        "fields": recipe_to_json(run.recipe),
        "data_root": run.data_root,
        "digest": run.digest,
        "classes": list(run.classes),
        "channels": run.channels,
        "image_size": run.image_size,
        "preprocess": dataclasses.asdict(run.preprocess),
    }
    try:
        with new_folder(run.path, replace=False) as folder:
            write_json(folder / CONFIG, config)
            write_json(folder / ENVIRONMENT, environment)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            require_new(run.path, run.COMMAND)  # Another process was faster.
        raise


@contextmanager
def remove_folder_if_start_fails(run: Run) -> Iterator[None]:
    """Remove the run's folder again where an error comes before its first metrics or checkpoint.

    Such a folder can neither be resumed nor, while it exists, made again. It stays if it holds
    anything else.
    """
    try:
        yield
    except PeerDied:  # Its message names this folder to resume from.
        raise
    except Exception:
        written = run.metrics.exists() and run.metrics.stat().st_size > 0
        only_ours = all(path.name in BEGUN for path in run.path.glob("*"))
        if not written and only_ours and not any(run.checkpoints.glob("*")):
            with suppress(RunError), hold_lock(run.path / CONFIG, "it goes on in another process"):
                remove_folder(run.path)
        raise


def read_run(path: str | Path, run_class: type[AnyRun] = Run) -> AnyRun:
    """The run of class `run_class` in the folder `path`.

    Raises:
        RunError: it is no run folder, or a run of another class, or its settings cannot be read, or
            a link leads out of it to a folder.
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}")
    _require_own_folders(path)
    with content_errors(path / CONFIG):
        config = read_facts(path / CONFIG)
        command = config.get("command", Run.COMMAND)
        _require_text("command", command)
        _require_run_kind(path, command, run_class)
        return run_class(
            path=path,
            name=config["recipe"],
            budget=config["budget"],
            recipe=recipe_from_json(config["fields"], run_class.RECIPE),
            data_root=config["data_root"],
            digest=config["digest"],
            classes=tuple(config["classes"]),
            channels=config["channels"],
            image_size=config["image_size"],
            preprocess=Preprocess(**config["preprocess"]),
        )


def _require_own_folders(path: Path) -> None:
    for folder in (path / name for name in FOLDERS):
        if folder.is_symlink():
            raise RunError(
                f"{folder} must be a folder of the run itself, got a link; move what it leads to "
                "into its place"
            )


def _require_run_kind(path: Path, command: str, run_class: type[Run]) -> None:
    if command != run_class.COMMAND:
        raise RunError(f"{path} is a run of kind {command!r}, not {run_class.COMMAND!r}")


def load_network(
    run: Run,
    checkpoint: Checkpoint = "last",
    device: str | torch.device = "cpu",
) -> nn.Module:
    """The network that a run trained, in evaluation mode; torch's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        model = run.build()
    load_weights(find_checkpoint(run, checkpoint) / WEIGHTS, model)
    return model.to(device).eval()


def find_checkpoint(run: Run, which: str) -> Path:
    """The newest whole checkpoint, or the one that is best on the held-out images."""
    if which not in ("last", "best"):
        raise ValueError(f"`checkpoint` must be 'last' or 'best', got {which!r}")
    if which == "best" and not run.best.is_dir():
        raise RunError(f"{run.path} has no best checkpoint: it holds no images out (--validation)")
    return newest_checkpoint(run.best if which == "best" else run.checkpoints)


def usual_checkpoint(run: Run) -> Checkpoint:
    """The best checkpoint on held-out data where there is one, else the last."""
    return "best" if run.best.is_dir() else "last"


def start_facts(run: Run) -> dict[str, Any]:
    """Facts that identify the run that another one starts from, and that run's own start."""
    environment = read_facts(run.path / ENVIRONMENT)
    return {
        "recipe": run.name,
        "seed": run.recipe.seed,
        "budget": run.budget,
        "digest": run.digest,
        "weights": weights_digest(find_checkpoint(run, usual_checkpoint(run))),
        "config": recipe_to_json(run.recipe),
        "retrained": environment.get("retrained"),
        "start": environment.get("start"),
    }


def checkpoint_facts(run: Run, which: str) -> dict[str, Any]:
    """Facts about a checkpoint: "last" or "best", its step, and SHA-256 of its weights."""
    path = find_checkpoint(run, which)
    return {"which": which, "step": step_of(path), "weights": weights_digest(path)}
