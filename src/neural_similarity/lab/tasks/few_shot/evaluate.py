"""The one evaluator: a method on a list of tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.embedding import embed_task
from neural_similarity.lab.tasks.few_shot.interface import Method, NormStatistics
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes
from neural_similarity.lab.train import Runtime, distributed
from neural_similarity.lab.train.scoring import BATCH_SIZE
from neural_similarity.nn import evaluation_mode


@dataclass(frozen=True, kw_only=True)
class Course:
    """The results that an evaluation resumes from, and the callback for its progress."""

    done: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """The results of an interrupted evaluation on the first tasks."""
    progress: Callable[[Tensor], None] = lambda _: None
    """Called every few tasks with the results so far, as `evaluate` returns them."""


def evaluate_method(
    method: Method,
    images: Images,
    tasks: TaskList,
    *,
    preprocess: Preprocess,
    runtime: Runtime,
    course: Course | None = None,
) -> Tensor:
    """The number of queries that a method classifies correctly in each task: int64 (tasks,), CPU.

    With a fixed embedding every image is embedded once, and many tasks are learned together, with
    the same result as one by one. Processes of torchrun share images or tasks, again with the same
    result (torch may round differently with one thread than with several). Modes are restored
    afterwards. The method is on the device of the runtime already.
    """
    course = course or Course()
    counts = course.done
    scorer = _Scorer(method, tasks.sizes, preprocess, runtime)
    with evaluation_mode(method), torch.no_grad():
        if method.fixed_embedding and method.statistics == "running":
            chunks = _by_features(scorer, images, tasks, len(counts))
        else:
            chunks = distributed.by_turns(scorer, _task_pixels(images, tasks, len(counts)))
        for chunk in chunks:
            counts = torch.cat([counts, chunk.cpu()])
            course.progress(counts)
    return counts


def use_statistics(method: Method, statistics: NormStatistics | None) -> Method:
    """Make batch normalisation of `method` use these statistics at test; None keeps its own.

    Raises:
        ValueError: they are "running", and training kept none, as with MAML and ANIL.
    """
    if statistics in (None, method.statistics):
        return method
    norms = [module for module in method.modules() if isinstance(module, _BatchNorm)]
    if statistics == "running" and any(norm.num_batches_tracked == 0 for norm in norms):
        raise ValueError(
            '`statistics` must be "support" or "transductive" for a method whose training kept no '
            'running statistics, got "running"'
        )
    return set_statistics(method, statistics)


class _Scorer:
    """Counts the queries of a task that a method classifies correctly, from the task's pixels."""

    def __init__(
        self, method: Method, sizes: TaskSizes, preprocess: Preprocess, runtime: Runtime
    ) -> None:
        self.method, self._preprocess, self._runtime = method, preprocess, runtime
        self.device = runtime.device
        self._labels = sizes.support_labels.to(self.device)
        self._targets = sizes.query_labels.to(self.device)
        self._ways = sizes.ways

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """The count (1,) of one task, whose images, support first, are embedded for it alone."""
        shown, asked = map(
            self.network_input, pixels.split([len(self._labels), len(self._targets)])
        )
        if self.method.fixed_embedding:
            with self._runtime.autocast():
                shown, asked = embed_task(self.method.embed, self.method.statistics, shown, asked)
            return self.count_right(shown, asked)[None]
        # Adapting changes parameters within the context, so their casts must not be cached.
        with self._runtime.autocast(cache=False):
            return self.count_right(shown, asked)[None]

    def count_right(self, support: Tensor, query: Tensor) -> Tensor:
        """The count () of one task, or (tasks,) of several, stacked in a first dimension."""
        logits = self.method.adapt(support, self._labels, self._ways)(query)
        return (logits.argmax(-1) == self._targets).sum(-1)

    def network_input(self, pixels: Tensor) -> Tensor:
        return self._runtime.place_images(self._preprocess(pixels))

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        with self._runtime.autocast():
            return self.method.embed(self.network_input(pixels))


def _task_pixels(images: Images, tasks: TaskList, start: int) -> Iterator[Tensor]:
    """The pixels of each task, support first."""
    for draw in tasks.task_chunks(1, start):
        yield images.pixels[torch.cat([draw.support[0], draw.query[0]])]


def _by_features(scorer: _Scorer, images: Images, tasks: TaskList, start: int) -> Iterator[Tensor]:
    """Counts of a few tasks at a time, from features that are computed once per image."""
    used, at_once = tasks.image_positions(), scorer.method.at_once
    place = torch.zeros(len(images), dtype=torch.int64)
    place[used] = torch.arange(len(used))
    parts = used.split(BATCH_SIZE)
    embedded = [
        scorer.embed_pixels(images.pixels[part])
        for part in parts[distributed.own_share(len(parts))]
    ]
    features = distributed.gather_rows(torch.cat(embedded) if embedded else None).to(scorer.device)
    for draw in tasks.task_chunks(at_once, start):
        support, query = (features[place[positions]] for positions in (draw.support, draw.query))
        if at_once > 1:
            yield scorer.count_right(support, query)
        else:
            yield scorer.count_right(support[0], query[0])[None]
