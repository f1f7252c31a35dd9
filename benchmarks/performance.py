"""docs/evidence/performance.md, from what `python -m benchmarks` saved and performance.md here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.networks import KNOWN, texts_of
from benchmarks.report import (
    SIZES,
    Report,
    Row,
    by_group,
    comparison_tables,
    milliseconds,
    read_report,
)
from benchmarks.targets import TARGETS
from neural_similarity_paper.tables.costs import is_current
from neural_similarity_paper.tables.markdown import markdown_rows

TEXT = Path(__file__).with_suffix(".md")
"""The title, then what is said under each heading, caveats of old reports among them."""
HEADINGS = {
    "operators": "Operators",
    "widths": "Widths of a ResNet",
    "layers": "Grouped, depthwise and narrow layers",
    "training": "Training",
    "networks": "Whole networks",
    "price": "The price of M",
    "exported": "Exported networks",
    "rivals": "Layers of other authors",
    "recipes": "Networks of the tables",
    "inference": "Inference",
}
"""The sections in their order; `rivals` is a record that is shown still."""
BOLD = "Best to worst of all sizes that were measured. **Bold**: the limit is not reached."


def summary(folders: Sequence[Path], command: str) -> str:
    """The page for several processors, a folder each: what each of them found of the targets."""
    machines = {
        next(iter(reports.values())).machine.partition(", torch")[0]: reports  # without versions
        for reports in map(_reports, folders)
    }
    lines = []
    for target in TARGETS:
        pairs = [target.line(reports.get(target.bench))[2:] for reports in machines.values()]
        cells = [f"**{f}**" if f and verdict != "reached" else f or verdict for f, verdict in pairs]
        lines.append((target.text, target.limit, *cells))
    title, sections = _texts()
    places = " and ".join(f"`{folder.as_posix()}/`" for folder in folders)
    rows = markdown_rows(("target", "limit", *machines), *lines)
    parts = [title, "## Targets", BOLD, rows, sections["Targets"]]
    parts += ["## Method", sections["Method"].format(command=command, folders=places)]
    return "\n\n".join(parts) + "\n"


def _texts() -> tuple[str, dict[str, str]]:
    """The title, and what is said under each heading."""
    title, *notes = TEXT.read_text(encoding="utf-8").strip().split("\n\n## ")
    return title, dict(note.split("\n\n", 1) for note in notes)


def page(results: Path, command: str) -> str:
    """The page for the reports of one processor."""
    reports, (title, sections) = _reports(results), _texts()
    parts = [
        title,
        "## Targets",
        *(f"**{name}: {r.noise}.**" for name, r in reports.items() if r.noise),
    ]
    lines = [target.line(reports.get(target.bench)) for target in TARGETS]
    parts.append(markdown_rows(("target", "limit", "found, best to worst", ""), *lines))
    for name, report in reports.items():
        heading, left = HEADINGS[name], current_report(report)
        parts += [f"## {heading}", _origin(report), sections[heading]]
        parts += [f"**{report.noise}**"] if report.noise else []
        parts += _note_left_out(report, left)
        parts += [sections[caveat] for caveat in _caveats(left)]
        parts += _pivots(left) if name in PIVOTED else comparison_tables(left)
    folder = f"`{results.as_posix()}/`"
    parts += ["## Method", sections["Method"].format(command=command, folders=folder)]
    return "\n\n".join(parts) + "\n"


def _reports(results: Path) -> dict[str, Report]:
    """What the benchmarks saved in a folder, by name.

    Raises:
        ValueError: that is nothing, or a report is damaged.
    """
    files = {name: results / f"{name}.json" for name in HEADINGS}
    reports = {name: read_report(file) for name, file in files.items() if file.exists()}
    if not reports:
        raise ValueError(
            f"`results` must hold what a benchmark saved, such as {files['operators'].name}, got "
            f"{results} without any"
        )
    return reports


def current_report(report: Report) -> Report:
    """A report without the rows of recipes or similarities that have other settings by now.

    Without its baseline a ratio says nothing: where that has changed, no row is left. Reports that
    do not tell the settings stay as they are.
    """
    facts = report.environment
    measured = facts.get("recipes") or facts.get("similarities", {})
    now = texts_of(measured.keys() & KNOWN.keys())
    changed = {
        name
        for name, setting in measured.items()
        if now.get(name) != setting and not is_current(name, setting)
    }
    rows = tuple(row for row in report.rows if row.name.partition(",")[0] not in changed)
    lost = any(row.baseline and row not in rows for row in report.rows)
    return replace(report, rows=() if lost else rows)


def _origin(report: Report) -> str:
    """Command, machine, code and how quiet it was."""
    facts = report.environment
    commit = (facts["commit"] or "")[:12] or f"version {facts['neural_similarity']}"
    dirty = " with local changes" if str(facts["commit"]).endswith("-dirty") else ""
    others = "unknown" if report.others is None else f"{report.others:.2f} cores"
    return (
        f"`{facts['command']}` on {report.machine}; code {commit}{dirty}; other "
        f"processes: {others}; baselines' quartiles at most {report.spread:.1%} apart."
    )


def _note_left_out(before: Report, after: Report) -> list[str]:
    """What is no longer what its name says; the picture was drawn when it was."""
    names = dict.fromkeys(f"`{row.name}`" for row in before.rows if row not in after.rows)
    text = (
        "Left out, as these or the one that they are compared with have other settings by now: "
        f"{', '.join(names)}."
    )
    return [text] if names else []


def _caveats(report: Report) -> Iterator[str]:
    """What was otherwise when an old report was made, by the heading of what is said of it."""
    facts = report.environment
    if not facts.get("keeps_memory", report.bench == "recipes"):
        yield "Freed memory"
    if report.bench in ("training", "inference") and "similarities" not in facts:
        yield "Predictors without batch normalisation"
    if report.bench == "recipes" and facts.get("norms") != "torch":
        yield "Norms in C"


PIVOTED = ("operators", "widths")
"""Reports of so many sizes that a table has a column for each."""


def _pivots(report: Report) -> list[str]:
    """Ratios, then memory and the host's time, of every dtype and similarity."""
    parts = []
    for words, rows in by_group(report.rows, without=SIZES).items():
        parts += [f"### {words}", _pivot(rows, _ratios), "Saved bytes a position; peak MiB."]
        parts.append(_pivot(rows, _memory))
        if any("host_seconds" in row.costs for row in rows):
            parts += ["Host, ms.", _pivot(rows, _host)]
    return parts


def _pivot(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A line a name, a column a size."""
    columns = list(by_group(rows).values())
    head = ["", *("{channels}@{size}×{size}, {batch}".format(**own[0].group) for own in columns)]
    names = dict.fromkeys(row.name for row in rows)
    by_name = [{row.name: cell(row) for row in own} for own in columns]
    return markdown_rows(
        head, *([name, *(cells.get(name, "") for cells in by_name)] for name in names)
    )


def _ratios(row: Row) -> str:
    if row.baseline:
        return " / ".join(f"{1e3 * timing.seconds:.3g} ms" for timing in row.times.values())
    return row.problem or " / ".join(f"{timing.ratio:.2f}" for timing in row.times.values())


def _memory(row: Row) -> str:
    saved, peak = row.costs.get("saved_bytes"), row.costs.get("peak_bytes")
    if saved is None:
        return ""
    return f"{saved:,.0f}; " + ("unknown" if peak is None else f"{peak / 2**20:,.1f}")


def _host(row: Row) -> str:
    value = row.costs.get("host_seconds")
    return "" if value is None else milliseconds(value)
