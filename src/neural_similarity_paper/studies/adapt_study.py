"""Studies of adaptation: cells of (change, labels, way, search), their runs, sheets and reports."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.train import unpack_correct
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.statistics import LEAST_SEEDS, by_image, by_seed_and_image, holm
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.trials import (
    TRAINED,
    ReportLine,
    SearchPlace,
    Sheet,
    Trial,
    choose_rate,
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
    """Ways whose chosen rates it takes, in the order of `Trial.rates`; none where nothing trains.
    Its own name comes last where its rate is searched."""
    alone: str = ""
    """The same way without M, over which M's gain is shown."""
    every_draw: bool = True
    """Whether its answers depend on the draw."""


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


class ScoreKind(NamedTuple):
    """What runs say of each image, and how it is shown.

    Attributes:
        title, unit: of the column of means, and of leads.
        scale: factor on an image's entry.
        answers: the field of a run that has the entries: packed booleans, or numbers.
        fields: types of what the table shows of a run.
    """

    title: str
    unit: str
    scale: float
    answers: str
    fields: Mapping[str, Any]


ACCURACY = ScoreKind("accuracy, %", "points", 100.0, "correct", TRAINED)


class Lead(NamedTuple):
    """A difference, with p-values adjusted within the cell and over all cells."""

    interval: Interval
    p: float = 1.0
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
    leads: list[dict[str, Lead]]


@dataclass(frozen=True)
class Study:
    """Cells, most telling ones first, and how their runs are made and shown.

    Attributes:
        stages: ways, M first, in the order in which they run in all cells; a cell is shown once
            it has those of the first stage.
        run_trial: trains and scores a trial, given `data`, the folder of the data sets, `held_out`,
            whether held-out images stand for test images, and a cell's labels and statistics; what
            a sheet keeps of it.
        terms: what a cell's sheets must say, such as the digest of its network.
        begin: completes the facts of a cell's sheet.
        columns: rates of a table by title: the chosen ones, but by curvature for these ways.
        positions: where a run's images stand among those of its draw; by default in their order.
        size: title and text of what a way costs, from the number of trained parameters.
        floor: a way without training; a cell where none that trains is above it ranks nothing.
    """

    name: str
    title: str
    note: str
    ways: Mapping[str, Way]
    stages: tuple[tuple[str, ...], ...]
    cells: tuple[Cell, ...]
    run_trial: Callable[..., dict[str, Any]]
    terms: Callable[[Cell, Path], dict[str, Any]] = lambda *_: {}
    begin: Callable[[Sheet, Cell, Path], None] = lambda *_: None
    columns: Mapping[str, Collection[str]] = field(default_factory=lambda: {"": ()})
    folder: str = ""
    positions: Callable[[Trial, int], Tensor] = lambda _, count: torch.arange(count)
    size: tuple[str, Callable[[str, int], str]] = ("trained", lambda _, trained: f"{trained:,}")
    measure: ScoreKind = ACCURACY
    floor: str = ""

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
        terms, fields = self.terms(cell, data), self.measure.fields
        sheet = open_sheet(self.sheet_path(results, cell.file), fields, **terms, **cell.facts)
        self.begin(sheet, cell, data)
        shared = {k: v for k, v in sheet.facts.items() if k in ("labels", "statistics")}
        path = self.sheet_path(results, cell.rates_file, shared)
        rates = open_sheet(path, fields, **terms, **shared)
        run = partial(self.run_trial, data=data, **shared)

        def run_held_out(trial: Trial) -> dict[str, Any]:
            facts = run(trial, held_out=True)
            return {k: v for k, v in facts.items() if k != self.measure.answers}

        chosen = self.choose_rates(cell, stage, lambda t: rates.run(t, run_held_out, report))
        for trial in chain.from_iterable(self.trials(cell, stage, chosen).values()):
            sheet.run(trial, partial(run, held_out=False), report)

    def choose_rates(
        self, cell: Cell, ways: Iterable[str], score: Callable[[Trial], float]
    ) -> dict[str, float]:
        """The rates of ways, by the scores of trials on held-out images."""
        chosen: dict[str, float] = {}
        for name in dict.fromkeys(name for way in ways for name in self.ways[way].rates):
            others = tuple(chosen[other] for other in self.ways[name].rates[:-1])
            chosen[name] = choose_rate(name, cell.place, others, score)
        return chosen

    def trials(
        self, cell: Cell, ways: Iterable[str], rates: Mapping[str, float]
    ) -> dict[tuple[int, str, int], list[Trial]]:
        """The runs of a draw, a way and a column, a draw after the other."""
        made = {}
        ways = [way for way in ways if way not in cell.without]
        for draw, way, (at, curved) in product(cell.draws, ways, enumerate(self.columns.values())):
            spec = self.ways[way]
            name, chosen = way, tuple(rates[part] for part in spec.rates) or (1.0,)
            if way in curved:
                name, chosen = way + CURVED, (0.0,)
            drawn = draw if spec.every_draw else cell.draws[0]
            made[draw, way, at] = [Trial(name, chosen, change, drawn) for change in cell.changes]
        return made

    def read(self, results: Path) -> list[CellReport]:
        """The cells that can be shown.

        Raises:
            ValueError: a file is damaged.
        """
        reports = [report for cell in self.cells if (report := self._read_cell(results, cell))]
        places = [
            (leads, way, (at, bool(self.ways[way].alone), report.cell.name))
            for report in reports
            for at, leads in enumerate(report.leads)
            for way in leads
        ]
        values = [leads[way].interval.p or 0.0 for leads, way, _ in places]
        in_cell = holm(values, [family for *_, family in places])
        over_all = holm(values, [family[:2] for *_, family in places])
        for (leads, way, _), p, p_all in zip(places, in_cell, over_all, strict=True):
            leads[way] = leads[way]._replace(p=p, p_all=p_all)
        return reports

    def _read_cell(self, results: Path, cell: Cell) -> CellReport | None:
        fields, columns = self.measure.fields, range(len(self.columns))
        sheet = read_sheet(path := self.sheet_path(results, cell.file), fields)
        rates = read_sheet(self.sheet_path(results, cell.rates_file, sheet.facts), fields)
        trials: dict[tuple[int, str, int], list[Trial]] = {}
        for stage in self.stages:
            with suppress(KeyError):  # Runs that choose its rates are missing.
                trials |= self.trials(cell, stage, self.choose_rates(cell, stage, rates.score))
        runs = {
            key: [sheet.runs[str(trial)] for trial in own]
            for key, own in trials.items()
            if all(str(trial) in sheet.runs for trial in own)
        }
        first = [way for way in self.stages[0] if way not in cell.without]
        draws = [d for d in cell.draws if all((d, w, at) in runs for w in first for at in columns)]
        if len(draws) < min(LEAST_SEEDS, len(cell.draws)):
            return None
        ways = [w for w in self.ways if all((d, w, at) in runs for d in draws for at in columns)]
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
        answers = self.measure.answers
        unpack = unpack_correct if answers == "correct" else torch.tensor
        parts = [unpack(run[answers]) for run in runs]
        places = [self.positions(t, len(part)) for t, part in zip(trials, parts, strict=True)]
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _leads(self, correct: Mapping[str, Tensor]) -> dict[str, Lead]:
        """The leads of a column, not adjusted yet."""
        ours, scale = self.stages[0][0], self.measure.scale
        trained = [correct[way].float().mean() for way in correct if self.ways[way].rates]
        if self.floor and max(trained) <= correct[self.floor].float().mean():
            return {}
        pairs = {
            w: (w, a) if (a := self.ways[w].alone) else (ours, w) for w in correct if w != ours
        }
        return {w: Lead(lead_of(correct[a], correct[b], scale)) for w, (a, b) in pairs.items()}


def lead_of(ours: Tensor, theirs: Tensor, scale: float = 100.0) -> Interval:
    """The difference of two ways, times `scale`, of entries (draws, images).

    Over draws and images, crossed; with fewer than three draws over images.
    """
    change = scale * (ours.float() - theirs.float())
    if len(change) >= LEAST_SEEDS:
        return by_seed_and_image(change)
    return by_image(change.mean(0).tolist())


def study_fields(entry: str) -> dict[str, Any]:
    """The fields of `Study` that an entry of the file has."""
    content = STUDY_ENTRIES[entry]
    ways = {way: _read_way(way, **fields) for way, fields in content["ways"].items()}
    first, names = content.get("first_stage"), tuple(ways)
    trained = tuple(way for way, spec in ways.items() if spec.rates)
    columns = content.get("columns", {"": []}).items()
    return {
        "name": entry,
        "ways": ways,
        "stages": (names[:first], names[first:]) if first else (names,),
        "columns": {title: trained if own == ["*"] else tuple(own) for title, own in columns},
        **{key: content[key] for key in ("title", "note", "folder", "floor") if key in content},
    }


def _read_way(way: str, label: str = "", rates: list[str] | None = None, **fields: Any) -> Way:
    fields = {key: fields[key] for key in fields if key in Way._fields}  # Others: `restore`.
    return Way(label or WAYS[way][0], (way,) if rates is None else tuple(rates), **fields)
