"""Scoring a few-shot run on tasks, by the options of `nsim evaluate`."""

from dataclasses import dataclass
from typing import Any, Literal

from neural_similarity.choices import require_known, require_least
from neural_similarity.lab.data import ClassSplit
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation, Evaluator
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import (
    MOST_TASKS,
    TaskList,
    TaskSizes,
    draw_tasks,
)
from neural_similarity.lab.train.progress import format_clock
from neural_similarity.lab.train.task import Scoring

USUAL_WAYS, USUAL_QUERIES = 5, 15
"""Defaults of a task, where the data have that many."""
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
    tasks: int = 2_000
    """Number of tasks."""
    task_seed: int = 0
    """Seed of the list of tasks."""
    part: Literal["test", "val"] = "test"
    """Part of the data from which the classes of tasks are drawn."""
    batch_norm: Literal["running", "support", "transductive"] | None = None
    """NormStatistics that normalise queries; the default is the method's own, always inductive."""

    def __post_init__(self) -> None:
        if self.method is not None:
            require_known("method", self.method, METHODS)
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1), ("tasks", 2)):
            if (value := getattr(self, name)) is not None:
                require_least(name, value, least)
        if self.tasks > MOST_TASKS:
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
    """The list of tasks that the options describe."""
    images = split.images_of_part(options.part)
    ways = (
        recipe.ways if METHODS[recipe.method].fixed_ways else min(USUAL_WAYS, len(images.classes))
    )
    shots = options.shots or recipe.shots
    left = int(images.labels.bincount(minlength=len(images.classes)).min()) - shots
    sizes = TaskSizes(
        ways=options.ways or ways,
        shots=shots,
        queries=options.queries or max(1, min(USUAL_QUERIES, left)),
    )
    drawn = {"seed": options.task_seed, "data": split.digest, "part": options.part}
    return draw_tasks(images, sizes, options.tasks, **drawn)


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
