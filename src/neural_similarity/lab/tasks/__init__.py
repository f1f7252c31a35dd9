"""What runs learn: one `Task` class per kind of run, all trained by the same session."""

from typing import Any

from neural_similarity.lab.tasks.adaptation import AdaptationTask
from neural_similarity.lab.tasks.classification import ClassificationTask
from neural_similarity.lab.tasks.few_shot.task import FewShotTask
from neural_similarity.lab.train.task import Task

TASKS: tuple[type[Task[Any, Any]], ...] = (ClassificationTask, FewShotTask, AdaptationTask)
"""The kinds of runs, identified by the class of a recipe or the `command` of a folder."""
