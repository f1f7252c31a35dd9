"""Lists of tasks: the classes and images of each, as indices.

A list of tasks is a function of its data and its seed; methods that are tested on one list are
compared task by task.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_similarity.choices import require_least
from neural_similarity.lab.data import Images
from neural_similarity.lab.data.images import seeded_generator

DRAW_VERSION = 1
"""Version of how tasks are drawn, which digests include."""
LEAST_TASKS, MOST_TASKS = 2, 1_000_000
"""Bounds of a list's length: a single task has no confidence interval."""


@dataclass(frozen=True, kw_only=True)
class TaskSizes:
    """The size of a task."""

    ways: int = 5
    shots: int = 5
    """Labelled images of each class."""
    queries: int = 15
    """Images of each class to classify."""

    def __post_init__(self) -> None:
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1)):
            require_least(name, getattr(self, name), least)

    @property
    def support_labels(self) -> Tensor:
        """The classes (ways * shots,) of the support images."""
        return torch.arange(self.ways).repeat_interleave(self.shots)

    @property
    def query_labels(self) -> Tensor:
        """The classes (ways * queries,) of the queries."""
        return torch.arange(self.ways).repeat_interleave(self.queries)


@dataclass(frozen=True, eq=False)
class Draw:
    """Tasks as positions in a set of images; classes come one after the other.

    Args:
        classes: int64 (tasks, ways), the labels of the classes.
        support: int64 (tasks, ways * shots).
        query: int64 (tasks, ways * queries).
    """

    classes: Tensor
    support: Tensor
    query: Tensor

    def __len__(self) -> int:
        return len(self.support)


class Sampler:
    """Draws tasks from images: classes at random, then images of each, all of them different."""

    def __init__(self, images: Images, sizes: TaskSizes) -> None:
        self.sizes = sizes
        self._members = [
            (images.labels == c).nonzero().flatten() for c in range(len(images.classes))
        ]
        if len(images.classes) < sizes.ways:
            raise ValueError(
                f"`ways` must be at most the number of classes, got {sizes.ways} ways and "
                f"{len(images.classes)} classes"
            )
        each = sizes.shots + sizes.queries
        for name, members in zip(images.classes, self._members, strict=True):
            if len(members) < each:
                raise ValueError(
                    f"every class must have {sizes.shots} + {sizes.queries} images for shots and "
                    f"queries, got {len(members)} of the class {name!r}"
                )

    def draw_numbered(self, purpose: str, seed: int, start: int, count: int) -> Draw:
        """The tasks number `start` to `start + count - 1`, each a function of its number alone."""
        randoms = (seeded_generator(purpose, seed, start + i) for i in range(count))
        classes, chosen = zip(*map(self._draw_one, randoms), strict=True)
        support, query = torch.stack(chosen).split([self.sizes.shots, self.sizes.queries], dim=2)
        return Draw(torch.stack(classes), support.flatten(1), query.flatten(1))

    def _draw_one(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """The classes of a task, and positions (ways, shots + queries) of its images."""
        each = self.sizes.shots + self.sizes.queries
        classes = torch.randperm(len(self._members), generator=random)[: self.sizes.ways]
        members = (self._members[c] for c in classes.tolist())
        chosen = [m[torch.randperm(len(m), generator=random)[:each]] for m in members]
        return classes, torch.stack(chosen)


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskList:
    """Tasks of a part of a data set, to be shared by all methods."""

    data: str
    """Digest of the data set."""
    part: str
    """The part that tasks are drawn from, such as "test"."""
    sizes: TaskSizes
    """Ways, shots and queries."""
    seed: int
    """The seed that the tasks were drawn with."""
    draw: Draw
    """The classes and images of each task."""

    def __len__(self) -> int:
        return len(self.draw)

    @property
    def digest(self) -> str:
        """SHA-256 of the list as 64 hex digits; classes, which follow from images, are left out."""
        facts = [DRAW_VERSION, self.data, self.part, dataclasses.asdict(self.sizes), self.seed]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for positions in self._positions:
            digest.update(positions.numpy().astype("<u4").tobytes())
        return digest.hexdigest()

    def check_data(self, data: str, part: str, images: Images) -> None:
        """Check that the list was drawn from these images.

        Raises:
            ValueError: it is of other data or of another part, or has images of other classes.
        """
        if self.data != data or self.part != part:
            raise ValueError(
                f"`tasks` must be of the data at hand, {part} of {data[:12]}, got a list made for "
                f"{self.part} of {self.data[:12]}"
            )
        positions = torch.cat([p.view(len(self), self.sizes.ways, -1) for p in self._positions], 2)
        inside = int(positions.max()) < len(images)
        if not inside or (images.labels[positions] != self.draw.classes[..., None]).any():
            raise ValueError(f"`tasks` must be drawn from the images of {part}, got other classes")

    @property
    def _positions(self) -> tuple[Tensor, Tensor]:
        return self.draw.support, self.draw.query

    def image_positions(self) -> Tensor:
        """Sorted positions of the images that occur in any task."""
        return torch.cat([positions.flatten() for positions in self._positions]).unique()

    def task_chunks(self, size: int, start: int = 0) -> Iterator[Draw]:
        """The tasks from number `start`, `size` at a time."""
        for first in range(start, len(self), size):
            chunk = slice(first, first + size)
            yield Draw(self.draw.classes[chunk], self.draw.support[chunk], self.draw.query[chunk])


def draw_tasks(
    images: Images, sizes: TaskSizes, count: int, *, seed: int, data: str, part: str
) -> TaskList:
    """`count` tasks of `images`; lists with the same seed and data share their first tasks."""
    if count < LEAST_TASKS:
        raise ValueError(
            f"`count` must be at least {LEAST_TASKS} tasks, to have an interval, got {count}"
        )
    if count > MOST_TASKS:
        raise ValueError(f"`count` must be at most {MOST_TASKS:,} tasks, got {count}")
    draw = Sampler(images, sizes).draw_numbered("task", seed, 0, count)
    return TaskList(data=data, part=part, sizes=sizes, seed=seed, draw=draw)
