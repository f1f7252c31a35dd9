"""The loop of `nsim train` beside a bare one."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks import networks
from benchmarks.case import Case, Placed, seeded
from benchmarks.compare import Entrant, compare
from benchmarks.measure import seconds_per_call
from benchmarks.networks import CLASSES, STEP, update
from benchmarks.options import Options
from benchmarks.oracle import Errors, error_of, joined_numbers
from benchmarks.report import Row
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks.classification import batches_of
from neural_similarity.lab.train import Recipe, Run
from neural_similarity.lab.train.checkpoint import TrainingState
from neural_similarity.lab.train.fitting import initial_state
from neural_similarity.lab.train.graph import WARM_UP
from neural_similarity.lab.train.journal import Journal
from neural_similarity.lab.train.loop import Job, fit_model
from neural_similarity.lab.train.objective import Classification
from neural_similarity.lab.train.progress import Lines

WHAT, BARE, OURS = "images through the loop", "bare loop", "nsim train"
IMAGES = 4096
"""Images to train on, or a batch where that is more."""
LOGGED = 5
"""Steps between lines of the log: ten times as many as by default."""
STEPS = {"cpu": 10, "cuda": 500}
"""Steps that are timed as one; on a GPU the capture of the update is to be a small part."""
READY = 8
"""Batches that the bare loop has ready."""
CHECKED = WARM_UP + 3
"""Steps after which both loops must have come to the same weights: on a GPU, replays among them."""


def training(options: Options) -> Iterator[Row]:
    """Updates of CNN-9, and the training loop beside a bare one."""
    for case in options.cases():
        yield from networks.training_updates(case, options.similarity)
        yield from training_loops(case)


def training_loops(case: Case) -> list[Row]:
    """Images per second of both loops on the plain CNN-9, each from the same start.

    Ours cuts and mirrors images, counts and logs; the bare one has its batches ready and does
    nothing but update.
    """
    steps = STEPS[case.runtime.device.type]
    group = {"what": WHAT, "dtype": case.runtime.precision, "batch": case.batch}
    with TemporaryDirectory() as folder:
        loops = _Loops(case, Path(folder))
        entrants = [
            Entrant(
                name=name,
                errors=loops.errors,
                calls={STEP: partial(loop, steps)},
                speeds={"images_per_second": case.batch},
            )
            for name, loop in ((BARE, loops.bare), (OURS, loops.ours))
        ]
        return compare(group, entrants, case, lambda call, _: seconds_per_call(call, 1) / steps)


class _Loops:
    """Both loops; each returns the weights that it comes to."""

    def __init__(self, case: Case, folder: Path):
        self.case, self.runtime = case, case.runtime
        images = _images(max(IMAGES, case.batch), case)
        recipe = Recipe(
            width=case.width,
            batch_size=case.batch,
            drops=(),
            log_every=LOGGED,
            precision=self.runtime.precision,
        )
        self.run = Run(
            path=folder,
            name="bench",
            budget=1,
            recipe=recipe,
            data_root="",
            digest="",
            classes=images.classes,
            channels=case.channels,
            image_size=case.size,
            preprocess=Preprocess.fit_to_images(images),
        )
        self.batches = batches_of(images, self.run, self.runtime)
        self.ready = [self.batches.at(step) for step in range(READY)]

    def errors(self) -> Errors:
        """How far the ways of both are apart after a few steps."""
        began, bare, ours = self.bare(0), self.bare(CHECKED), self.ours(CHECKED)
        return {self.case.dtype: error_of(ours - began, bare - began)}

    def bare(self, steps: int) -> Tensor:
        """Updates alone."""
        state = initial_state(self.run, self.runtime)
        model = Placed(state.model, self.runtime).train()
        for step in range(steps):
            update(model, state.optimizer, self.ready[step % READY])
        return joined_numbers(model.parameters()).double()

    def ours(self, steps: int) -> Tensor:
        """What `nsim train` does, without checkpoints."""
        recipe = replace(self.run.recipe, steps=steps)
        run, state = replace(self.run, recipe=recipe), initial_state(self.run, self.runtime)
        objective = Classification(self.runtime, self.batches)
        journal = _Journal(run, Lines(steps, 0, StringIO()))
        fit_model(Job(recipe, self.runtime, objective), state, journal)
        return joined_numbers(state.model.parameters()).double()


class _Journal(Journal):
    """Leaves out checkpoints, of which training saves one every two minutes."""

    def save(self, state: TrainingState) -> None:
        """Save nothing."""


def _images(count: int, case: Case) -> Images:
    shape = count, case.channels, case.size, case.size
    with seeded():
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    classes = tuple(map(str, range(CLASSES)))
    return Images(pixels, torch.arange(count) % CLASSES, classes)
