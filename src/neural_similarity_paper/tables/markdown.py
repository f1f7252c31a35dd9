"""Writing a report as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from neural_similarity.lab.data import imagenet
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks import task_of
from neural_similarity.lab.train.progress import format_clock
from neural_similarity.lab.train.record import Record
from neural_similarity.lab.train.statistics import Interval
from neural_similarity_paper.recipes.cifar import PREDICTOR
from neural_similarity_paper.tables.costs import StepCosts
from neural_similarity_paper.tables.records import commits_of
from neural_similarity_paper.tables.report import Difference, PanelReport, Report, RowReport
from neural_similarity_paper.tables.rows import Row
from neural_similarity_paper.tables.verdicts import (
    LEAST_BUDGET,
    LEVEL,
    TOO_SHORT,
    Adjusted,
    Comparison,
    Verdict,
    judge_comparisons,
)

BETTER = {"error": "lower is better", "accuracy": "higher is better"}
MINUS = "−"
CLEAR = "\\*"
"""Marks a difference that is clear of zero."""
IMAGENET_CLASSES = 1_000


def to_markdown(report: Report, picture: str | None = None) -> str:
    """The report as Markdown; the file `picture` is shown at the end."""
    if report.table.mixed:
        return _mixed_table(report)
    parts = [f"# {report.table.title} ({report.schedule_text})"]
    verdicts = judge_differences(report)
    for panel in report.panels:
        parts += [
            f"## {panel.panel.title}",
            _panel_table(panel, report.costs, verdicts),
            _panel_notes(panel),
        ]
    parts.append(report.table.note)
    if verdicts:
        parts.append(_verdict_note(report, verdicts))
    if report.costs:
        parts.append(
            f"Steps are times of an update over that of `{report.costs.baseline}`, measured side "
            f"by side apart from the runs, with a 95 % interval: {report.costs.source}."
        )
    if report.others:
        parts.append(f"Runs at other budgets: {', '.join(report.others)} (`--budget`).")
    if picture:
        parts.append(f"![{report.table.title}, {report.schedule_text}]({picture})")
    return "\n\n".join(part for part in parts if part) + "\n"


def _mixed_table(report: Report) -> str:
    """A table whose rows say themselves what they are of, and how to read it."""
    schedule = f" ({report.schedule_text})" if report.schedule_text else ""
    parts = [f"# {report.table.title}{schedule}"]
    columns = task_of(RECIPES[report.table.all_rows[0].recipe]).COLUMNS
    head = ("method", "recipe", "shots", "paper", "ours", *report.table.compared, *columns)
    verdicts = judge_differences(report)
    for panel in report.panels:
        lines = (_mixed_row(line, columns, verdicts) for line in panel.lines)
        parts += [f"## {panel.panel.title}", markdown_rows(head, *lines)]
    note = (
        f"{report.table.note} {CLEAR}: clear of zero by task after Holm's adjustment for the "
        f"{len(verdicts)} differences of the table; none below an eighth of a schedule is."
    )
    return "\n\n".join([*parts, note]) + "\n"


def _mixed_row(
    line: RowReport,
    columns: Mapping[str, Callable[[Sequence[Record]], str]],
    verdicts: Mapping[Difference, Verdict],
) -> tuple[str, ...]:
    row = line.row
    paper = "" if row.paper is None else f"{row.paper:.2f}"
    if row.half_width is not None:
        paper += f" ± {row.half_width:.2f}"
    front = (row.label, f"`{row.recipe}`", f"{row.shots}", paper)
    if not line.records:
        return (*front, "not run", *("" for _ in (*line.differences, *columns)))
    accuracy = f"{line.accuracy_interval.mean:.2f} ± {line.accuracy_interval.half_width:.2f}"
    differences = (
        _mixed_difference(each, len(line.records), verdicts.get(each)) for each in line.differences
    )
    return (*front, accuracy, *differences, *(cell(line.records) for cell in columns.values()))


def _mixed_difference(difference: Difference, seeds: int, verdict: Verdict | None) -> str:
    """The difference over the common seeds, and their number if some lack."""
    interval = difference.by_image
    if interval is None or verdict is None or verdict.images is None:
        return ""
    clear = verdict.images.holm < LEVEL and verdict.status != TOO_SHORT
    text = f"{signed_number(interval.mean)} ± {interval.half_width:.2f}" + f" {CLEAR}" * clear
    common = len(difference.common)
    return text if common == seeds else f"{text} (n = {common})"


def markdown_rows(head: Sequence[str], *rows: Sequence[str]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def our_result(line: RowReport) -> str:
    """Mean and deviation of our runs, or why there are none."""
    if not line.records:
        return "not run" if line.row.has_recipe else "not run (no recipe)"
    top5 = "" if line.top5_error is None else f", top-5 {deviation_text(*line.top5_error)}"
    lost = failed_text(line.records)
    return deviation_text(line.mean_value, line.value_deviation) + top5 + lost


def failed_text(records: Sequence[Record]) -> str:
    """How many of the runs failed, if any did: these are not in the mean."""
    count = sum(record.failed for record in records)
    return f" ({count} of {len(records)} failed)" if count else ""


def deviation_text(mean: float, deviation: float | None) -> str:
    """A mean and its deviation, where there is one."""
    return f"{two_decimals(mean)}" + ("" if deviation is None else f" ± {deviation:.2f}")


def cost_cells(line: RowReport) -> tuple[str, str, str]:
    """Parameters, MACs of one image and training time."""
    if not line.records:
        return "", "", ""
    summary = line.records[0].summary
    parameters = f"{summary['parameters'] / 1e6:.2f} M"
    return parameters, f"{summary['macs'] / 1e6:,.0f} M", format_clock(line.mean_seconds)


def interval_text(value: Interval) -> str:
    """A difference with its interval."""
    return f"{signed_number(value.mean)} [{signed_number(value.low)}, {signed_number(value.high)}]"


def judge_differences(report: Report) -> dict[Difference, Verdict]:
    """The verdicts of the table's differences; they are one family of Holm's adjustment."""
    found = {
        each: line.records[0].budget
        for panel in report.panels
        for line in panel.lines
        for each in line.differences
        if each.by_image is not None
    }
    comparisons = [Comparison(difference=one, sign=1, budget=share) for one, share in found.items()]
    return dict(zip(found, judge_comparisons(comparisons), strict=True))


def p_text(found: Adjusted | None) -> str:
    """A p-value adjusted by Holm."""
    return "" if found is None else "< 0.001" if found.holm < 1e-3 else f"{found.holm:.3f}"


def _panel_table(
    report: PanelReport, costs: StepCosts | None, verdicts: Mapping[Difference, Verdict]
) -> str:
    metric, baseline = report.panel.metric, report.panel.baseline_row
    head = ("network", "recipe", f"paper, {metric} %", f"ours, {metric} %", "n")
    head += tuple(f"to {baseline.label}, {way}" for way in ("by seed", "by image", "by both"))
    head += ("p over seeds", "p by image", "parameters", "MACs", "time")
    lines = [_line_cells(line, report, verdicts) for line in report.lines]
    if any("trained" in record.summary for record in report.all_records):
        head += ("trained", "file, kB")
        lines = [
            (*cells, *_adapter_cells(line)) for cells, line in zip(lines, report.lines, strict=True)
        ]
    if costs:
        head += ("step",)
        lines = [
            (*cells, _step_time(line)) for cells, line in zip(lines, report.lines, strict=True)
        ]
    return markdown_rows(head, *lines)


def _line_cells(
    line: RowReport, report: PanelReport, verdicts: Mapping[Difference, Verdict]
) -> tuple[str, ...]:
    row, n = line.row, len(line.records)
    verdict = verdicts.get(line.baseline_difference)
    p_values = ("", "") if verdict is None else (p_text(verdict.seeds), p_text(verdict.images))
    parameters, macs, time = cost_cells(line)
    if row.parameters is not None:
        parameters = f"{parameters} (paper {row.parameters:.2f} M)".strip()
    paper = _paper_cell(line, report)
    name = f"`{row.recipe}`"
    return (
        row.label,
        name,
        paper,
        our_result(line),
        str(n),
        *_difference_cells(line, report),
        *p_values,
        parameters,
        macs,
        time,
    )


def _adapter_cells(line: RowReport) -> tuple[str, str]:
    """How many numbers an adaptation trained, and the size of their file."""
    summary = line.records[0].summary if line.records else {}
    if "trained" not in summary:
        return "", ""
    return f"{summary['trained']:,}", f"{summary['bytes'] / 1e3:,.1f}"


def _step_time(line: RowReport) -> str:
    if line.step is None:
        return ""
    if line.step.low == line.step.high:
        return f"{line.step.mean:g}"
    return f"{line.step.mean:.2f} [{line.step.low:.2f}, {line.step.high:.2f}]"


def _paper_cell(line: RowReport, report: PanelReport) -> str:
    """The paper's number and its difference to the paper's baseline."""
    row, baseline = line.row, report.panel.baseline_row
    if row.paper is None:
        return ""
    top5 = "" if row.top5 is None else f", top-5 {row.top5:.2f}"
    change = paper_change(row, baseline)
    return f"{row.paper:.2f}" + ("" if change is None else f" ({signed_number(change)})") + top5


def paper_change(row: Row, baseline: Row) -> float | None:
    """The paper's difference between a row and its baseline; None where it has none."""
    if row == baseline or row.paper is None or baseline.paper is None:
        return None
    return row.paper - baseline.paper


def _difference_cells(line: RowReport, report: PanelReport) -> tuple[str, str, str]:
    if line.row == report.panel.baseline_row or not line.records:
        return "", "", ""
    found = line.baseline_difference
    if found.by_image is None:
        return "no common seed", "no common seed", ""
    seeds, by_image = len(found.common), interval_text(found.by_image)
    if found.by_seed is None or found.by_both is None:
        return "", f"{by_image}, by image alone ({seeds} seed{'s' if seeds > 1 else ''})", ""
    return interval_text(found.by_seed), by_image, interval_text(found.by_both)


def _panel_notes(report: PanelReport) -> str:
    """How to read the panel, and what its runs ran on."""
    if not report.all_records:
        return ""
    images = len(report.all_records[0].correct)
    machines = sorted({_machine_text(record) for record in report.all_records})
    commits = sorted({_code_commits(record) for record in report.all_records})
    return (
        f"{BETTER[report.panel.metric].capitalize()}. ± is the sample standard deviation over n "
        "seeds. Differences are in points to the baseline re-run with the same seeds and budget, "
        "with 95 % intervals: by seed, Student's t over the common seeds' differences, from three "
        f"seeds on; by image, over the {images:,} test images, each averaged over the common "
        "seeds, which says nothing about other seeds; by both, of a mixed model in which seeds and "
        "images are drawn at random. MACs are of one image, static similarities "
        "folded. Time is the training time of a run, with others beside it: no benchmark.\n\n"
        f"Run on {'; '.join(machines)}; code {', '.join(commits)}."
        f"{_other_precisions(report)}{_other_classes(report)}{_changed_code_note(report)}"
        f"{_scatter_note(report)}{_choice_warning(report)}"
    )


def _changed_code_note(report: PanelReport) -> str:
    """The runs of code that differed from its commit."""
    runs = [f"`{each.name}` seed {each.seed}" for each in report.all_records if each.code["dirty"]]
    return f" Code with local changes: {', '.join(runs)}." if runs else ""


def _scatter_note(report: PanelReport) -> str:
    """The scatter of seeds over all rows, and how far to trust the intervals."""
    if not report.interval_count:
        return ""
    count = f"{report.interval_count} intervals."
    if report.pooled_deviation is None:
        return f"\n\n{count}"
    deviation, freedom = report.pooled_deviation
    lines = [(each.row.label, each.baseline_difference.by_pooled_seeds) for each in report.lines]
    listed = "; ".join(f"{label} {interval_text(pooled)}" for label, pooled in lines if pooled)
    return (
        f"\n\nPooled over the rows, seeds of a recipe scatter by σ = {deviation:.3f} points "
        f"({freedom} degrees of freedom). Differences between the means over all seeds of each, "
        f"with intervals by that scatter: {listed}. {count}"
    )


def _verdict_note(report: Report, verdicts: Mapping[Difference, Verdict]) -> str:
    """What the p-values are, and that a short schedule decides nothing."""
    text = (
        f"P-values are adjusted by Holm for the table's {len(verdicts)} differences. That over "
        "seeds is the largest of all intervals of the row, the one by pooled scatter included, and "
        "needs three seeds; that by image is about these trained networks alone."
    )
    if report.budget < LEAST_BUDGET:
        text += " So short a schedule says nothing about differences at its end."
    return text


def _choice_warning(report: PanelReport) -> str:
    """A warning where rows use a choice that was made by the test error they report."""
    rows = [each.row for each in report.lines if each.records]
    if not any(
        getattr(RECIPES[row.recipe].similarity, "predictor", 0) == PREDICTOR for row in rows
    ):
        return ""
    return (
        " The predictor of the dynamic rows (root mean square, batch normalisation) was chosen by "
        "test error on CIFAR-10, and other rows were not tuned so."
    )


def _other_precisions(report: PanelReport) -> str:
    """The runs that were trained or scored in another precision than most of the panel."""
    groups: dict[str, list[str]] = {}
    for record in report.all_records:
        run = f"`{record.name}` seed {record.seed}"
        groups.setdefault(record.precision, []).append(run)
    usual = max(groups, key=lambda precision: len(groups[precision]))
    return "".join(
        f" In {precision} and not {usual}: {', '.join(runs)}."
        for precision, runs in groups.items()
        if precision != usual
    )


def _other_classes(report: PanelReport) -> str:
    """A warning where runs in ImageNet's layout are not on ImageNet."""
    counts = {
        r.data.get("classes") for r in report.all_records if r.recipe.dataset == imagenet.NAME
    }
    others = sorted(str(count) for count in counts - {IMAGENET_CLASSES})
    return f" On {', '.join(others)} classes, not on ImageNet's 1,000." if others else ""


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


def signed_number(number: float) -> str:
    """Two decimals and a sign, with a minus as wide as the plus."""
    rounded = two_decimals(number)
    return f"{rounded:+}".replace("-", MINUS) if rounded else "0.00"


def two_decimals(number: float) -> Decimal:
    """A number rounded as decimal: means of two runs end in a five that binary ones miss."""
    exact = Decimal(repr(round(number, 9)))
    return exact.quantize(Decimal("0.01"), ROUND_HALF_EVEN)
