"""Twenty tasks: classes, recipes and bytes."""

import pytest
import torch

import neural_similarity as ns
from neural_similarity.lab.data.images import Dataset, Images
from neural_similarity.lab.tasks.adaptation import adapt_network
from neural_similarity_paper.studies import adapt_continual
from neural_similarity_paper.studies.adapt_continual import (
    CONTINUAL,
    ORDERS,
    TASKS,
    task_classes,
    task_images,
    task_positions,
    task_recipe,
)
from neural_similarity_paper.studies.trials import Trial

HEAD, STATISTICS = 4 * 325, 4 * 1_376
BYTES = {
    "full": 4 * 1_539 + HEAD + STATISTICS,
    "head": HEAD + STATISTICS,
    "norm": 4 * 1_376 + HEAD + STATISTICS,
    "full-norm": 4 * (1_539 + 1_376) + HEAD + STATISTICS,
    "residual": 4 * 29_744 + HEAD + STATISTICS,
    "piggyback": 267_696 // 8 + HEAD + STATISTICS,
    "ssf": 4 * 1_376 + HEAD,
}


def hundred_classes(each=3):
    random = torch.Generator().manual_seed(0)
    names = tuple(f"c{i}" for i in range(100))
    labels = torch.arange(100).repeat(each)  # Classes alternate.
    parts = [
        Images(torch.randint(256, (len(labels), 3, 32, 32), generator=random).byte(), labels, names)
        for _ in range(2)
    ]
    return Dataset("cifar100", *parts)


def run_of(task, order):
    return Trial("full", (0.01,), f"task-{task}", order)


def test_an_order_has_every_class_once():
    for order in ORDERS:
        classes = torch.cat([task_classes(run_of(task, order)) for task in range(TASKS)])
        assert sorted(classes.tolist()) == list(range(100))
    assert not torch.equal(task_classes(run_of(0, 1)), task_classes(run_of(0, 2)))


def test_rates_are_chosen_on_an_order_of_their_own_and_on_training_images(monkeypatch):
    assert not set(CONTINUAL.cells[0].place.draws) & set(ORDERS)
    whole = hundred_classes()
    monkeypatch.setattr(adapt_continual, "TASK_HELD_OUT", 1)
    part = task_images(whole, run_of(1, 11), True)
    assert (len(part.train), len(part.test)) == (10, 5)
    tests = {image.numpy().tobytes() for image in whole.test.pixels}
    assert not tests & {image.numpy().tobytes() for image in part.test.pixels}


def test_positions_are_those_of_a_tasks_images_among_all_sorted_by_class():
    whole = hundred_classes()
    part = task_images(whole, run_of(3, 2), False)
    assert list(part.test.classes) == [f"c{c}" for c in task_classes(run_of(3, 2))]
    assert len(part.train) == len(part.test) == 15
    by_class = whole.test.subset(whole.test.labels.argsort(stable=True))
    places = task_positions(run_of(3, 2), 15)
    assert torch.equal(by_class.pixels[places], part.test.pixels)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", CONTINUAL.ways)
def test_bytes_of_a_task(way):
    network = adapt_network(
        ns.models.resnet20(num_classes=5), task_recipe(Trial(way, (0.01,), "task-0", 1))
    )
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert CONTINUAL.size[1](way, trained) == f"{BYTES[way]:,}"
    before = network.bn1.running_mean.clone()
    network.train()(torch.randn(2, 3, 32, 32))
    assert torch.equal(network.bn1.running_mean, before) == (way == "ssf")
