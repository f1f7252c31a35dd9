"""Choosing the learning rate of a way of adaptation on held-out images."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
Scores = Mapping[str, float]
"""Accuracies on held-out images by the text of their trial."""


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


@dataclass(frozen=True)
class RateSearch:
    """The choice of a way's rate, given those of other groups."""

    way: str
    place: SearchPlace
    others: tuple[float, ...] = ()

    def missing(self, scores: Scores) -> list[Trial]:
        """The runs that the choice still needs, a few at a time; none once it is made."""
        rates, first = list(self.place.first), self.place.draws[:1]
        while not (lacking := self._lacking(rates, first, scores)):
            best = GRID.index(self._ranked(rates, first, scores)[0])
            beside = [rate for rate in GRID[max(best - 1, 0) : best + 2] if rate not in rates]
            if not beside:
                two = self._ranked(rates, first, scores)[:2]
                return self._lacking(two, self.place.draws, scores)
            rates += beside
        return lacking

    def choose(self, scores: Scores) -> float:
        """The better of the two best rates over all draws; of equals the smaller.

        Raises:
            ValueError: runs are missing.
        """
        if missing := self.missing(scores):
            raise ValueError(f"the choice of a rate for {self.way} lacks {missing[0]}")
        draws = self.place.draws
        rates = [rate for rate in GRID if not self._lacking([rate], draws, scores)]
        return self._ranked(rates, draws, scores)[0]

    def _trials(self, rate: float, draws: tuple[int, ...]) -> list[Trial]:
        rates = (*self.others, rate)
        return [Trial(self.way, rates, c, draw) for c in self.place.changes for draw in draws]

    def _lacking(self, rates: list[float], draws: tuple[int, ...], scores: Scores) -> list[Trial]:
        trials = (trial for rate in rates for trial in self._trials(rate, draws))
        return [trial for trial in trials if str(trial) not in scores]

    def _ranked(self, rates: list[float], draws: tuple[int, ...], scores: Scores) -> list[float]:
        """The rates by their mean accuracy, the best first, of equals the smaller."""

        def mean(rate: float) -> float:
            return fmean(scores[str(trial)] for trial in self._trials(rate, draws))

        return sorted(sorted(rates), key=mean, reverse=True)
