"""Writing a report as a page of Markdown: columns as data, notes on how to read it."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.progress import format_clock
from neural_similarity.nn import SphereNet
from neural_similarity_paper.tables.kinds import Record
from neural_similarity_paper.tables.markdown import (
    CLEAR,
    deviation_text,
    interval_text,
    markdown_rows,
    p_value_text,
    signed_number,
)
from neural_similarity_paper.tables.records import commits_of, kind_of
from neural_similarity_paper.tables.report import Difference, PanelReport, Report, RowReport
from neural_similarity_paper.tables.rows import Row
from neural_similarity_paper.tables.verdicts import (
    LEAST_BUDGET,
    LEVEL,
    TOO_SHORT,
    Comparison,
    Verdict,
    judge_comparisons,
)

TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BETTER = {"error": "lower is better", "accuracy": "higher is better"}


def panel_notes(report: PanelReport) -> str:
    """How to read the panel, and what its runs ran on."""
    records = report.all_records
    if not records:
        return ""
    dirty = ", ".join(_run_name(record) for record in records if record.code["dirty"])
    text = TEXTS["panel"].format(
        better=BETTER[report.panel.metric].capitalize(),
        images=len(records[0].correct),
        machines="; ".join(sorted(set(map(_machine_text, records)))),
        commits=", ".join(sorted(set(map(_code_commits, records)))),
    )
    changed = TEXTS["changed_code"].format(runs=dirty) if dirty else ""
    # Rows that use a choice that was made by the test error they report.
    recipes = [RECIPES[each.row.recipe] for each in report.lines if each.records]
    predictors = [getattr(recipe.similarity, "predictor", 0) for recipe in recipes]
    chosen = TEXTS["chosen"] if SphereNet(batch_norm=True) in predictors else ""
    return text + _other_precisions(records) + changed + _scatter_note(report) + chosen


def _run_name(record: Record) -> str:
    return f"`{record.name}` seed {record.seed}"


def _scatter_note(report: PanelReport) -> str:
    """The scatter of seeds over all rows, and how far to trust the intervals."""
    differences = [each for line in report.lines for each in line.differences]
    count = sum(len(each.intervals) for each in differences)
    if not count or report.scatter is None:
        return TEXTS["intervals"].format(count=count) if count else ""
    lines = [(each.row.label, each.baseline_difference.by_pooled_seeds) for each in report.lines]
    listed = "; ".join(f"{label} {interval_text(pooled)}" for label, pooled in lines if pooled)
    deviation, freedom = report.scatter
    return TEXTS["scatter"].format(deviation=deviation, freedom=freedom, listed=listed, count=count)


def _other_precisions(records: Sequence[Record]) -> str:
    """The runs that were trained or scored in another precision than most of the panel."""
    groups: dict[str, list[str]] = {}
    for record in records:
        groups.setdefault(record.precision, []).append(_run_name(record))
    usual = max(groups, key=lambda precision: len(groups[precision]))
    return "".join(
        TEXTS["precision"].format(precision=precision, usual=usual, runs=", ".join(runs))
        for precision, runs in groups.items()
        if precision != usual
    )


def _machine_text(record: Record) -> str:
    environment = record.environment
    device = environment["device"]
    place = environment["cpu"] if device == "cpu" else device
    threads = environment["threads"]
    where = f"{place}, {threads} thread{'s' if threads > 1 else ''}"
    return f"{where}, {record.precision}, torch {environment['torch']}"


def _code_commits(record: Record) -> str:
    """The commits of a run from its environment; older records name only the first."""
    code, commit = record.code, record.code.get("commit") or ""
    began = commit[:12] or f"version {code['version']}"
    others = [c[:12] for c in commits_of(record.environment) if c != commit]
    text = " then ".join((began, *others))
    return f"{text} with local changes" if code["dirty"] else text


def to_markdown(report: Report, picture: str | None = None) -> str:
    """The report as Markdown; the file `picture` is shown at the end."""
    mixed, verdicts = report.table.mixed, judge_differences(report)
    schedule = f" ({report.schedule_text})" if report.schedule_text else ""
    parts = [f"# {report.table.title}{schedule}"]
    for panel in report.panels:
        form = _method_columns if mixed else _network_columns
        columns = form(report, panel, verdicts)
        rows = ([cell(line) for cell in columns.values()] for line in panel.lines)
        table = markdown_rows(list(columns), *rows)
        parts += [f"## {panel.panel.title}", table, "" if mixed else panel_notes(panel)]
    if mixed:
        parts.append(
            TEXTS["methods"].format(note=report.table.note, clear=CLEAR, count=len(verdicts))
        )
    else:
        parts += _network_notes(report, verdicts)
    if picture:
        parts.append(f"![{report.table.title}, {report.schedule_text}]({picture})")
    return "\n\n".join(part for part in parts if part) + "\n"


Verdicts = Mapping[Difference, Verdict]
Columns = dict[str, Callable[[RowReport], str]]
"""What a column shows of a row, by heading."""


def _method_columns(report: Report, _: PanelReport, verdicts: Verdicts) -> Columns:
    """The columns of few-shot methods, whose rows say themselves what they are of."""
    columns: Columns = {
        "method": lambda line: line.row.label,
        "recipe": lambda line: f"`{line.row.recipe}`",
        "shots": lambda line: f"{line.row.shots}",
        "paper": partial(_paper_cell, None),
        "ours": _our_accuracy,
    }
    for at, heading in enumerate(report.table.compared):
        columns[heading] = partial(_method_difference, at, verdicts)
    facts = kind_of(RECIPES[report.table.all_rows[0].recipe]).columns
    return columns | {name: partial(_of_records, cell) for name, cell in facts.items()}


def _of_records(cell: Callable[[Sequence[Record]], str], line: RowReport) -> str:
    return cell(line.records) if line.records else ""


def _our_accuracy(line: RowReport) -> str:
    if not line.records:
        return "not run"
    return f"{line.accuracy_interval.mean:.2f} ± {line.accuracy_interval.half_width:.2f}"


def _method_difference(at: int, verdicts: Verdicts, line: RowReport) -> str:
    """A difference over the common seeds, and their number if some lack."""
    difference = line.differences[at]
    interval, verdict = difference.by_image, verdicts.get(difference)
    if interval is None or verdict is None or verdict.images is None:
        return ""
    clear = verdict.images.holm < LEVEL and verdict.status != TOO_SHORT
    text = f"{signed_number(interval.mean)} ± {interval.half_width:.2f}" + f" {CLEAR}" * clear
    common = len(difference.common)
    return text if common == len(line.records) else f"{text} (n = {common})"


def _network_columns(report: Report, panel: PanelReport, verdicts: Verdicts) -> Columns:
    """The columns of networks, which are compared with the first."""
    metric, baseline = panel.panel.metric, panel.panel.rows[0]
    columns: Columns = {
        "network": lambda line: line.row.label,
        "recipe": lambda line: f"`{line.row.recipe}`",
        f"paper, {metric} %": partial(_paper_cell, baseline),
        f"ours, {metric} %": our_result,
        "n": lambda line: f"{len(line.records)}",
    }
    for at, way in enumerate(("seed", "image", "both")):
        heading = f"to {baseline.label}, by {way}"
        columns[heading] = lambda line, at=at: _difference_cells(baseline, line)[at]
    columns |= {
        "p over seeds": lambda line: p_text(verdicts.get(line.baseline_difference), "seeds"),
        "p by image": lambda line: p_text(verdicts.get(line.baseline_difference), "images"),
        "parameters": partial(_summary_cell, "parameters", 1e6, "{:.2f} M"),
        "MACs": partial(_summary_cell, "macs", 1e6, "{:,.0f} M"),
        "time": partial(
            _of_records, lambda records: format_clock(fmean(r.summary["seconds"] for r in records))
        ),
    }
    if any("trained" in record.summary for record in panel.all_records):
        columns["trained"] = partial(_summary_cell, "trained", 1, "{:,.0f}")
        columns["file, kB"] = partial(_summary_cell, "bytes", 1e3, "{:,.1f}")
    return columns | ({"step": _step_time} if report.costs else {})


def _network_notes(report: Report, verdicts: Verdicts) -> Iterator[str]:
    """How to read the whole table."""
    yield report.table.note
    if verdicts:
        short = TEXTS["short"] if report.budget < LEAST_BUDGET else ""
        yield TEXTS["verdicts"].format(count=len(verdicts)) + short
    if costs := report.costs:
        yield TEXTS["steps"].format(baseline=costs.baseline, source=costs.source)
    if report.others:
        yield TEXTS["budgets"].format(others=", ".join(report.others))


def our_result(line: RowReport) -> str:
    """Mean and deviation of our runs, or why there are none."""
    if not line.records:
        return "not run"
    top5 = "" if line.top5_error is None else f", top-5 {deviation_text(*line.top5_error)}"
    count = sum(record.failed for record in line.records)  # These are not in the mean.
    lost = f" ({count} of {len(line.records)} failed)" if count else ""
    return deviation_text(*line.value) + top5 + lost


def judge_differences(report: Report) -> dict[Difference, Verdict]:
    """The verdicts of the table's differences; they are one family of Holm's adjustment."""
    budgets = {
        each: line.records[0].budget
        for panel in report.panels
        for line in panel.lines
        for each in line.differences
        if each.by_image is not None
    }
    comparisons = [Comparison(difference=d, sign=1, budget=b) for d, b in budgets.items()]
    return dict(zip(budgets, judge_comparisons(comparisons), strict=True))


def p_text(verdict: Verdict | None, over: Literal["seeds", "images"]) -> str:
    """A p-value adjusted by Holm; "" where there is none."""
    adjusted = None if verdict is None else getattr(verdict, over)
    return p_value_text(adjusted and adjusted.holm)


def _summary_cell(fact: str, unit: float, form: str, line: RowReport) -> str:
    """A number of a summary, such as its parameters; "" where there is none."""
    number = line.records[0].summary.get(fact) if line.records else None
    return "" if number is None else form.format(number / unit)


def _step_time(line: RowReport) -> str:
    if line.step is None:
        return ""
    if line.step.low == line.step.high:
        return f"{line.step.mean:g}"
    return f"{line.step.mean:.2f} [{line.step.low:.2f}, {line.step.high:.2f}]"


def _paper_cell(baseline: Row | None, line: RowReport) -> str:
    """The paper's number and its difference to the paper's baseline."""
    row = line.row
    if row.paper is None:
        return ""
    half_width = "" if row.half_width is None else f" ± {row.half_width:.2f}"
    change = paper_change(row, baseline)
    difference = "" if change is None else f" ({signed_number(change)})"
    top5 = "" if row.top5 is None else f", top-5 {row.top5:.2f}"
    return f"{row.paper:.2f}{half_width}{difference}{top5}"


def paper_change(row: Row, baseline: Row | None) -> float | None:
    """The paper's difference between a row and its baseline; None where it has none."""
    if baseline in (None, row) or row.paper is None or baseline.paper is None:
        return None
    return row.paper - baseline.paper


def _difference_cells(baseline: Row, line: RowReport) -> tuple[str, str, str]:
    if line.row == baseline or not line.records:
        return "", "", ""
    difference = line.baseline_difference
    if difference.by_image is None:
        return "no common seed", "no common seed", ""
    seeds, by_image = len(difference.common), interval_text(difference.by_image)
    if difference.by_seed is None or difference.by_both is None:
        return "", f"{by_image}, by image only ({seeds} seed{'s' if seeds > 1 else ''})", ""
    return interval_text(difference.by_seed), by_image, interval_text(difference.by_both)
