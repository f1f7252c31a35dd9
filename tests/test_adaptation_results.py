"""docs/results-adaptation.md, README and the tables' pages say what the records do."""

import re
from pathlib import Path

import claims
import pytest

from neural_similarity.lab.paper import TABLES, make_report, to_markdown
from neural_similarity.lab.paper.markdown import our_result

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = (ROOT / "docs/results-adaptation.md").read_text("utf-8")
ADAPTATIONS = {
    "adapt": "Ten hand signs, ResNet-20",
    "adapt-lite0": "Ten hand signs, EfficientNet-Lite0",
    "adapt-flowers": "Twelve flowers, EfficientNet-Lite0",
    "adapt-cifar": "Changed CIFAR-10, ResNet-20",
}
"""Sections of the page by table."""


def report(table):
    return make_report(TABLES[table], budget=1, results=RESULTS)


def test_the_page_has_every_table():
    assert set(ADAPTATIONS) == {name for name in TABLES if name.startswith("adapt")}


@pytest.mark.parametrize("table", ADAPTATIONS)
def test_tables_are_what_the_command_writes(table):
    page = (ROOT / f"docs/table-{table}.md").read_text("utf-8")
    assert page == to_markdown(report(table), f"table-{table}.png")


def rows(table):
    """Of a table on the page: a way, how many numbers it trains, and its mean a panel."""
    panels, found = report(table).panels, {}
    for at, panel in enumerate(panels):
        for line in panel.lines:
            if line.records:
                found.setdefault(line.row.label, {})[at] = line
    for label, lines in found.items():
        trained = next(iter(lines.values())).records[0].summary["trained"]
        cells = [our_result(lines[at]) if at in lines else "" for at in range(len(panels))]
        yield f"| {' | '.join((label, f'{trained:,}', *cells))} |"


@pytest.mark.parametrize(("table", "title"), ADAPTATIONS.items())
def test_every_way_that_has_records_is_told(table, title):
    told = PAGE.partition(f"## {title}")[2].partition("\n## ")[0].splitlines()
    assert [line for line in told if re.match(r"\| .* \| [\d,]+ \|", line)] == list(rows(table))


COMPARISONS = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| (.+) \| (.+) \| (.+) \|$", PAGE, re.M)


def test_comparisons_are_found():
    assert len(COMPARISONS) > 60


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda it: f"{it[0]}>{it[1]}")
def test_comparisons_come_out_as_told(comparison):
    this, beside, told, image, seed = comparison
    status, text = claims._compare(f"{this} > {beside} @ 1")
    assert (told, f"{image} by image, {seed} by seed") == (status, text.partition(" (n")[0])


def lead(this, beside):
    """Whether an adaptation is ahead of another, and by how many points."""
    status, text = claims._compare(f"{this} > {beside} @ 1")
    return status, float(text.partition(" ")[0].replace("−", "-"))


def test_headlines():
    text = (ROOT / "docs/results.md").read_text("utf-8")
    told = " ".join(text.partition("## In short")[2].partition("## Quick start")[0].split())
    status, points = lead("rotation-30-full-statistics", "rotation-30-norm-statistics")
    assert status == "holds"
    assert f"ahead of batch normalisation by {points:.1f} points" in told
    for way in ("all", "lora", "oft", "ssf", "lora-statistics", "oft-statistics"):
        status, points = lead("rotation-30-full-statistics", f"rotation-30-{way}")
        assert points > 0, way
        assert status.startswith("holds"), way
    assert lead("noise-25-full-statistics", "noise-25-norm-statistics")[0] == "unclear"


def test_the_readme_quotes_adaptations():
    readme = (ROOT / "README.md").read_text("utf-8")
    lines = {
        line.row.recipe: our_result(line)
        for table in ("adapt", "adapt-cifar")
        for panel in report(table).panels
        for line in panel.lines
    }
    for group, ways in (
        ("rotation-30", ("full-statistics", "norm-statistics", "all")),
        ("noise-25", ("full-statistics", "norm-statistics", "all")),
        ("signs", ("full", "oft", "all")),
    ):
        assert f"| {'; '.join(lines[f'{group}-{way}'] for way in ways)} % |" in readme
