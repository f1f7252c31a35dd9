"""The map of adaptation: for which changes of the images, and with how many labels, M leads.

A cell is a change and a number of labelled images of each class. Every way of adaptation runs on
the same draws of these images. Its learning rate is chosen for a number of labels at a time, on
images held out under changes that the map does not contain, and never on a test image. Whether
networks normalise by running statistics of the new images or by the backbone's is chosen for all
ways of a cell by the labelled images alone: whichever of the two classifies more of them rightly
without any training.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Literal, NamedTuple

from neural_similarity.lab.data.corruption import GEOMETRY, UNDONE
from neural_similarity.lab.tasks.adaptation import AdaptationRecipe
from neural_similarity_paper.recipes.adaptation import CHANGED, WAYS, way_fields

MAP_FOLDER = "adapt-map"
"""Folder of the map's records below that of all results."""
CHANGES = {
    "rotation-30": "turned by 30°",
    "lens-0.8": "barrel lens",
    "half-resolution": "half resolution",
    "noise-25": "noise",
    "rotation-45": "turned by 45°",
    "rotation-15": "turned by 15°",
    "rotation-90": "turned by 90°",
    "zoom-0.75": "zoom 0.75",
    "zoom-1.33": "zoom 1.33",
    "shear-0.4": "shear",
    "blur-1": "blur",
    "contrast-0.2": "contrast",
}
"""Changes of the map with their labels, most telling ones first."""
LABELS = (10, 5, 50)
"""Labelled images of each class."""
MAP_CELLS = tuple((change, labels) for labels in LABELS for change in CHANGES)
"""Changes and labels of the cells, in the order in which they run."""
DRAWS = (1, 2, 3, 4, 5)
"""Seeds of a cell."""
RATE_CHANGES = ("rotation-20", "zoom-1.15", "blur-1.5")
"""Changes on which rates are chosen; none is of the map."""
RATE_DRAWS = (11, 12, 13)
"""Seeds of the choice of rates: all rates with the first, the best two with all."""
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FIRST_RATES = (3e-3, 0.01, 0.03)
"""Where the choice begins; it goes on along the grid until the best rate has neighbours."""
FIXED_RATES = {"full-default": 0.0, "nothing": 1.0, "statistics": 1.0, "undone": 1.0}
"""Ways whose rate is not chosen: M's own by curvature (0), and those that train nothing."""
Statistics = Literal["new", "backbone"]
"""Normalisation by statistics of the new images, or by the backbone's."""
STATISTICS_OF: dict[str, Statistics] = {
    "nothing": "backbone",
    "undone": "backbone",
    "ssf": "backbone",
    "statistics": "new",
}
"""Ways whose statistics are not the cell's: those of the batch undo SSF."""
RATES_OF_M = (3e-4, 1e-3, 3e-3, 0.01, 0.03)
"""Rates of M that every cell tries, against which its own rate is judged."""
MAP_WAYS = (
    "full", "full-default", "all", "norm", "residual", "residual-vector", "atoms", "lora", "lora-c",
    "lora-c4", "oft", "conv-adapter", "ssf", "film", "bias", "head", "statistics", "nothing",
    "undone",
)  # fmt: skip
"""The ways of a cell; M comes first."""
LONGER = {50: 2}
"""Factor on the steps for some numbers of labels."""


class MapRun(NamedTuple):
    """A training run of a way under a change, by the seed that draws its images."""

    way: str
    rate: float
    change: str
    draw: int

    def __str__(self) -> str:
        return f"{self.way} {self.rate:g} {self.change} {self.draw}"


RunScores = Mapping[str, float]
"""Accuracies on held-out images by the text of their trial."""


class RateSearch(NamedTuple):
    """Where rates are chosen: all rates with the first draw, the best two with all draws."""

    changes: tuple[str, ...]
    draws: tuple[int, ...]
    first: tuple[float, ...]
    """Rates of `GRID` to begin with; it goes on until the best one has neighbours."""


MAP_SEARCH = RateSearch(RATE_CHANGES, RATE_DRAWS, FIRST_RATES)


def cell_ways(change: str) -> list[str]:
    """The ways of a cell: a change that is not geometric cannot be undone."""
    return [way for way in MAP_WAYS if way != "undone" or change in GEOMETRY]


def trial_recipe(trial: MapRun, labels: int, statistics: Statistics = "new") -> AdaptationRecipe:
    """The recipe of a run; `nsim train adapt` with its fields trains the same network."""
    way, undone = ("nothing", UNDONE) if trial.way == "undone" else (trial.way, "")
    kept = STATISTICS_OF.get(trial.way, statistics) == "backbone"
    times, fields = LONGER.get(labels, 1), way_fields(CHANGED | WAYS[way][1])
    drops = tuple(times * drop for drop in fields["drops"])
    fields |= {"steps": times * fields["steps"], "drops": drops, "per_class": labels}
    fields |= {"norm": "eval" if kept else "train", "lr": trial.rate, "seed": trial.draw}
    dataset = f"cifar10-{trial.change}{undone}"
    return AdaptationRecipe(**fields, dataset=dataset, threads=1, precision="bf16")


def cell_trials(change: str, rates: Mapping[str, float]) -> list[MapRun]:
    """The runs of a cell, a draw after the other; what does not depend on the draw runs once."""
    return [
        MapRun(way, FIXED_RATES.get(way, rates.get(way, 0.0)), change, draw)
        for draw in DRAWS
        for way in cell_ways(change)
        if draw == DRAWS[0] or way not in ("nothing", "undone")
    ]


def rate_trials(change: str) -> list[MapRun]:
    """M at all of its rates and at its own, on the images of a cell."""
    ours, untuned = MAP_WAYS[:2]
    tried = [(untuned, FIXED_RATES[untuned]), *((ours, rate) for rate in RATES_OF_M)]
    return [MapRun(way, rate, change, draw) for way, rate in tried for draw in DRAWS]


def missing_trials(way: str, scores: RunScores, search: RateSearch) -> list[MapRun]:
    """The runs that choosing a way's rate still needs, a few at a time; none once it is chosen."""
    one = search._replace(draws=search.draws[:1])
    rates = list(search.first)
    while not (lacking := _lacking(way, rates, one, scores)):
        best = GRID.index(_best_rates(way, rates, one, scores)[0])
        beside = [rate for rate in GRID[max(best - 1, 0) : best + 2] if rate not in rates]
        if not beside:
            return _lacking(way, _best_rates(way, rates, one, scores)[:2], search, scores)
        rates += beside
    return lacking


def chosen_rate(way: str, scores: RunScores, search: RateSearch) -> float:
    """The better of a way's two best rates over all draws; of equals the smaller.

    Raises:
        ValueError: runs are missing.
    """
    if missing := missing_trials(way, scores, search):
        raise ValueError(f"the choice of a rate for {way} lacks {missing[0]}")
    rates = [rate for rate in GRID if not _lacking(way, [rate], search, scores)]
    return _best_rates(way, rates, search, scores)[0]


def _trials(way: str, rate: float, search: RateSearch) -> list[MapRun]:
    return [MapRun(way, rate, change, draw) for change in search.changes for draw in search.draws]


def _lacking(way: str, rates: list[float], search: RateSearch, scores: RunScores) -> list[MapRun]:
    trials = (trial for rate in rates for trial in _trials(way, rate, search))
    return [trial for trial in trials if str(trial) not in scores]


def _best_rates(way: str, rates: list[float], search: RateSearch, scores: RunScores) -> list[float]:
    """The rates by their mean accuracy, the best first, of equals the smaller."""

    def mean(rate: float) -> float:
        return fmean(scores[str(trial)] for trial in _trials(way, rate, search))

    return sorted(sorted(rates), key=mean, reverse=True)
