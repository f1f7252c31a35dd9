"""ProtoNet on features that are kept, beside its definition."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.case import SEED, Case, seeded
from benchmarks.compare import Entrant, compare
from benchmarks.measure import seconds_per_call
from benchmarks.options import Options
from benchmarks.oracle import Errors
from benchmarks.report import Row
from neural_similarity.lab.data import Images, Preprocess
from neural_similarity.lab.tasks.few_shot.evaluate import evaluate_method
from neural_similarity.lab.tasks.few_shot.metric import ProtoNet
from neural_similarity.lab.tasks.few_shot.tasks import TaskList, TaskSizes, draw_tasks

SIZES = TaskSizes(ways=5, shots=5, queries=15)
FEATURES, CLASSES, IMAGES = 800, 20, 100
"""Of CNN-4; test classes of Mini-ImageNet, and so many images of each."""
KEPT = "ProtoNet on kept features"
OURS, BY_TASK = "ours", "its definition, task by task"
TIME, SPEED = "all tasks", "tasks_per_second"


def few_shot(options: Options) -> Iterator[Row]:
    """ProtoNet on a batch of tasks whose features are kept."""
    for case in options.cases():
        yield from kept_features(case)


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


def _prototypes(features: Tensor, tasks: TaskList) -> Tensor:
    """How many queries of each task are nearest to the mean of their class: int64 (tasks,)."""
    right, sizes = [], tasks.sizes
    labels = sizes.query_labels.to(features.device)
    for support, query in zip(tasks.draw.support, tasks.draw.query, strict=True):
        means = features[support].unflatten(0, (sizes.ways, sizes.shots)).mean(1)
        right.append((torch.cdist(features[query], means).argmin(1) == labels).sum())
    return torch.stack(right).cpu()


def _features() -> Images:
    """Features of images as pixels; those of a class are nearer to each other, most of the time."""
    with seeded():
        centres = torch.rand(CLASSES, 1, FEATURES)
        near = centres / 4 + 2.75 * torch.rand(CLASSES, IMAGES, FEATURES)
    pixels = (85 * near).to(torch.uint8).view(-1, 1, 1, FEATURES)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    return Images(pixels, labels, tuple(map(str, range(CLASSES))))
