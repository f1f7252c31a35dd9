"""Studies of adaptation beside the map: cells of runs in one file, and a table of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_similarity.lab.errors import content_errors
from neural_similarity.lab.train.scoring import unpack_correct
from neural_similarity_paper.studies.adapt_map import (
    MapRun,
    RateSearch,
    chosen_rate,
    missing_trials,
)
from neural_similarity_paper.studies.adapt_report import (
    accuracy_text,
    lead_cells,
    leads_over_baselines,
    scored_text,
)
from neural_similarity_paper.studies.adapt_runs import (
    ReportLine,
    fill_search,
    fill_sheet,
    filling_alone,
    open_sheet,
    read_sheet,
)
from neural_similarity_paper.tables.markdown import markdown_rows

LEADS_NOTE = (
    "Leads are those of M in points, with 95 % intervals over test images (and draws, crossed, "
    "from three draws on) and p-values adjusted by Holm within a comparison. ± is the standard "
    "deviation over draws. Runs train in bfloat16, and are scored in it where nothing else is "
    "named."
)


@dataclass(frozen=True)
class StudyCell:
    """Ways that are compared on the same images."""

    label: str
    changes: tuple[str, ...]
    """What a way runs on, for every draw."""
    draws: tuple[int, ...]
    searches: Mapping[str, RateSearch | None]
    """How the rate of every way is chosen, M's first; None where there is none."""

    def trials(self, accuracies: Mapping[str, float]) -> list[MapRun]:
        """The runs, a draw after the other; none before their rates are chosen."""
        searches = [(way, search) for way, search in self.searches.items() if search]
        if any(missing_trials(way, accuracies, search) for way, search in searches):
            return []
        rates = {way: chosen_rate(way, accuracies, search) for way, search in searches}
        return [
            MapRun(way, rates.get(way, 1.0), change, draw)
            for draw in self.draws
            for change in self.changes
            for way in self.searches
        ]


@dataclass(frozen=True)
class Study:
    """Cells, most telling ones first, and how their runs are made and shown.

    Attributes:
        run_trial: trains and scores a run, given `data`, the folder of the data sets, and
            `held_out`, whether training images stand for test images; what a sheet keeps of it.
        positions: where a run's images stand among those of its draw; by default in their order.
        size: title and text of what a way costs, from the number of trained parameters.
    """

    name: str
    title: str
    note: str
    labels: Mapping[str, str]
    cells: tuple[StudyCell, ...]
    run_trial: Callable[..., dict[str, Any]]
    positions: Callable[[MapRun, int], Tensor] = lambda _, count: torch.arange(count)
    size: tuple[str, Callable[[str, int], str]] = ("trained", lambda _, trained: f"{trained:,}")

    def path(self, results: Path) -> Path:
        """The file of all runs."""
        return results / self.name / "runs.json"

    def run(self, data: Path, results: Path, report: ReportLine) -> None:
        """Choose rates and run the cells that lack runs."""
        path = self.path(results)
        run_held_out, run_test = (
            partial(self.run_trial, data=data, held_out=held_out) for held_out in (True, False)
        )
        with filling_alone(path.parent):
            sheet = open_sheet(path)
            for cell in self.cells:
                for way, search in cell.searches.items():
                    if search:
                        fill_search(sheet, [way], run_held_out, report, search)
                fill_sheet(sheet, cell.trials(sheet.accuracies), run_test, report)

    def to_markdown(self, results: Path) -> str:
        """The draws of every cell that have run, as a table.

        Raises:
            ValueError: the file is damaged.
        """
        path = self.path(results)
        runs = read_sheet(path).runs if path.exists() else {}
        rows, ran = [], 0
        for cell in self.cells:
            trials = cell.trials({key: run["accuracy"] for key, run in runs.items()})
            lacking = {trial.draw for trial in trials if str(trial) not in runs}
            finished = [trial for trial in trials if trial.draw not in lacking]
            ran += len({trial.draw for trial in finished})
            with content_errors(path):
                rows += self._cell_rows(cell.label, finished, runs) if finished else []
        total = sum(len(cell.draws) for cell in self.cells)
        head = ("", "way", self.size[0], "rate", "accuracy, %", "lead of M", "p, adjusted")
        counts = f"{ran} of {total} comparisons have run."
        table = [markdown_rows(head, *rows)] if rows else []
        return "\n\n".join([f"# {self.title}", counts, self.note, LEADS_NOTE, *table]) + "\n"

    def _cell_rows(
        self, label: str, trials: list[MapRun], runs: Mapping[str, dict[str, Any]]
    ) -> list[tuple[str, ...]]:
        by_way = {way: [t for t in trials if t.way == way] for way in self.labels}
        correct = {way: self._correct_images(own, runs) for way, own in by_way.items()}
        leads, rows = leads_over_baselines(correct), []
        for way, (first, *_) in by_way.items():
            trained = runs[str(first)]["trained"]
            front = (label, self.labels[way], self.size[1](way, trained))
            rate = f"{first.rate:g}" if trained else ""
            accuracy = accuracy_text(correct[way]) + scored_text(runs[str(t)] for t in by_way[way])
            rows.append((*front, rate, accuracy, *lead_cells(way, leads)))
        return rows

    def _correct_images(self, trials: list[MapRun], runs: Mapping[str, dict[str, Any]]) -> Tensor:
        """Whether images were right, boolean (draws, images)."""
        draws: dict[int, list[Tensor]] = {}
        for trial in trials:
            correct = unpack_correct(runs[str(trial)]["correct"])
            both = torch.stack([self.positions(trial, len(correct)), correct.long()])
            draws.setdefault(trial.draw, []).append(both)
        joined = (torch.cat(own, dim=1) for own in draws.values())
        return torch.stack([correct[places.argsort()] for places, correct in joined]).bool()
