"""The map of adaptation: rates are chosen off the map, and cells are whole."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_images import CLASSES, make_dataset, use_tiny_images
from torch.nn import BatchNorm2d

import neural_similarity as ns
from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity_paper.studies import adapt_map, adapt_runs
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    DRAWS,
    FIRST_RATES,
    GRID,
    MAP_SEARCH,
    MAP_WAYS,
    RATE_CHANGES,
    RATE_DRAWS,
    MapRun,
    cell_trials,
    chosen_rate,
    missing_trials,
    rate_trials,
    trial_recipe,
)

# What peft imports warns.
pytestmark = pytest.mark.filterwarnings("ignore")


def choose(accuracy):
    """The rate that is chosen where trials have these accuracies, and the trials that ran."""
    scores = {}
    while trials := missing_trials("full", scores, MAP_SEARCH):
        scores |= {str(trial): accuracy(trial) for trial in trials}
    return chosen_rate("full", scores, MAP_SEARCH), scores


@pytest.mark.parametrize("best", GRID)
def test_the_best_rate_is_found_inside_the_grid_or_at_its_end(best):
    rate, scores = choose(lambda trial: -abs(GRID.index(trial.rate) - GRID.index(best)))
    assert rate == best
    tried = {float(text.split()[1]) for text in scores}
    at = GRID.index(best)
    assert {*GRID[max(at - 1, 0) : at + 2], *FIRST_RATES} <= tried


def test_the_best_two_rates_are_compared_over_all_draws():
    """The first draw alone would take another one."""
    first = {0.003: 1.0, 0.01: 3.0, 0.03: 2.0}
    rate, scores = choose(
        lambda trial: first[trial.rate] if trial.draw == RATE_DRAWS[0] else 100 * trial.rate
    )
    assert rate == 0.03
    assert len(scores) == len(RATE_CHANGES) * (3 + 2 * 2)
    with pytest.raises(ValueError, match=r"lacks full 0\.003 rotation-20 11"):
        chosen_rate("full", {}, MAP_SEARCH)


def test_no_rate_is_chosen_on_a_change_of_the_map_or_with_its_images():
    assert not set(RATE_CHANGES) & set(CHANGES)
    assert not set(RATE_DRAWS) & set(DRAWS)


def test_a_cell_has_every_way_with_every_draw_but_what_no_draw_changes():
    rates = dict.fromkeys(MAP_WAYS, 0.01)
    turned = cell_trials("rotation-30", rates)
    assert len(turned) == len(set(turned)) == 5 * (len(MAP_WAYS) - 2) + 2
    assert {t.way for t in turned} - {t.way for t in cell_trials("noise-25", rates)} == {"undone"}


@pytest.mark.parametrize("way", MAP_WAYS)
def test_recipes_of_the_map_are_those_of_their_way(way):
    recipe = trial_recipe(MapRun(way, 0.25, "rotation-30", 4), 50)
    assert (recipe.per_class, recipe.seed, recipe.lr) == (50, 4, 0.25)
    assert (recipe.dataset == "cifar10-rotation-30-undone") == (way == "undone")
    kept = way in ("nothing", "undone", "ssf")
    assert recipe.norm == ("eval" if kept else "train")
    frozen = trial_recipe(MapRun(way, 0.25, "rotation-30", 4), 50, "backbone")
    assert frozen.norm == ("train" if way == "statistics" else "eval")
    assert recipe.steps == (2 if way in ("nothing", "undone") else 200)


def coloured_dataset():
    """The tiny data set, grey in three channels, as its network takes it."""
    grey = make_dataset()
    train, test = (
        replace(part, pixels=part.pixels.repeat(1, 3, 1, 1)) for part in (grey.train, grey.test)
    )
    return replace(grey, train=train, test=test)


@pytest.fixture
def tiny_map(monkeypatch, tmp_path):
    """Four ways, one cell, on a network and images of which a run takes a second."""
    use_tiny_images(monkeypatch)
    torch.manual_seed(0)
    network = ns.models.resnet20(num_classes=len(CLASSES), width=0.25)
    torch.save(network.state_dict(), tmp_path / "net.pt")
    ways = ("full", "full-default", "norm", "nothing")
    small = {"backbone": str(tmp_path / "net.pt"), "width": 0.25}
    short = {"steps": 2, "drops": (), "batch_size": 8}
    settings = {
        adapt_map: {
            "CHANGED": adapt_map.CHANGED | small | short,
            "GRID": (0.01,), "DRAWS": (1, 2), "MAP_WAYS": ways, "RATES_OF_M": (0.01, 0.03),
        },
        adapt_runs: {
            "LABELS": (2,), "HELD_OUT": 2, "CHANGES": ("rotation-30",), "DRAWS": (1, 2),
            "MAP_WAYS": ways, "MAP_SEARCH": MAP_SEARCH._replace(draws=(11,), first=(0.01,)),
            "load_dataset": lambda *_, **__: coloured_dataset(),
        },
    }  # fmt: skip
    for module, values in settings.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    adapt_runs.load_images.cache_clear()
    yield tmp_path
    adapt_runs.load_images.cache_clear()


@pytest.mark.parametrize("way", ["full", "full-default", "norm", "nothing"])
def test_a_run_of_the_map_is_that_of_nsim_train_adapt(tiny_map, passes, way):
    rate = 0.0 if way == "full-default" else 0.05
    recipe = trial_recipe(MapRun(way, rate, "rotation-30", 3), 2)
    found = adapt_runs.run_in_memory(recipe, coloured_dataset(), tiny_map)
    run = session.train(recipe, out=tiny_map / "run", data_root=tiny_map, device="cpu")
    summary = read_json(run.summary)
    assert found["correct"] == summary["test_correct"]
    assert found["score_precision"] == summary["score_precision"] == "fp32"
    assert (False, True) not in passes
    assert found["trained"] == summary["trained"]
    assert found["lr"] == run.recipe.lr > 0


def test_a_map_that_was_stopped_goes_on_and_repeats_nothing(tiny_map):
    lines, whole = [], []

    def report(line):
        lines.append(line)
        if len(lines) in (2, 7):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            adapt_runs.run_map(tiny_map, tiny_map, report)
    adapt_runs.run_map(tiny_map, tiny_map, report)
    assert len(lines) == len(set(lines)) == 2 * 3 + 2 * 3 + 1 + 2
    adapt_runs.run_map(tiny_map, tiny_map, whole.append)
    assert not whole
    cell = adapt_runs.read_sheet(adapt_runs.cell_path(tiny_map, "rotation-30", 2))
    path = adapt_runs.rates_path(tiny_map, 2, cell.statistics)
    rates = adapt_runs.read_sheet(path).chosen_rates
    trials = [*rate_trials("rotation-30"), *cell_trials("rotation-30", rates)]
    assert list(cell.runs) == list(dict.fromkeys(map(str, trials)))
    assert all("correct" in run for run in cell.runs.values())


@pytest.mark.parametrize("better", ["new", "backbone"])
def test_labelled_images_choose_the_statistics_once(tiny_map, monkeypatch, better):
    """Of 8 labelled images of each draw, more are right by the better statistics."""
    asked = []

    def evaluate(network, images, *_):
        asked.append({image.numpy().tobytes() for image in images.pixels})
        norms = [m for m in network.modules() if isinstance(m, BatchNorm2d)]
        kept = not any(m.running_mean.any() for m in norms)  # Those of a new network are zero.
        correct = torch.arange(len(images)) < (5 if kept == (better == "backbone") else 4)
        return SimpleNamespace(correct=correct)

    monkeypatch.setattr(adapt_runs, "evaluate_model", evaluate)
    cell = adapt_runs.open_sheet(tiny_map / "rotation-30-2.json", labels=2)
    assert adapt_runs.choose_statistics(cell, "rotation-30", 2, tiny_map) == better
    other = {"new": "backbone", "backbone": "new"}[better]
    assert cell.facts["labelled_correct"] == {better: 2 * 5, other: 2 * 4}
    train = {image.numpy().tobytes() for image in coloured_dataset().train.pixels}
    assert all(images < train and len(images) == 2 * len(CLASSES) for images in asked)
    again = adapt_runs.read_sheet(cell.path)
    assert adapt_runs.choose_statistics(again, "rotation-30", 2, tiny_map) == better
    assert len(asked) == 4


def test_held_out_images_are_training_images_that_no_draw_takes(tiny_map):
    held_out = adapt_runs.load_images("cifar10-rotation-20", tiny_map, True)
    train = coloured_dataset().train
    assert len(held_out.test) == 2 * len(CLASSES)
    assert len(held_out.train) + len(held_out.test) == len(train)
    known = {image.numpy().tobytes() for image in train.pixels}
    parts = [
        {image.numpy().tobytes() for image in p.pixels} for p in (held_out.train, held_out.test)
    ]
    assert parts[0] | parts[1] == known
    assert not parts[0] & parts[1]


def test_a_damaged_sheet_is_named(tmp_path):
    (tmp_path / "rotation-30-10.json").write_text('{"runs": {}', "utf-8")
    with pytest.raises(ValueError, match=r"rotation-30-10\.json cannot be read as a sheet"):
        adapt_runs.read_sheet(tmp_path / "rotation-30-10.json")
