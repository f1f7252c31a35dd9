"""Second-order MAML beside `higher`, and ProtoNet on features that are kept."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.case import SEED, Case, seeded
from benchmarks.compare import Entrant, compare
from benchmarks.measure import seconds_per_call
from benchmarks.options import Options
from benchmarks.oracle import Errors, joined, relative, trained
from benchmarks.report import Row
from neural_similarity import models
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.episode import Episode
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate_method
from neural_similarity.lab.tasks.few_shot.gradient import maml
from neural_similarity.lab.tasks.few_shot.method import Method
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes, draw_tasks

STEPS, RATE = 5, 0.05
SIZES = TaskSizes(ways=5, shots=5, queries=15)
FEATURES, CLASSES, IMAGES = 800, 20, 100
"""Of CNN-4; test classes of Mini-ImageNet, and so many images of each."""
META, KEPT = "second-order MAML of CNN-4", "ProtoNet on kept features"
HIGHER, OURS, BY_TASK = "higher", "ours", "its definition, task by task"
TIME, SPEED = "all tasks", "tasks_per_second"

Gradients = Callable[[nn.Module, Episode], Sequence[Tensor]]


def few_shot(options: Options) -> Iterator[Row]:
    """Second-order MAML, and ProtoNet on a batch of tasks whose features are kept."""
    for case in options.cases():
        yield from meta_gradients(case)
        yield from kept_features(case)


def meta_gradients(case: Case) -> list[Row]:
    """The gradient of a task's query loss through five steps on all parameters.

    Batch normalisation uses the statistics of each batch, as it does under `higher`. Ours runs
    channels-last, as its recipes do; what torch computes alone is faster in its own layout.
    """
    with seeded():
        network = models.convnet4(image_size=case.size, width=case.width)
        method = maml(network, SIZES.ways, steps=STEPS, rate=RATE)
    set_statistics(method, "transductive")
    plain = nn.Sequential(deepcopy(method.backbone), deepcopy(method.head))
    set_statistics(plain, None).train()
    exact = _task(case, torch.float64)
    expected = joined(_by_definition(case.runtime.place_model(deepcopy(plain)).double(), exact))

    def entrant(name: str, module: nn.Module, gradients: Gradients, case: Case) -> Entrant:
        case.runtime.place_model(module)

        def errors() -> Errors:
            found = joined(gradients(deepcopy(module).double(), exact))
            return {torch.float64: relative(found, expected)}

        calls = {TIME: partial(gradients, module, _task(case, torch.float32))}
        may_fail = name == HIGHER
        return Entrant(name=name, errors=errors, calls=calls, speeds={SPEED: 1}, may_fail=may_fail)

    own = replace(case, runtime=replace(case.runtime, channels_last=False))
    entrants = [entrant(HIGHER, plain, _by_higher, own), entrant(OURS, method, _by_ours, case)]
    return compare(
        {"what": META, "dtype": case.runtime.precision}, entrants, case, seconds_per_call
    )


def kept_features(case: Case) -> list[Row]:
    """The evaluator, and the definition of ProtoNet for one task after another.

    An error is by how many right queries the tasks differ from float64, over all queries.
    """
    images = _features()
    tasks = draw_tasks(images, SIZES, case.batch, seed=SEED, data="", part="test")
    preprocess, runtime = Preprocess.fit_to_images(images), case.runtime
    features = runtime.place_images(preprocess(images.pixels)).flatten(1)
    expected = _prototypes(features.double(), tasks)
    queries = len(tasks) * len(SIZES.query_labels)

    def entrant(name: str, call: Callable[[], Tensor]) -> Entrant:
        def errors() -> Errors:
            return {torch.float32: (call() - expected).abs().sum().item() / queries}

        return Entrant(name=name, errors=errors, calls={TIME: call}, speeds={SPEED: len(tasks)})

    method = ProtoNet(nn.Flatten())
    ours = partial(evaluate_method, method, images, tasks, preprocess=preprocess, runtime=runtime)
    entrants = [entrant(BY_TASK, partial(_prototypes, features, tasks)), entrant(OURS, ours)]
    return compare({"what": KEPT, "dtype": runtime.precision}, entrants, case, seconds_per_call)


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


def _task(case: Case, dtype: torch.dtype) -> Episode:
    """A task of random images, the same every time."""
    labels = SIZES.support_labels, SIZES.query_labels
    counts = [len(part) for part in labels]
    support, query = case.images(sum(counts)).to(dtype).split(counts)
    shown, asked = (part.to(case.runtime.device) for part in labels)
    return Episode(support, shown, query, asked)


def _features() -> Images:
    """Features of images as pixels; those of a class are nearer to each other, most of the time."""
    with seeded():
        centres = torch.rand(CLASSES, 1, FEATURES)
        near = centres / 4 + 2.75 * torch.rand(CLASSES, IMAGES, FEATURES)
    pixels = (85 * near).to(torch.uint8).view(-1, 1, 1, FEATURES)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    return Images(pixels, labels, tuple(map(str, range(CLASSES))))
