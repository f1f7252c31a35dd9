"""Choosing the learning rate of a way of adaptation on held-out images."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Trial(NamedTuple):
    """A training run of a way under a change, by the seed that draws its images."""

    way: str
    rates: tuple[float, ...]
    """Of the groups of its parameters: a new head, M, all else; 0 is by curvature."""
    change: str
    draw: int

    def __str__(self) -> str:
        return f"{self.way} {self.rates_text} {self.change} {self.draw}"

    @property
    def rates_text(self) -> str:
        """The rates, joined by +."""
        return "+".join(f"{rate:g}" for rate in self.rates)


class SearchPlace(NamedTuple):
    """Where rates are chosen: all rates with the first draw, the best two with all draws."""

    changes: tuple[str, ...]
    draws: tuple[int, ...]
    first: tuple[float, ...]
    """Rates of `GRID` to begin with; it goes on until the best one has neighbours."""


def choose_rate(
    way: str, place: SearchPlace, others: tuple[float, ...], score: Callable[[Trial], float]
) -> float:
    """The better of a way's two best rates over all draws; of equals the smaller.

    Args:
        way: its name.
        place: where the rates are compared.
        others: rates of the other groups of parameters, which come first.
        score: the accuracy of a trial on held-out images.
    """

    def rank(rates: Iterable[float], draws: Sequence[int]) -> list[float]:
        def mean(rate: float) -> float:
            trials = (
                Trial(way, (*others, rate), change, draw)
                for change in place.changes
                for draw in draws
            )
            return fmean(map(score, trials))

        means = {rate: mean(rate) for rate in rates}
        return sorted(sorted(means), key=lambda rate: means[rate], reverse=True)

    rates, first = [*place.first], place.draws[:1]
    while True:
        ranked = rank(rates, first)
        at = GRID.index(ranked[0])
        beside = [rate for rate in GRID[max(at - 1, 0) : at + 2] if rate not in rates]
        if not beside:
            return rank(ranked[:2], place.draws)[0]
        rates += beside
