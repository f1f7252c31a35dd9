"""Twenty tasks: classes, recipes, bytes, and a run that was stopped goes on."""

import pytest
import torch

import neural_similarity as ns
from neural_similarity.lab.data.images import Dataset, Images
from neural_similarity.lab.paper import adapt_continual, adapt_continual_report
from neural_similarity.lab.paper.adapt_continual import (
    ORDERS,
    TASK_SEARCH,
    TASK_WAYS,
    TASKS,
    run_continual,
    task_classes,
    task_images,
    task_recipe,
    task_trials,
)
from neural_similarity.lab.paper.adapt_continual_report import (
    continual_to_markdown,
    correct_by_class,
    task_bytes,
)
from neural_similarity.lab.paper.adapt_map import GRID, MapRun
from neural_similarity.lab.tasks.adaptation import adapt_network
from neural_similarity.lab.train import pack_correct

BYTES = {
    "full": 4 * (1_539 + 325),
    "norm-statistics": 4 * (1_376 + 1_376 + 325),
    "piggyback": 267_696 // 8 + 4 * 325,
    "ssf": 4 * (1_376 + 325),
    "residual": 4 * (29_744 + 325),
    "head": 4 * 325,
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


def test_an_order_has_every_class_once():
    for order in ORDERS:
        tasks = [task_classes(order, task) for task in range(TASKS)]
        assert sorted(c for own in tasks for c in own) == list(range(100))
    assert task_classes(1, 0) != task_classes(2, 0)


def test_rates_are_chosen_on_an_order_of_their_own_and_on_training_images():
    assert not set(TASK_SEARCH.draws) & set(ORDERS)
    whole = hundred_classes()
    trial = MapRun("full", 0.01, "task-1", TASK_SEARCH.draws[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapt_continual, "TASK_HELD_OUT", 1)
        part = task_images(whole, trial, held_out=True)
    assert (len(part.train), len(part.test)) == (10, 5)
    tests = {image.numpy().tobytes() for image in whole.test.pixels}
    assert not tests & {image.numpy().tobytes() for image in part.test.pixels}


def test_scored_images_of_a_task_lie_class_by_class():
    whole = hundred_classes()
    part = task_images(whole, MapRun("full", 0.01, "task-3", 2), held_out=False)
    names = [whole.test.classes[c] for c in task_classes(2, 3)]
    assert list(part.test.classes) == names
    assert part.test.labels.tolist() == [c for c in range(5) for _ in range(3)]
    assert len(part.train) == len(part.test) == 15


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", TASK_WAYS)
def test_bytes_of_a_task(way):
    recipe = task_recipe(MapRun(way, 0.01, "task-0", 1))
    network = adapt_network(ns.models.resnet20(num_classes=5), recipe)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert task_bytes(way, trained) == BYTES[way]
    before = network.bn1.running_mean.clone()
    network.train()(torch.randn(2, 3, 32, 32))
    assert torch.equal(network.bn1.running_mean, before) == (way != "norm-statistics")


def fake_run(monkeypatch, shares):
    """In place of training: a share of the images is right."""

    def run(recipe, whole, _):
        random = torch.Generator().manual_seed(recipe.seed)
        way = next(
            w for w in TASK_WAYS if task_recipe(MapRun(w, recipe.lr, "", recipe.seed)) == recipe
        )
        right = torch.rand(len(whole.test), generator=random) < shares.get(way, 0.5)
        trained = {"piggyback": 268_021, "full": 1_864}.get(way, 325)
        accuracy = -abs(GRID.index(recipe.lr) - GRID.index(0.01))
        return {"accuracy": accuracy, "trained": trained, "correct": pack_correct(right)}

    monkeypatch.setattr(adapt_continual, "run_in_memory", run)
    dataset = hundred_classes()
    monkeypatch.setattr(adapt_continual, "TASK_HELD_OUT", 1)
    monkeypatch.setattr(adapt_continual, "TASKS", 4)
    monkeypatch.setattr(adapt_continual, "load_dataset", lambda *_, **__: dataset)
    for module in (adapt_continual, adapt_continual_report):
        monkeypatch.setattr(module, "ORDERS", (1, 2))


def test_what_was_stopped_goes_on_and_only_whole_orders_are_shown(monkeypatch, tmp_path):
    fake_run(monkeypatch, {"full": 0.9})
    lines = []

    def report(line):
        lines.append(line)
        if len(lines) in (5, 70):
            raise KeyboardInterrupt

    assert "0 of 2 orders have run" in continual_to_markdown(tmp_path)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_continual(tmp_path, tmp_path, report)
    assert "1 of 2 orders have run" in continual_to_markdown(tmp_path)
    run_continual(tmp_path, tmp_path, report)
    assert len(lines) == len(set(lines))
    page = continual_to_markdown(tmp_path)
    assert "2 of 2 orders have run" in page
    assert "| static full M | 7,456 | 0.01 |" in page
    assert "| masks of the kernels (Piggyback) | 34,762 |" in page


def test_images_of_all_orders_are_the_same_ones():
    """A class's images are at the same place, whichever task has it."""
    rates, runs = dict.fromkeys(TASK_WAYS, 0.01), {}
    right = torch.rand(100, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    for order in (1, 2):
        for trial in task_trials(order, rates):
            classes = task_classes(order, int(trial.change.removeprefix("task-")))
            runs[str(trial)] = {"correct": pack_correct(right[classes].flatten())}
        own = [t for t in task_trials(order, rates) if t.way == "ssf"]
        assert torch.equal(correct_by_class(runs, own), right.flatten())
