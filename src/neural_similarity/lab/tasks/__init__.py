"""What runs learn: one `Task` class per kind of run, all trained by the same session."""

from typing import Any

from neural_similarity.lab.plugins import load_entries
from neural_similarity.lab.tasks.adaptation import AdaptationTask
from neural_similarity.lab.tasks.classification import ClassificationTask
from neural_similarity.lab.tasks.few_shot.task import FewShotTask
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.task import Task

TASK_KINDS: tuple[type[Task[Any, Any]], ...] = (ClassificationTask, FewShotTask, AdaptationTask)
"""The kinds of runs, identified by the class of a recipe or the `command` of a folder."""

load_entries("methods")


def task_of(recipe: TrainingRecipe) -> type[Task[Any, Any]]:
    """The task of recipes of this class.

    Raises:
        ValueError: no kind of run has it.
    """
    for task in TASK_KINDS:
        if type(recipe) is task.RUN.RECIPE:
            return task
    raise ValueError(f"`recipe` must be of a class in TASK_KINDS, got {type(recipe).__name__}")


def command_task(command: str) -> type[Task[Any, Any]] | None:
    """The task whose runs the command trains, by which their folders tell what they are."""
    return next((task for task in TASK_KINDS if task.RUN.COMMAND == command), None)
