"""The one evaluator: a method on a list of tasks."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.data import Images, Preprocess
from neural_similarity.fewshot.batch_norm import set_statistics
from neural_similarity.fewshot.embedding import embed_task
from neural_similarity.fewshot.method import Method, Statistics
from neural_similarity.fewshot.tasks import Draw, TaskList
from neural_similarity.nn.modes import evaluating
from neural_similarity.train import Runtime
from neural_similarity.train.scoring import BATCH_SIZE


def evaluate(
    method: Method,
    images: Images,
    tasks: TaskList,
    *,
    preprocess: Preprocess,
    runtime: Runtime,
    done: Tensor | None = None,
    progress: Callable[[Tensor], None] = lambda _: None,
) -> Tensor:
    """How many queries of each task a method gets right: int64 (tasks,), on the CPU.

    A method of fixed embedding sees every image once, and many tasks are learned together, with
    the same result as one by one. All modes are as before afterwards.

    Args:
        method: placed on the runtime's device.
        images: the part of the data set that the tasks were drawn from.
        tasks: the tasks.
        preprocess: what turns pixels into the network's input.
        runtime: device and precision.
        done: what an interrupted evaluation found already, of the first tasks.
        progress: told, every few tasks, what this would return of those that are done.
    """
    labels = tasks.sizes.support_labels.to(runtime.device)
    targets = tasks.sizes.query_labels.to(runtime.device)
    found = torch.empty(0, dtype=torch.int64) if done is None else done
    with evaluating(method), torch.no_grad():
        source = _Source(method, images, tasks, preprocess, runtime)
        for draw in tasks.chunks(method.at_once, start=len(found)):
            logits = source.logits(draw, labels, tasks.sizes.ways)
            found = torch.cat([found, (logits.argmax(-1) == targets).sum(-1).cpu()])
            progress(found)
    return found


def use_statistics(method: Method, statistics: Statistics | None) -> Method:
    """Let batch normalisation of `method` use these at test; None leaves the method's own.

    Raises:
        ValueError: they are "running", and training kept none, as that of MAML and ANIL does.
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


class _Source:
    """Gives the inputs of tasks to a method: images, or features, kept where they may be."""

    def __init__(
        self,
        method: Method,
        images: Images,
        tasks: TaskList,
        preprocess: Preprocess,
        runtime: Runtime,
    ) -> None:
        self._method, self._runtime = method, runtime
        self._pixels, self._preprocess = images.pixels, preprocess
        self._kept: Tensor | None = None
        if method.fixed_embedding and method.statistics == "running":
            used = tasks.images()
            self._place = torch.zeros(len(images), dtype=torch.int64)
            self._place[used] = torch.arange(len(used))
            self._kept = torch.cat([self._embed(part) for part in used.split(BATCH_SIZE)])

    def logits(self, draw: Draw, labels: Tensor, ways: int) -> Tensor:
        """Of the queries of some tasks: (tasks, q, ways)."""
        if self._kept is not None:
            support, query = (self._kept[self._place[p]] for p in (draw.support, draw.query))
            if self._method.at_once > 1:
                return self._method.adapt(support, labels, ways)(query)
            pairs = zip(support, query, strict=True)
            return torch.stack([self._method.adapt(s, labels, ways)(q) for s, q in pairs])
        pairs = zip(draw.support, draw.query, strict=True)
        return torch.stack([self._one(s, q, labels, ways) for s, q in pairs])

    def _one(self, support: Tensor, query: Tensor, labels: Tensor, ways: int) -> Tensor:
        """The logits of one task whose images are embedded for it alone."""
        shown, asked = self._images(support), self._images(query)
        if self._method.fixed_embedding:
            with self._runtime.autocast():
                shown, asked = embed_task(self._method.embed, self._method.statistics, shown, asked)
            return self._method.adapt(shown, labels, ways)(asked)
        # Adapting changes parameters within the context, whose copies must not be kept.
        with self._runtime.autocast(cache=False):
            return self._method.adapt(shown, labels, ways)(asked)

    def _embed(self, positions: Tensor) -> Tensor:
        with self._runtime.autocast():
            return self._method.embed(self._images(positions))

    def _images(self, positions: Tensor) -> Tensor:
        return self._runtime.place_images(self._preprocess(self._pixels[positions]))
