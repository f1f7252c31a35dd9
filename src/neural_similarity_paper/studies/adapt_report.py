"""Studies of adaptation as text and picture: accuracies, and M's leads.

Sheets of an older protocol are shown below those of the new one, until the new cells have run.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from pathlib import Path
from textwrap import fill
from typing import Any

from neural_similarity.lab.train.plots import write_picture
from neural_similarity_paper.statistics import mean_and_deviation
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.adapt_continual import CONTINUAL, TASK_CELL, task_bytes
from neural_similarity_paper.studies.adapt_map import MAP, MAP_CELLS
from neural_similarity_paper.studies.adapt_study import ACCURACY, CellReport, Study, study_fields
from neural_similarity_paper.studies.adapt_unlabelled import STREAM, STREAM_CELLS
from neural_similarity_paper.tables.markdown import (
    deviation_text,
    interval_text,
    markdown_rows,
    p_value_text,
)
from neural_similarity_paper.tables.verdicts import LEVEL

ONE_SHEET = {"file": "runs", "rates_file": "runs"}
OLDER_MAP = Study(**study_fields("older-map"), cells=MAP_CELLS)
OLDER_RATES = Study(**study_fields("older-rates"), cells=MAP_CELLS)
OLDER_CONTINUAL = Study(
    **study_fields("older-continual"),
    cells=(TASK_CELL._replace(**ONE_SHEET),),
    size=("bytes a task", lambda way, n: task_bytes(way, n, way.endswith("statistics"))),
    positions=CONTINUAL.positions,
)
OLDER_STREAM = Study(
    **study_fields("older-stream"), cells=tuple(cell._replace(**ONE_SHEET) for cell in STREAM_CELLS)
)
OLDER = {
    MAP.name: (OLDER_MAP, OLDER_RATES),
    CONTINUAL.name: (OLDER_CONTINUAL,),
    STREAM.name: (OLDER_STREAM,),
}
STATISTICS = {"new": ", statistics of the new images", "backbone": ", statistics of the backbone"}
"""What a cell normalises by, where that was chosen."""
SHADES = 5
"""Points of lead at which the picture's colours end."""
TRAINED_IN = "bf16"
"""The precision in which the runs of all studies but those of restoration train."""


def study_to_markdown(study: Study, results: Path, picture: str | None = None) -> str:
    """What has run of a study and of older ones, as Markdown.

    Raises:
        ValueError: a file is damaged.
    """
    parts = [f"# {study.title}"]
    if picture:
        parts.append(f"![Lead of M by change of the images]({picture})")
    texts, measure = STUDY_ENTRIES["texts"], study.measure
    notes = texts["leads"].format(unit=measure.unit) + texts["precision"] * (measure is ACCURACY)
    parts += [notes, *_study_parts(study, study.read(results))]
    for older in OLDER.get(study.name, ()):
        parts += [f"## {older.title}", *_study_parts(older, older.read(results))]
    return "\n\n".join(parts) + "\n"


def _study_parts(study: Study, reports: Sequence[CellReport]) -> list[str]:
    precisions = {
        p for report in reports for runs in report.runs.values() for p in _scored_in(runs)
    }
    usual = precisions.pop() if len(precisions) == 1 else TRAINED_IN
    counts = f"{len(reports)} of {len(study.cells)} cells have run."
    counts += f" All scores are in {usual}." * (usual != TRAINED_IN)
    head = ["", "method", study.size[0], "learning rate"]
    for title in study.columns:
        title = f" ({title})" if title else ""
        head += [f"{study.measure.title}{title}", f"lead of M{title}", "p, cell", "p, all cells"]
    rows = [_way_cells(study, report, way, usual) for report in reports for way in report.runs]
    table = [_summary(study, reports), markdown_rows(head, *rows)] if rows else []
    return [counts, study.note, *table]


def _summary(study: Study, reports: Sequence[CellReport]) -> str:
    """In how many cells M is ahead of all, and a method with M of the method without."""
    lines = []
    for at, title in enumerate(study.columns):
        title = f"Learning rates ({title}): " if title else ""
        ahead = sum(is_ahead(study, report, at) for report in reports)
        parts = [f"M is ahead of every other method in {ahead} of {len(reports)} cells"]
        for way, spec in study.ways.items():
            leads = [r.leads[at][way] for r in reports if spec.alone and way in r.leads[at]]
            clear = [lead.interval.mean > 0 for lead in leads if lead.p_all < LEVEL]
            if leads:
                parts.append(
                    f"{spec.label}, compared with the same without M, is ahead in {sum(clear)} and "
                    f"behind in {len(clear) - sum(clear)} of {len(leads)} (p over all cells)"
                )
        lines.append(f"- {title}{'; '.join(parts)}.")
    return "\n".join(lines)


def _way_cells(study: Study, report: CellReport, way: str, usual: str) -> list[str]:
    runs, rate = report.runs[way], report.rates[way]
    trained = runs[0]["trained"]
    scored = "" if (own := _scored_in(runs)) == [usual] else f" (scores: {' and '.join(own)})"
    rate = {"0": "default"}.get(rate, rate) if trained else ""
    kept = STATISTICS.get(report.facts.get("statistics", ""), "")
    cells = [report.cell.label + kept, study.ways[way].label, study.size[1](way, trained), rate]
    for correct, leads in zip(report.correct, report.leads, strict=True):
        means = (study.measure.scale * correct[way].double().mean(1)).tolist()
        cells.append(deviation_text(*mean_and_deviation(means)) + scored)
        if lead := leads.get(way):
            cells += [interval_text(lead.interval), *map(p_value_text, (lead.p, lead.p_all))]
        else:
            cells += [""] * 3
    return cells


def _scored_in(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The precisions of scores; older runs, which name none, were scored in that of training."""
    return sorted({run.get("score_precision", TRAINED_IN) for run in runs})


def best_baseline(study: Study, report: CellReport, column: int = 0) -> str:
    """The other method without M that has the highest accuracy."""
    leads = report.leads[column]
    return min(
        (way for way in leads if not study.ways[way].alone),
        key=lambda way: leads[way].interval.mean,
    )


def is_ahead(study: Study, report: CellReport, column: int = 0) -> bool:
    """Whether M is ahead of the best other method, and this survives the adjustment in the cell."""
    if not report.leads[column]:
        return False
    lead = report.leads[column][best_baseline(study, report, column)]
    return lead.interval.mean > 0 and lead.p < LEVEL


def draw_study(study: Study, results: Path, path: Path) -> None:
    """Draw leads: of M over the best other method, and of methods with M; a star where adjusted.

    Older cells are drawn where there are no new ones. A row is a cell, a column a comparison. The
    file is a PNG.
    """
    from matplotlib.figure import Figure

    studies = [(each, each.read(results)) for each in (study, *OLDER.get(study.name, ()))]
    study, reports = next((pair for pair in studies if pair[1]), studies[0])
    reports = [report for report in reports if report.leads[0]]
    pairs = [way for way, spec in study.ways.items() if spec.alone]
    names = ["M − best other", *(study.ways[way].label for way in pairs)]
    figure = Figure(figsize=(3 + 1.8 * len(names), 1.5 + 0.45 * len(reports)), layout="constrained")
    axes = figure.subplots()
    values = [[nan] * len(names) for _ in reports] or [[nan]]
    for row, report in enumerate(reports):
        for at, way in enumerate((best := best_baseline(study, report), *pairs)):
            if not (lead := report.leads[0].get(way)):
                continue
            values[row][at] = mean = lead.interval.mean
            text = f"{mean:+.1f}{'*' if lead.p < LEVEL else ''}"
            text += f"\n{fill(study.ways[best].label, 26)}" * (at == 0)
            color = "white" if abs(mean) > 0.6 * SHADES else "black"
            axes.text(at, row, text, ha="center", va="center", fontsize=7, color=color)
    axes.set_facecolor("lightgray")
    image = axes.imshow(values, cmap="RdBu", vmin=-SHADES, vmax=SHADES, aspect="auto")
    axes.set_yticks(range(len(reports)), [report.cell.label for report in reports])
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_title("Points; * adjusted p < 0.05", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.6)
    write_picture(figure, path)
