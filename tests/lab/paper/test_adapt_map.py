"""The map of adaptation: rates are chosen off the map, and cells are whole."""

import pytest

from neural_similarity.lab.paper.adapt_map import (
    CHANGES,
    DRAWS,
    FIRST_RATES,
    GRID,
    MAP_WAYS,
    RATE_CHANGES,
    RATE_DRAWS,
    Trial,
    cell_trials,
    chosen_rate,
    missing_trials,
    trial_recipe,
)

# What peft imports warns.
pytestmark = pytest.mark.filterwarnings("ignore")


def choose(accuracy):
    """The rate that is chosen where trials have these accuracies, and the trials that ran."""
    scores = {}
    while trials := missing_trials("full", scores):
        scores |= {str(trial): accuracy(trial) for trial in trials}
    return chosen_rate("full", scores), scores


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
        chosen_rate("full", {})


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
    recipe = trial_recipe(Trial(way, 0.25, "rotation-30", 4), 50)
    assert (recipe.per_class, recipe.seed, recipe.lr) == (50, 4, 0.25)
    assert (recipe.dataset == "cifar10-rotation-30-undone") == (way == "undone")
    kept = way in ("nothing", "undone", "ssf")
    assert recipe.norm == ("eval" if kept else "train")
    assert recipe.steps == (2 if way in ("nothing", "undone") else 200)
