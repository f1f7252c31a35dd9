"""Second-order MAML beside `higher`, and ProtoNet on features that are kept."""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.case import SEED, seeded
from benchmarks.checking import problem, relative, trained
from benchmarks.costs import peak_bytes
from benchmarks.report import Row
from benchmarks.timing import Call, Effort, measure
from neural_similarity import models
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.episode import Episode
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate
from neural_similarity.lab.tasks.few_shot.gradient import maml
from neural_similarity.lab.tasks.few_shot.method import Method
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes, draw_tasks
from neural_similarity.lab.train.runtime import Runtime, threads

STEPS, RATE = 5, 0.05
CHANNELS, FEATURES = 3, 800
CLASSES, IMAGES = 20, 100
"""Test classes of Mini-ImageNet, and so many images of each."""
META, KEPT = "second-order MAML of CNN-4", "ProtoNet on kept features"
HIGHER, OURS, BY_TASK = "higher", "ours", "its definition, task by task"
TIME, SPEED = "all tasks", "tasks_per_second"

Gradients = Callable[[nn.Module, Episode], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class FewShotCase:
    """What few-shot learning is measured on: tasks of 5 ways, 5 shots and 15 queries a class."""

    runtime: Runtime
    """Device; in fp32."""
    image_size: int = 84
    """Of the images that MAML sees, in pixels."""
    width: float = 1.0
    """Factor on the filters of CNN-4."""
    tasks: int = 2_000
    """Tasks on kept features."""
    sizes: TaskSizes = field(default_factory=TaskSizes)
    """Of a task."""


@dataclass(frozen=True, kw_only=True)
class _Entrant:
    """What is timed, once it has been checked."""

    name: str
    call: Call
    """Does so many tasks."""
    error: float
    """How far its result is from what is right."""
    dtype: torch.dtype
    """In which that was computed."""


def meta_gradients(case: FewShotCase, counts: Sequence[int], effort: Effort) -> list[Row]:
    """The gradient of a task's query loss through five steps on all parameters.

    Batch normalisation uses the statistics of each batch, as it does under `higher`. Ours runs
    channels-last, as its recipes do; what torch computes alone is faster in its own layout.
    """
    with seeded():
        network = models.convnet4(image_size=case.image_size, width=case.width)
        method = maml(network, case.sizes.ways, steps=STEPS, rate=RATE)
    case.runtime.place(set_statistics(method, "transductive"))
    plain = nn.Sequential(deepcopy(method.backbone), deepcopy(method.head))
    set_statistics(plain, None).train()
    task = _task(case)
    exact = Episode(*(part.double() if part.is_floating_point() else part for part in task))
    expected = _joined(_by_definition(deepcopy(plain).double(), exact))

    def entrant(
        name: str, module: nn.Module, gradients: Gradients, layout: torch.memory_format
    ) -> _Entrant:
        found = _joined(gradients(deepcopy(module).double(), exact))
        error = relative(found, expected)
        call = partial(gradients, module.to(memory_format=layout), _laid_out(task, layout))
        return _Entrant(name=name, call=call, error=error, dtype=torch.float64)

    entrants = [entrant(OURS, method, _by_ours, torch.channels_last)]
    if find_spec(HIGHER):
        entrants.insert(0, entrant(HIGHER, plain, _by_higher, torch.contiguous_format))
    return _race(case, META, 1, entrants, counts, effort)


def kept_features(case: FewShotCase, counts: Sequence[int], effort: Effort) -> list[Row]:
    """The evaluator, and the definition of ProtoNet for one task after another.

    An error is by how many right queries the tasks differ from float64, over all queries.
    """
    images = _features()
    tasks = draw_tasks(images, case.sizes, case.tasks, seed=SEED, data="", part="test")
    preprocess, runtime = Preprocess.fit(images), case.runtime
    features = runtime.place_images(preprocess(images.pixels)).flatten(1)
    method = ProtoNet(nn.Flatten())
    expected = _prototypes(features.double(), tasks)

    def entrant(name: str, call: Callable[[], Tensor]) -> _Entrant:
        otherwise = (call() - expected).abs().sum().item()
        error = otherwise / (len(tasks) * len(case.sizes.query_labels))
        return _Entrant(name=name, call=call, error=error, dtype=torch.float32)

    entrants = [
        entrant(BY_TASK, lambda: _prototypes(features, tasks)),
        entrant(
            OURS,
            lambda: evaluate(method, images, tasks, preprocess=preprocess, runtime=runtime),
        ),
    ]
    return _race(case, KEPT, len(tasks), entrants, counts, effort)


def _race(
    case: FewShotCase,
    what: str,
    tasks: int,
    entrants: Sequence[_Entrant],
    counts: Sequence[int],
    effort: Effort,
) -> list[Row]:
    """A row for each; what is wrong has no times."""
    rows = []
    problems = {one.name: problem({one.dtype: one.error}) for one in entrants}
    right = {one.name: one.call for one in entrants if not problems[one.name]}
    for count in counts:
        with threads(count):
            times = measure(right, effort) if right else {}
            peaks = {name: peak_bytes(call, case.runtime.device) for name, call in right.items()}
        for place, one in enumerate(entrants):
            costs: dict[str, float | None] = {"peak_bytes": peaks.get(one.name)}
            if one.name in times:
                costs[SPEED] = tasks / times[one.name].seconds
            row = Row(
                group={"what": what, "dtype": case.runtime.precision, "threads": count},
                name=one.name,
                baseline=place == 0,
                problem=problems[one.name],
                wrong=problems[one.name] is not None,
                error=one.error,
                times={TIME: times[one.name]} if one.name in times else {},
                costs={name: value for name, value in costs.items() if value is not None},
            )
            rows.append(row)
    return rows


def _by_ours(method: nn.Module, task: Episode) -> Sequence[Tensor]:
    return torch.autograd.grad(cast(Method, method).loss(task), trained(method))


def _by_higher(network: nn.Module, task: Episode) -> Sequence[Tensor]:
    """Grefenstette et al., 2019 (https://github.com/facebookresearch/higher)."""
    descent = torch.optim.SGD(network.parameters(), lr=RATE)
    with warnings.catch_warnings(action="ignore"):  # Its strings and comparisons are of 2020.
        inner = import_module(HIGHER).innerloop_ctx
    with inner(network, descent, copy_initial_weights=False) as (fast, steps):
        for _ in range(STEPS):
            steps.step(F.cross_entropy(fast(task.support), task.support_labels))
        loss = F.cross_entropy(fast(task.query), task.query_labels)
        return torch.autograd.grad(loss, trained(network))


def _by_definition(network: nn.Module, task: Episode) -> Sequence[Tensor]:
    fast: dict[str, Tensor] = dict(network.named_parameters())
    for _ in range(STEPS):
        loss = F.cross_entropy(functional_call(network, fast, task.support), task.support_labels)
        changes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {k: v - RATE * c for (k, v), c in zip(fast.items(), changes, strict=True)}
    loss = F.cross_entropy(functional_call(network, fast, task.query), task.query_labels)
    return torch.autograd.grad(loss, trained(network))


def _prototypes(features: Tensor, tasks: TaskList) -> Tensor:
    """How many queries of each task are nearest to the mean of their class: int64 (tasks,)."""
    right, sizes = [], tasks.sizes
    labels = sizes.query_labels.to(features.device)
    for support, query in zip(tasks.draw.support, tasks.draw.query, strict=True):
        means = features[support].unflatten(0, (sizes.ways, sizes.shots)).mean(1)
        right.append((torch.cdist(features[query], means).argmin(1) == labels).sum())
    return torch.stack(right).cpu()


def _task(case: FewShotCase) -> Episode:
    """A task of random images."""
    generator = torch.Generator().manual_seed(SEED)
    device, sizes = case.runtime.device, case.sizes

    def images(labels: Tensor) -> Tensor:
        shape = (len(labels), CHANNELS, case.image_size, case.image_size)
        return case.runtime.place_images(torch.randn(shape, generator=generator))

    support, query = sizes.support_labels, sizes.query_labels
    return Episode(images(support), support.to(device), images(query), query.to(device))


def _laid_out(task: Episode, layout: torch.memory_format) -> Episode:
    parts = (p.contiguous(memory_format=layout) if p.is_floating_point() else p for p in task)
    return Episode(*parts)


def _features() -> Images:
    """Features of images as pixels; those of a class are nearer to each other, most of the time."""
    generator = torch.Generator().manual_seed(SEED)
    centres = torch.rand(CLASSES, 1, FEATURES, generator=generator)
    near = centres / 4 + 2.75 * torch.rand(CLASSES, IMAGES, FEATURES, generator=generator)
    pixels = (85 * near).to(torch.uint8).view(-1, 1, 1, FEATURES)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    return Images(pixels, labels, tuple(map(str, range(CLASSES))))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
