"""Studies of adaptation as text and picture: accuracies, and M's leads."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from textwrap import fill

from neural_similarity.lab.train.plots import write_picture
from neural_similarity_paper.statistics import mean_and_deviation
from neural_similarity_paper.studies import STUDY_ENTRIES
from neural_similarity_paper.studies.adapt_study import ACCURACY, CellReport, Study
from neural_similarity_paper.tables.markdown import (
    deviation_text,
    interval_text,
    markdown_rows,
    p_value_text,
)
from neural_similarity_paper.tables.verdicts import LEVEL

STATISTICS = {"new": ", statistics of the new images", "backbone": ", statistics of the backbone"}
"""What a cell normalises by, where that was chosen."""
SHADES = 5
"""Points of lead at which the picture's colours end."""


def study_to_markdown(study: Study, results: Path, picture: str | None = None) -> str:
    """What has run of a study, as Markdown.

    Raises:
        ValueError: a file is damaged.
    """
    parts = [f"# {study.title}"]
    if picture:
        parts.append(f"![Lead of M by change of the images]({picture})")
    texts, measure = STUDY_ENTRIES["texts"], study.measure
    notes = texts["leads"].format(unit=measure.unit) + texts["precision"] * (measure is ACCURACY)
    reports = study.read(results)
    counts = f"{len(reports)} of {len(study.cells)} cells have run."
    head = ["", "method", study.size[0], "learning rate"]
    for title in study.columns:
        title = f" ({title})" if title else ""
        head += [f"{study.measure.title}{title}", f"lead of M{title}", "p, cell", "p, all cells"]
    rows = [_way_cells(study, report, way) for report in reports for way in report.runs]
    table = [_summary(study, reports), markdown_rows(head, *rows)] if rows else []
    return "\n\n".join([*parts, notes, counts, study.note, *table]) + "\n"


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


def _way_cells(study: Study, report: CellReport, way: str) -> list[str]:
    runs, rate = report.runs[way], report.rates[way]
    trained = runs[0]["trained"]
    rate = {"0": "default"}.get(rate, rate) if trained else ""
    kept = STATISTICS.get(report.facts.get("statistics", ""), "")
    cells = [report.cell.label + kept, study.ways[way].label, study.size[1](way, trained), rate]
    for correct, leads in zip(report.correct, report.leads, strict=True):
        means = (study.measure.scale * correct[way].double().mean(1)).tolist()
        cells.append(deviation_text(*mean_and_deviation(means)))
        if lead := leads.get(way):
            cells += [interval_text(lead.interval), *map(p_value_text, (lead.p, lead.p_all))]
        else:
            cells += [""] * 3
    return cells


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

    A row is a cell, a column a comparison. The file is a PNG.
    """
    from matplotlib.figure import Figure

    reports = [report for report in study.read(results) if report.leads[0]]
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
