"""`nsim report`: runs side by side in one self-contained HTML file."""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import tyro

from neural_similarity.files import read_bytes, write_text
from neural_similarity.lab import session
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import parse_options
from neural_similarity.lab.errors import UsageError, content_errors
from neural_similarity.lab.tasks import task_of
from neural_similarity.lab.terminal import escape_controls
from neural_similarity.lab.train import Run
from neural_similarity.lab.train.journal import curve, read_lines
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity.lab.train.recipe import recipe_to_json
from neural_similarity.lab.train.run import ENVIRONMENT, read_facts

PICTURE = re.compile(r"similarities|maps-.+|shapes")
"""Names that `visualize.draw` makes."""
CURVES = ("loss", "accuracy", "validation_loss", "validation_accuracy")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
        padding: 0 1rem; color: #222; background: #fff }}
section {{ overflow-x: auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top;
          border-bottom: 1px solid #ddd }}
img {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
{sections}
</body></html>
"""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `nsim report`."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """Run folders, finished or not."""
    out: Path = Path("report.html")
    """HTML file to write."""


def report(args: Sequence[str]) -> int:
    """Write the page and print its path."""
    description = (
        "Compare runs in one self-contained HTML file.\n\n"
        "example:\n  nsim report runs/quickstart-seed0 runs/quickstart-seed1 --out seeds.html"
    )
    options = parse_options(ReportOptions, args, prog="nsim report", description=description)
    if not options.runs:
        raise UsageError("nsim report needs at least one run folder")
    runs = [session.open_run(path) for path in options.runs]
    write_text(options.out, report_page(runs))
    print_line(str(options.out))
    return 0


def report_page(runs: Sequence[Run]) -> str:
    """The page: results, learning curves, pictures of M, settings, environment."""
    named = {run.path.name: run for run in runs}
    if len(named) < len(runs):
        named = {str(run.path): run for run in runs}
    settings = {name: recipe_to_json(run.recipe) for name, run in named.items()}
    environments = {name: _json_values(run.path / ENVIRONMENT) for name, run in named.items()}
    title = "Settings that differ" if len(named) > 1 else "Settings"
    sections = {
        "Results": _html_table({name: _summary_values(run) for name, run in named.items()}),
        "Learning curves": _draw_curves({name: _logged_points(run) for name, run in named.items()}),
        "Similarities": "".join(_embed_pictures(name, run) for name, run in named.items()),
        title: _html_table(_differing_settings(settings) if len(named) > 1 else settings),
        "Environment": _html_table(environments),
    }
    parts = (f"<section><h2>{name}</h2>\n{text}</section>" for name, text in sections.items())
    return PAGE.format(title=_escape_html(", ".join(named)), sections="\n".join(parts))


def _summary_values(run: Run) -> dict[str, Any]:
    """The single values of the summary, and further scores."""
    if not run.summary.exists():
        steps = [line["step"] for line in read_lines(run.metrics)]
        return {"steps": f"{max(steps, default=0)} of {run.recipe.steps}, not finished"}
    summary = read_facts(run.summary)
    values = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
    return values | task_of(run.recipe).scored_texts(run)


def _json_values(path: Path) -> dict[str, str]:
    """The values in a JSON file, as a table shows them."""
    with content_errors(path):  # Deeply nested ones cannot be written.
        return {name: str(value) for name, value in read_facts(path).items()}


def _logged_points(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Of every quantity that a run logged, the steps and the values."""
    with content_errors(run.metrics):
        records = read_lines(run.metrics)
        return {key: points for key in CURVES if (points := curve(records, key))}


def _differing_settings(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fields whose values differ between runs; None for a run without the field."""
    rows = list(settings.values())
    fields = [n for n in _all_keys(rows) if any(row.get(n) != rows[0].get(n) for row in rows)]
    return {name: {n: row.get(n) for n in fields} for name, row in settings.items()}


def _all_keys(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _html_table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for every key, a column for every run."""
    keys = _all_keys(columns.values())
    if not keys:
        return "<p>None.</p>\n"
    lines = [_html_row("th", ["", *columns])]
    lines += [
        _html_row("td", [key, *(row.get(key, "") for row in columns.values())]) for key in keys
    ]
    return "<table>\n" + "\n".join(lines) + "\n</table>\n"


def _html_row(tag: str, cells: Iterable[Any]) -> str:
    texts = (f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells)
    return "<tr>" + "".join(f"<{tag}>{_escape_html(text)}</{tag}>" for text in texts) + "</tr>"


def _escape_html(text: str) -> str:
    return escape(escape_controls(text))


def _draw_curves(logs: Mapping[str, Mapping[str, list[tuple[float, float]]]]) -> str:
    """A picture for every quantity that a run logged, a line a run."""
    from matplotlib.figure import Figure

    shown = [key for key in CURVES if any(key in log for log in logs.values())]
    if not shown:
        return "<p>No run has logged anything yet.</p>\n"
    figure = Figure(figsize=(5 * len(shown), 3.6), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        curves = [
            Curve(points, name, ".-" if len(points) < 30 else "-")
            for name, log in logs.items()
            if (points := log.get(key))
        ]
        draw_curves(axes, curves, xlabel="step", title=key.replace("_", " "))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return _embed_image(file.getvalue(), "learning curves")


def _embed_pictures(name: str, run: Run) -> str:
    """The pictures of M in a run's folder; others there are a user's."""
    files = [f for f in sorted(run.plots.glob("*.png")) if PICTURE.fullmatch(f.stem)]
    images = "".join(_embed_image(read_bytes(file, within=run.path), file.stem) for file in files)
    return f"<h3>{_escape_html(name)}</h3>\n{images or '<p>It has none.</p>'}\n"


def _embed_image(png: bytes, text: str) -> str:
    """A picture at no less than half of its size, at which its text is legible."""
    data, width = base64.b64encode(png).decode(), int.from_bytes(png[16:20])  # of its header
    style = f"min-width: {width // 2}px"
    return f'<img alt="{_escape_html(text)}" style="{style}" src="data:image/png;base64,{data}">\n'
