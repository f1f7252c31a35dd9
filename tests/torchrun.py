"""Starts a program by torchrun, and what it trains: tiny recipes without batch normalisation.

`python -m torch.distributed.run ... tests/torchrun.py FOLDER` trains them into the folder.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import tiny_classes
import tiny_images
from torch import nn

from neural_similarity import models
from neural_similarity.lab import session
from neural_similarity.lab.errors import Interrupted
from neural_similarity.lab.tasks.few_shot import evaluate
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train import fitting
from neural_similarity.nn import Diagonal, Static

HALF = 2
SHORT = {"steps": 2 * HALF, "drops": (3,), "lr": 0.01, "evaluate_every": HALF}
BY_CLASSES = replace(
    tiny_images.TINY, similarity=Static(Diagonal()), penalty=0.01, validation=16, **SHORT
)
BY_NAMES = replace(tiny_classes.BY_NAMES, **SHORT)
BY_TASKS = replace(tiny_classes.BY_TASKS, method="maml", meta_batch=4, **SHORT)
RANK = int(os.environ.get("RANK", "0"))
SET_NORMS = models.set_norms


def without_norms(model, **_):
    """The model with what sees each image alone in the place of batch normalisation."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(1, child.num_features))
    return model


def train_all(folder):
    """A run by classes, one in two parts, the half of it, and two few-shot runs, evaluated."""
    models.set_norms = without_norms
    try:
        with tiny_images.tiny_world():
            session.train(BY_CLASSES, out=folder / "whole", device="cpu")
            interrupted(folder / "parts")
            if RANK == 0:
                shutil.copytree(folder / "parts", folder / "half")
            session.resume(folder / "parts", device="cpu")
        # Features of a few images at once, so that every process has some.
        with tiny_classes.tiny_classes_world(), patch.object(evaluate, "BATCH_SIZE", 8):
            run = session.train(BY_TASKS, out=folder / "tasks", device="cpu")
            split = tiny_classes.make_split()
            drawn = {"seed": 0, "data": split.digest, "part": "test"}
            tasks = draw_tasks(split.test, TaskSizes(ways=2, shots=2, queries=3), 5, **drawn)
            Evaluator(device="cpu")(run, split, tasks)
            run = session.train(BY_NAMES, out=folder / "names", device="cpu")
            Evaluator(method="nearest-neighbour", device="cpu")(run, split, tasks)
    finally:
        models.set_norms = SET_NORMS


def interrupted(out):
    """Train the first steps, as if a signal had come to one of the processes then."""

    def fit(job, state, journal, _stop):
        here = RANK == int(os.environ.get("WORLD_SIZE", "1")) - 1
        original(job, state, journal, lambda: 15 if here and state.step == HALF else None)

    original, fitting.fit_model = fitting.fit_model, fit
    try:
        session.train(BY_CLASSES, out=out, device="cpu")
    except Interrupted:
        return
    finally:
        fitting.fit_model = original
    raise AssertionError("no signal came")


def torchrun(processes, *words, **options):
    """Run a program by so many processes and return what it says."""
    result = launch(processes, *words, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def launch(processes, *words, **options):
    """Run a program by so many processes, whatever comes of it."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    folder = Path(__file__).parent
    places = [str(folder.parent / "src"), str(folder), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(places)
    return subprocess.run(
        [sys.executable, *command, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


if __name__ == "__main__":
    train_all(Path(sys.argv[1]))
