"""Studies of adaptation: cells of (change, labels, way, search), their runs, sheets and reports."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.train import unpack_correct
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.statistics import LEAST_SEEDS, by_image, by_seed_and_image, holm
from neural_similarity_paper.studies.rates import RateSearch, SearchPlace, Trial
from neural_similarity_paper.studies.sheets import (
    TRAINED,
    ReportLine,
    Sheet,
    filling_alone,
    open_sheet,
    read_sheet,
)

CURVED = "-default"
"""What the name of a way ends in, in a run whose rates are by curvature."""


class Way(NamedTuple):
    """A way of adaptation in a study."""

    label: str
    rates: tuple[str, ...] = ()
    """Ways whose chosen rates it takes, in the order of `Trial.rates`; none where none trains. Its
    own name comes last where its rate is searched."""
    alone: str = ""
    """The same way without M, over which M's gain is shown."""
    every_draw: bool = True
    """Whether its answers depend on the draw."""
    run: str = ""
    """Its name in runs, where that is another one."""
    fixed: tuple[float, ...] = ()
    """Rates that are neither searched nor by curvature."""


class Cell(NamedTuple):
    """Ways that are compared on the same images.

    Attributes:
        changes: what a way runs on, for every draw.
        file, rates_file: stems of the sheets of its runs, and of those that chose rates.
        facts: what the sheet says beside the runs, such as the number of labels.
    """

    name: str
    label: str
    changes: tuple[str, ...]
    draws: tuple[int, ...]
    place: SearchPlace = SearchPlace((), (), ())
    file: str = "runs"
    rates_file: str = "runs"
    without: tuple[str, ...] = ()
    facts: Mapping[str, Any] = {}


class Column(NamedTuple):
    """Rates of a table: the chosen ones, but by curvature for the ways that are named."""

    title: str = ""
    curved: Collection[str] = ()


class Unit(NamedTuple):
    """Title of the column of means, unit of leads, and factor on an image's entry."""

    title: str
    lead: str
    scale: float


PERCENT = Unit("accuracy, %", "points", 100.0)


class Lead(NamedTuple):
    """A difference, with p-values adjusted within the cell and over all cells."""

    interval: Interval
    p: float
    p_all: float = 1.0


@dataclass
class CellReport:
    """What a cell's runs say; lists have an entry for each column of rates.

    Attributes:
        correct: what a way's runs say of each image, such as whether it was right, (draws, images),
            for the draws that ran.
        leads: of M over a way; or of a way with M over the same way alone.
    """

    cell: Cell
    draws: list[int]
    facts: dict[str, Any]
    rates: dict[str, str]
    runs: dict[str, list[dict[str, Any]]]
    correct: list[dict[str, Tensor]]
    leads: list[dict[str, Lead]] = field(default_factory=list)


@dataclass(frozen=True)
class Study:
    """Cells, most telling ones first, and how their runs are made and shown.

    Attributes:
        stages: ways, M first, in the order in which they run in all cells; a cell is shown once
            it has those of the first stage.
        run_trial: trains and scores a trial, given `data`, the folder of the data sets, `held_out`,
            whether held-out images stand for test images, and a cell's labels and statistics; what
            a sheet keeps of it. Older studies are shown alone and need none.
        begin: completes the facts of a cell's sheet.
        terms: facts of every new sheet, such as the digest of the network.
        positions: where a run's images stand among those of its draw; by default in their order.
        size: title and text of what a way costs, from the number of trained parameters.
        answers: the field of a run that has an entry for each image: packed booleans, or numbers.
        unit: how means and leads are shown.
        fields: types of what the table shows of a run.
        floor: a way without training; a cell where none that trains is above it ranks nothing.
        older: studies that are shown below it.
    """

    name: str
    title: str
    note: str
    ways: Mapping[str, Way]
    stages: tuple[tuple[str, ...], ...]
    cells: tuple[Cell, ...]
    run_trial: Callable[..., dict[str, Any]] = dict
    begin: Callable[[Sheet, Cell, Path], None] = lambda *_: None
    terms: Callable[[], dict[str, Any]] = dict
    columns: tuple[Column, ...] = (Column(),)
    folder: str = ""
    positions: Callable[[Trial, int], Tensor] = lambda _, count: torch.arange(count)
    size: tuple[str, Callable[[str, int], str]] = ("trained", lambda _, trained: f"{trained:,}")
    answers: str = "correct"
    unit: Unit = PERCENT
    fields: Mapping[str, Any] = field(default_factory=lambda: TRAINED)
    floor: str = ""
    older: tuple["Study", ...] = ()

    def sheet_path(self, results: Path, stem: str, facts: Mapping[str, Any] | None = None) -> Path:
        """A sheet; those that chose rates are apart by what their networks normalised by."""
        kept = "-backbone" if (facts or {}).get("statistics") == "backbone" else ""
        return results / (self.folder or self.name) / f"{stem}{kept}.json"

    def run(
        self, data: Path, results: Path, report: ReportLine, only: Collection[str] = ()
    ) -> None:
        """Choose rates and run what cells lack, stage by stage; `only` has globs of their names."""
        cells = [c for c in self.cells if not only or any(fnmatchcase(c.name, g) for g in only)]
        with filling_alone(results / (self.folder or self.name)):
            for stage in self.stages:
                for cell in cells:
                    self._fill(cell, stage, data, results, report)

    def _fill(
        self, cell: Cell, stage: Sequence[str], data: Path, results: Path, report: ReportLine
    ) -> None:
        sheet = self._open(self.sheet_path(results, cell.file), cell.facts)
        self.begin(sheet, cell, data)
        shared = {k: v for k, v in sheet.facts.items() if k in ("labels", "statistics")}
        run = partial(self.run_trial, data=data, **shared)
        rates = self._open(self.sheet_path(results, cell.rates_file, shared), shared)

        def run_held_out(trial: Trial) -> dict[str, Any]:
            return {k: v for k, v in run(trial, held_out=True).items() if k != self.answers}

        fill = partial(rates.fill, run_trial=run_held_out, report=report)
        chosen = self.choose_rates(cell, stage, rates, fill) or {}
        trials = chain.from_iterable(self.trials(cell, stage, chosen).values())
        sheet.fill(trials, partial(run, held_out=False), report)

    def _open(self, path: Path, facts: Mapping[str, Any]) -> Sheet:
        """A sheet of the present network.

        Raises:
            ValueError: its runs are of another one.
        """
        terms = self.terms()
        sheet = open_sheet(path, self.fields, **terms, **facts)
        for name, value in terms.items():
            if sheet.facts.get(name) != value:
                raise ValueError(f"{path} is of another {name}, {sheet.facts.get(name)!r:.80}")
        return sheet

    def choose_rates(
        self, cell: Cell, ways: Iterable[str], sheet: Sheet, fill: Callable[..., None] | None = None
    ) -> dict[str, float] | None:
        """The rates that a sheet's runs chose for ways, after `fill` ran what lacks, or None."""
        chosen: dict[str, float] = {}
        for name in dict.fromkeys(name for way in ways for name in self.ways[way].rates):
            others = tuple(chosen[other] for other in self.ways[name].rates[:-1])
            search = RateSearch(name, cell.place, others)
            while missing := search.missing(sheet.scores):
                if fill is None:
                    return None
                fill(missing)
            chosen[name] = search.choose(sheet.scores)
        return chosen

    def trials(
        self, cell: Cell, ways: Iterable[str], rates: Mapping[str, float]
    ) -> dict[tuple[int, str, int], list[Trial]]:
        """The runs of a draw, a way and a column, a draw after the other."""
        return {
            (draw, way, at): [
                self._trial(way, column, rates, change, draw if spec.every_draw else cell.draws[0])
                for change in cell.changes
            ]
            for draw in cell.draws
            for way in ways
            if way not in cell.without
            for spec in [self.ways[way]]
            for at, column in enumerate(self.columns)
        }

    def _trial(
        self, way: str, column: Column, rates: Mapping[str, float], change: str, draw: int
    ) -> Trial:
        if way in column.curved:
            return Trial(way + CURVED, (0.0,), change, draw)
        spec = self.ways[way]
        chosen = spec.fixed or tuple(rates[name] for name in spec.rates) or (1.0,)
        return Trial(spec.run or way, chosen, change, draw)

    def read(self, results: Path) -> list[CellReport]:
        """The cells that can be shown.

        Raises:
            ValueError: a file is damaged.
        """
        reports = [report for cell in self.cells if (report := self._read_cell(results, cell))]
        for at in range(len(self.columns)):
            for pairs in (False, True):
                keys = [
                    (report.leads[at], way)
                    for report in reports
                    for way in report.leads[at]
                    if bool(self.ways[way].alone) == pairs
                ]
                adjusted = holm([leads[way].interval.p or 0.0 for leads, way in keys])
                for (leads, way), p in zip(keys, adjusted, strict=True):
                    leads[way] = leads[way]._replace(p_all=p)
        return reports

    def _read_cell(self, results: Path, cell: Cell) -> CellReport | None:
        sheet = read_sheet(path := self.sheet_path(results, cell.file), self.fields)
        rates = read_sheet(self.sheet_path(results, cell.rates_file, sheet.facts), self.fields)
        trials: dict[tuple[int, str, int], list[Trial]] = {}
        for stage in self.stages:
            if (chosen := self.choose_rates(cell, stage, rates)) is not None:
                trials |= self.trials(cell, stage, chosen)
        runs = {
            key: [sheet.runs[str(trial)] for trial in own]
            for key, own in trials.items()
            if all(str(trial) in sheet.runs for trial in own)
        }
        columns = range(len(self.columns))

        def has_all(way: str, draw: int) -> bool:
            return way in cell.without or all((draw, way, at) in runs for at in columns)

        draws = [draw for draw in cell.draws if all(has_all(w, draw) for w in self.stages[0])]
        if len(draws) < min(LEAST_SEEDS, len(cell.draws)):
            return None
        ways = [w for w in self.ways if all(w not in cell.without and has_all(w, d) for d in draws)]
        with content_errors(path):
            correct = [
                {
                    way: torch.stack([self._correct(trials[k], runs[k]) for k in keys])
                    for way in ways
                    for keys in [[(draw, way, at) for draw in draws]]
                }
                for at in columns
            ]
        return CellReport(
            cell,
            draws,
            sheet.facts,
            {way: trials[draws[0], way, 0][0].rates_text for way in ways},
            {w: [run for d in draws for at in columns for run in runs[d, w, at]] for w in ways},
            correct,
            [self._leads(column) for column in correct],
        )

    def _correct(self, trials: Sequence[Trial], runs: Sequence[Mapping[str, Any]]) -> Tensor:
        """What a run says of each image of a draw, (images)."""
        packed = self.answers == "correct"
        parts = [(unpack_correct if packed else torch.tensor)(run[self.answers]) for run in runs]
        places = [self.positions(t, len(part)) for t, part in zip(trials, parts, strict=True)]
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _leads(self, correct: Mapping[str, Tensor]) -> dict[str, Lead]:
        """The leads of a column, adjusted for those over baselines, and for those of pairs."""
        ours = self.stages[0][0]
        trained = [correct[way].float().mean() for way in correct if self.ways[way].rates]
        if self.floor and max(trained) <= correct[self.floor].float().mean():
            return {}
        pairs = {w: (w, alone) for w in correct if (alone := self.ways[w].alone)}
        baselines = {w: (ours, w) for w in correct if w != ours and w not in pairs}
        leads: dict[str, Lead] = {}
        for family in (baselines, pairs):
            found = {
                way: lead_of(correct[a], correct[b], self.unit.scale)
                for way, (a, b) in family.items()
            }
            adjusted = holm([lead.p or 0.0 for lead in found.values()])
            leads |= {w: Lead(found[w], p) for w, p in zip(found, adjusted, strict=True)}
        return leads


def lead_of(ours: Tensor, theirs: Tensor, scale: float = 100.0) -> Interval:
    """The difference of two ways, times `scale`, of entries (draws, images).

    Over draws and images, crossed; with fewer than three draws over images.
    """
    change = scale * (ours.float() - theirs.float())
    if len(change) >= LEAST_SEEDS:
        return by_seed_and_image(change)
    return by_image(change.mean(0).tolist())
