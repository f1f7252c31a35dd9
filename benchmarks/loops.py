"""`python -m benchmarks training`, second part: the loop of `nsim train` beside a bare one."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import DTYPES, SEED
from benchmarks.checking import problem, relative, without_tf32
from benchmarks.networks import CHANNELS, CLASSES, SIZE, Setting
from benchmarks.report import Row
from benchmarks.subject import Placed
from benchmarks.timing import Call, Effort, Timing, quietest, timing
from benchmarks.training import STEP, update
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.session import start
from neural_similarity.lab.tasks.classification import batches_of
from neural_similarity.lab.train.checkpoint import State
from neural_similarity.lab.train.graph import WARM_UP
from neural_similarity.lab.train.journal import Journal
from neural_similarity.lab.train.loop import Job, fit
from neural_similarity.lab.train.objective import Classification
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.run import Run
from neural_similarity.lab.train.runtime import Runtime, threads

WHAT, BARE, OURS = "images through the loop", "bare loop", "nsim train"
IMAGES = 4096
"""Images to train on, or a batch where that is more."""
BLOCK = 5
"""Steps that are timed as one, ours with a line of the log: ten times as often as by default."""
READY = 8
"""Batches that the bare loop has ready."""
CHECKED = WARM_UP + 3
"""Steps after which both loops must have come to the same weights: on a GPU, replays among them."""


def training_loops(setting: Setting, counts: Sequence[int], effort: Effort) -> list[Row]:
    """Images per second of both loops on the plain CNN-9, a step of each by turns.

    Ours cuts and mirrors images, counts and logs; the bare one has its batches ready and does
    nothing but update.
    """
    rows = []
    for count in counts:
        group = {"what": WHAT} | setting.group | {"threads": count}
        with threads(count), TemporaryDirectory() as folder:
            race = _Race(setting, Path(folder))
            with without_tf32():
                error = race.error()
            reason = problem({DTYPES[setting.runtime.precision]: error})
            times = {} if reason else race.times(effort)
        for name in (BARE, OURS):
            row = Row(group=group, name=name, baseline=name == BARE, error=error)
            if reason:
                rows.append(replace(row, problem=reason, wrong=True))
                continue
            costs = {"images_per_second": setting.batch / times[name].seconds}
            rows.append(replace(row, times={STEP: times[name]}, costs=costs))
    return rows


class _Race:
    """Both loops from the same start."""

    def __init__(self, setting: Setting, folder: Path):
        self.runtime = setting.runtime
        images = _images(max(IMAGES, setting.batch))
        recipe = Recipe(
            width=setting.width,
            batch_size=setting.batch,
            drops=(),
            log_every=BLOCK,
            precision=setting.runtime.precision,
        )
        self.template = Run(
            path=folder,
            name="bench",
            budget=1,
            recipe=recipe,
            data_root="",
            digest="",
            classes=images.classes,
            channels=CHANNELS,
            image_size=SIZE,
            preprocess=Preprocess.fit(images),
        )
        self.batches = batches_of(images, self.template, self.runtime)

    def error(self) -> float:
        """How far the ways of both, all weights together, are apart after a few steps, in norms."""
        bare = start(self.template, self.runtime)
        step, began = self._bare(bare), _joined(bare.model)
        for _ in range(CHECKED):
            step()
        ours = _joined(self._fit(CHECKED, _Silent()))
        return relative(ours - began, _joined(bare.model) - began)

    def times(self, effort: Effort) -> dict[str, Timing]:
        """A step of both loops."""

        def attempt() -> dict[str, Timing]:
            seconds = self._run(effort.rounds)
            return {name: timing(own, seconds[BARE]) for name, own in seconds.items()}

        return quietest(attempt, BARE, effort)

    def _run(self, rounds: int) -> dict[str, dict[int, float]]:
        """Seconds of a step by blocks of both loops; a first block is left out."""
        turns = _Turns(self._bare(start(self.template, self.runtime)), self.runtime)
        self._fit(BLOCK * (rounds + 1), turns)
        return {
            name: {
                block: sum(seconds[block * BLOCK :][:BLOCK]) / BLOCK
                for block in range(1, rounds + 1)
            }
            for name, seconds in turns.seconds.items()
        }

    def _bare(self, state: State) -> Call:
        """A step of the bare loop."""
        model = Placed(state.model, self.runtime).train()
        batches = cycle([self.batches.at(step) for step in range(READY)])
        return lambda: update(model, state.optimizer, next(batches))

    def _fit(self, steps: int, progress: "_Silent") -> nn.Module:
        """The network after so many steps of ours."""
        path = Path(mkdtemp(dir=self.template.path))
        recipe = replace(self.template.recipe, steps=steps)
        run = replace(self.template, path=path, recipe=recipe)
        state = start(run, self.runtime)
        objective = Classification(recipe, self.runtime, self.batches)
        fit(Job(recipe, self.runtime, objective), state, Journal(run, progress))
        return state.model


class _Silent:
    """Shows nothing."""

    def stepped(self, step: int) -> None:
        """Nothing."""

    def measured(self, record: dict[str, Any]) -> None:
        """Nothing."""


class _Turns(_Silent):
    """Lets the bare loop take a step after each of ours, and times both."""

    def __init__(self, bare: Call, runtime: Runtime):
        self.bare, self.runtime = bare, runtime
        self.seconds: dict[str, list[float]] = {BARE: [], OURS: []}
        self.mark = time.perf_counter()

    def stepped(self, step: int) -> None:
        """Note ours, with what came before it since the last step; then a bare one."""
        del step
        self._note(OURS)
        self.bare()
        self._note(BARE)

    def _note(self, name: str) -> None:
        self.runtime.synchronize()
        now = time.perf_counter()
        self.seconds[name].append(now - self.mark)
        self.mark = now


def _joined(model: nn.Module) -> Tensor:
    return torch.cat([weights.detach().flatten() for weights in model.parameters()]).double()


def _images(count: int) -> Images:
    generator = torch.Generator().manual_seed(SEED)
    shape = (count, CHANNELS, SIZE, SIZE)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    classes = tuple(map(str, range(CLASSES)))
    return Images(pixels, torch.arange(count) % CLASSES, classes)
