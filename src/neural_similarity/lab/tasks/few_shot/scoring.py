"""Scoring a few-shot run on tasks, by the options of `nsim evaluate`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from neural_similarity.choices import require_known, require_least
from neural_similarity.lab.data import ClassSplit
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation, Evaluator
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import (
    MOST_TASKS,
    TaskList,
    TaskSizes,
    draw_tasks,
    read_tasks,
    write_tasks,
)
from neural_similarity.lab.train.progress import format_clock
from neural_similarity.lab.train.task import Scoring

WAYS, QUERIES = 5, 15
"""Defaults of a task, where the data have that many."""
USUAL = {"tasks": 2_000, "task_seed": 0}
TASK_OPTIONS = ("ways", "shots", "queries", *USUAL)
"""Options that define the tasks."""
SCORING_HELP = """Evaluate a run on tasks of test classes, the same for every method.

examples:
  nsim evaluate runs/fewshot-quickstart-seed0
  nsim evaluate runs/mini-cnn4-seed1 --method static-nsn --ways 5 --shots 5 --tasks 600
  torchrun --standalone --nproc-per-node 2 -m neural_similarity evaluate runs/mini-cnn4-seed1"""


@dataclass(frozen=True, kw_only=True)
class TaskScoring(Scoring):
    """Options of `nsim evaluate`."""

    method: str | None = None
    """Another method on the network of a run that was pretrained on the base classes: fine-tuning,
    nearest-neighbour, static-nsn (for a network without dynamic M; with the suffix -rate0.1 or
    -rate0.01 M takes smaller steps), k-shot."""
    ways: int | None = None
    """Classes of a task; the default is 5, or all test classes if there are fewer. MAML and related
    methods take as many as in training."""
    shots: int | None = None
    """Labelled images of each class; the default is as many as in training."""
    queries: int | None = None
    """Images of each class to classify; the default is 15, or all unlabelled images of the smallest
    class if there are fewer."""
    tasks: int | None = None
    """Number of tasks; the default is 2,000."""
    task_seed: int | None = None
    """Seed of the list of tasks; the default is 0."""
    task_list: Path | None = None
    """File of the list of tasks: used if it is there, else written."""
    part: Literal["test", "val"] = "test"
    """Part of the data from which the classes of tasks are drawn."""
    batch_norm: Literal["running", "support", "transductive"] | None = None
    """Statistics that normalise queries; the default is the method's own, always inductive."""

    def __post_init__(self) -> None:
        if self.method is not None:
            require_known("method", self.method, METHODS)
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1), ("tasks", 2)):
            if (value := getattr(self, name)) is not None:
                require_least(name, value, least)
        if (self.tasks or 0) > MOST_TASKS:
            raise ValueError(f"`tasks` must be at most {MOST_TASKS:,}, got {self.tasks}")


def score_run(
    run: FewShotRun, split: ClassSplit, scoring: TaskScoring, device: str
) -> tuple[dict[str, Any], str]:
    """Evaluate a run, resuming an interrupted evaluation: facts for JSON, and a text."""
    tasks = task_list(scoring, run.recipe, split)
    evaluator = Evaluator(
        method=scoring.method,
        statistics=scoring.batch_norm,
        device=device,
        precision=scoring.precision,
    )
    evaluation, path = evaluator(run, split, tasks)
    text = f"{_evaluation_text(evaluation, run)}\naccuracies of all tasks in {path}"
    return {"file": str(path)} | evaluation.to_json(), text


def task_list(options: TaskScoring, recipe: FewShotRecipe, split: ClassSplit) -> TaskList:
    """The list of tasks: read from the named file if it exists, else drawn."""
    images, path = split.images_of_part(options.part), options.task_list
    given = {name: getattr(options, name) for name in TASK_OPTIONS}
    if path is not None and path.exists():
        tasks = read_tasks(path)
        tasks.check_data(split.digest, options.part, images, path)
        _require_agreement(tasks, given, path)
        return tasks
    ways = recipe.ways if METHODS[recipe.method].fixed_ways else min(WAYS, len(images.classes))
    shots = options.shots or recipe.shots
    left = int(images.labels.bincount(minlength=len(images.classes)).min()) - shots
    usual = {"ways": ways, "shots": shots, "queries": max(1, min(QUERIES, left))} | USUAL
    chosen = {name: usual[name] if value is None else value for name, value in given.items()}
    count, seed = chosen.pop("tasks"), chosen.pop("task_seed")
    sizes = TaskSizes(**chosen)
    tasks = draw_tasks(images, sizes, count, seed=seed, data=split.digest, part=options.part)
    if path is not None:
        write_tasks(path, tasks)
    return tasks


def _require_agreement(tasks: TaskList, given: dict[str, int | None], path: Path) -> None:
    """Check that options agree with an existing list of tasks."""
    held = {**asdict(tasks.sizes), "tasks": len(tasks), "task_seed": tasks.seed}
    for name, value in given.items():
        if value not in (None, held[name]):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} must be {held[name]}, as in {path}, got {value}")


def _evaluation_text(evaluation: Evaluation, run: FewShotRun) -> str:
    sizes, summary = evaluation.sizes, evaluation.summary
    return (
        f"{evaluation.method}: {100 * summary['accuracy']:.2f} ± {100 * summary['reach']:.2f} %, "
        f"{sizes.ways} ways, {sizes.shots} shots, {sizes.queries} queries a class, "
        f"{evaluation.tasks['count']:,} tasks of {evaluation.tasks['part']} classes\n"
        f"trained on {run.recipe.train_on}, step {evaluation.checkpoint['step']:,} "
        f"({evaluation.checkpoint['which']}), batch norm by {evaluation.statistics} statistics, "
        f"{summary['parameters']:,} parameters, {format_clock(summary['seconds'])}, in "
        f"{summary['score_precision']}"
    )
