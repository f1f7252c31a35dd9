"""Pages of the studies of adaptation are what their records say."""

import math
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest
from neural_similarity_paper.studies.adapt_runs import cell_path, read_sheet

from neural_similarity_paper.cli.studies import OTHER_STUDIES
from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.studies.adapt_continual import CONTINUAL
from neural_similarity_paper.studies.adapt_map import CHANGES, RATES_OF_M, MapRun
from neural_similarity_paper.studies.adapt_report import (
    NEAR,
    OURS,
    OURS_UNTUNED,
    UNDONE_LABEL,
    map_to_markdown,
    read_map,
    read_map_rates,
)
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN, KNOWN_CHANGES, STREAM
from neural_similarity_paper.tables.markdown import interval_text
from neural_similarity_paper.tables.verdicts import LEVEL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/evidence/results-adaptation.md").read_text("utf-8")
SECTION = " ".join(PAGE.partition("## Beyond the map")[2].split())


def test_the_map_is_what_the_command_writes():
    cells, rates = read_map(ROOT / "results"), read_map_rates(ROOT / "results")
    text = (ROOT / "docs/evidence/table-adapt-map.md").read_text("utf-8")
    assert text == map_to_markdown(cells, rates, "table-adapt-map.png")
    rows = [table_row(cell, cell.leads[OURS].best_baseline) for cell in cells]
    assert "\n".join(rows) in PAGE
    ahead, own = (sum(cell.leads[ours].ahead for cell in cells) for ours in (OURS, OURS_UNTUNED))
    assert f"| `nsim reproduce adapt-map --data data` | {36 - len(cells)} of 36 cells |" in PAGE
    told = f"{len(cells)} of 36 cells have run; M is ahead of every way in {ahead}"
    assert f"{told}, with its rate by curvature in {own}." in PAGE


def table_row(cell, best):
    leads = " | ".join(interval_text(cell.leads[ours].least) for ours in (OURS, OURS_UNTUNED))
    return (
        f"| {CHANGES[cell.change]}, {cell.labels} labels | {accuracy(cell, OURS)} | "
        f"{accuracy(cell, OURS_UNTUNED)} | {baseline_label(best)}, {accuracy(cell, best)} | "
        f"{leads} |"
    )


def accuracy(cell, way):
    return f"{100 * cell.correct[way].double().mean():.2f}"


def baseline_label(way):
    return WAYS[way][0] if way in WAYS else UNDONE_LABEL


def test_what_the_page_says_of_ways_that_train():
    ahead = {}
    cells = read_map(ROOT / "results")
    for cell in cells:
        leads = cell.leads[OURS_UNTUNED]
        trained = {way: lead for way, lead in leads.over.items() if cell.trained[way]}
        best = min(trained, key=lambda way: trained[way].mean)
        if trained[best].mean > 0 and leads.adjusted[best] < LEVEL:
            ahead[cell.change] = cell, best, trained[best], leads.adjusted[best]
    ((cell, best, lead, adjusted),) = ahead.values()
    assert (cell.change, cell.labels, best) == ("rotation-30", 10, "all")
    text = " ".join(PAGE.split())
    told = f"the best of them, by {interval_text(lead)} points (p {adjusted:.3f} after adjustment)"
    assert f"{told}, with {cell.trained[OURS_UNTUNED]:,} numbers for {cell.trained[best]:,}" in text
    assert f"In no other of the {len(cells)} cells is M ahead of all that train." in text
    assert cell.leads[OURS_UNTUNED].best_baseline == "undone"


def test_what_the_page_says_of_rates():
    rates = read_map_rates(ROOT / "results")
    text = " ".join(PAGE.partition("## The map of changes")[2].split())
    near = sum(cell.lost <= NEAR for cell in rates)
    assert f"within one point of the best of five rates in {near} of {len(rates)} cells" in text
    few = [cell.lost <= NEAR for cell in rates if cell.labels == 5]
    assert f"{sum(few)} of {len(few)} at 5 labels among them" in text
    worst = max(rates, key=lambda cell: cell.lost)
    told = f"at most {worst.lost:.2f}, {CHANGES[worst.change]}, {worst.labels} labels"
    assert told in text
    assert f"on average {fmean(cell.lost for cell in rates):.2f} points" in text
    fixed = {
        rate: [max(cell.accuracies.values()) - cell.accuracies[rate] for cell in rates]
        for rate in RATES_OF_M
    }
    best = min(fixed, key=lambda rate: fmean(fixed[rate]))
    lost = fixed[best]
    assert f"one rate for all cells, {best:g}, {fmean(lost):.2f} and {max(lost):.2f}" in text
    own = [
        run
        for cell in rates
        for name, run in runs_of_cell(cell).items()
        if name.startswith(OURS_UNTUNED)
    ]
    assert all(run["finite"] for run in own)
    low, high = (find(run["lr"] for run in own) for find in (min, max))
    former = fixed[0.003]
    close = sum(points <= NEAR for points in former)
    told = f"0.003, is within one point in {close} cells and loses {fmean(former):.2f} on average"
    assert told in text
    assert f"It lay between {low:g} and {high:g}" in text


def runs_of_cell(cell):
    return read_sheet(cell_path(ROOT / "results", cell.change, cell.labels)).runs


def runs_of(study):
    return read_sheet(study.path(ROOT / "results")).runs


def percent(run):
    return f"{100 * run['accuracy']:.2f}"


@pytest.mark.parametrize("study", OTHER_STUDIES, ids=lambda study: study.name)
def test_tables_are_what_the_command_writes(study):
    text = (ROOT / f"docs/evidence/table-{study.name}.md").read_text("utf-8")
    assert text == study.to_markdown(ROOT / "results")
    (count,) = re.findall(r"(\d+ of \d+) comparisons have run", text)
    assert f"{study.name}`, {count} comparisons" in SECTION
    assert f"nsim reproduce {study.name} --data data" in SECTION


def test_what_the_page_says_of_known_changes():
    runs = runs_of(KNOWN_CHANGES)
    found = {
        (change, way): runs[str(MapRun(way, 1.0, change, 0))]
        for change in KNOWN
        for way in KNOWN_CHANGES.labels
    }
    full, undone, plain = (found["rotation-90", way] for way in ("full", "undone", "nothing"))
    assert f"is at {percent(full)} % at 90°, beside {percent(undone)} % for images" in SECTION
    assert f"and {percent(plain)} % for the network as it is" in SECTION
    behind = [
        100 * (found[change, "nothing"]["accuracy"] - found[change, "full"]["accuracy"])
        for change in KNOWN
        if change != "rotation-90"
    ]
    assert f"it is {min(behind):.0f} to {max(behind):.0f} points behind the network" in SECTION
    better = {c for c in KNOWN if found[c, "undone"]["accuracy"] > found[c, "nothing"]["accuracy"]}
    assert better == {"rotation-30", "rotation-45", "rotation-90", "zoom-1.33"}


def test_what_the_page_says_of_streams():
    runs = runs_of(STREAM)
    told = re.findall(r"At 30°, drawn at random, batches of 200: (.*?)\.\s", SECTION)
    cell = STREAM.cells[0]
    scores = {key: run["accuracy"] for key, run in runs.items()}
    trials = {trial.way: trial for trial in cell.trials(scores)}
    found = {
        one.label: [scores[str(trial)] for trial in one.trials(scores)] for one in STREAM.cells
    }
    mixed = [(m, norm) for label, (m, norm, _) in found.items() if "i.i.d." in label]
    ahead = sum(norm > m for m, norm in mixed)
    assert f"ahead of M** in {ahead} of {len(mixed)} streams without an order" in SECTION
    ordered = [score for label, three in found.items() if "by class" in label for score in three]
    assert f"all three fail, below {math.ceil(100 * max(ordered))} %" in SECTION
    assert cell.label == "turned by 30°, i.i.d., batches of 200"
    order = ("statistics", "norm", "full")
    names = ("statistics alone", "batch normalisation by entropy", "M by entropy")
    assert told == [
        ", ".join(
            f"{name} {percent(runs[str(trials[way])])} %"
            for way, name in zip(order, names, strict=True)
        )
    ]


def test_what_the_page_says_of_tasks():
    """Means over tasks and orders, and M's scatter between orders."""
    runs, orders = runs_of(CONTINUAL), {}
    (cell,) = CONTINUAL.cells
    trials = cell.trials({key: run["accuracy"] for key, run in runs.items()})
    rates = {trial.way: trial.rate for trial in trials}
    for way in rates:
        orders[way] = [
            100 * fmean(runs[str(t)]["accuracy"] for t in trials if (t.way, t.draw) == (way, draw))
            for draw in cell.draws
        ]
    names = {
        "norm-statistics": "batch normalisation",
        "residual": "TSA",
        "ssf": "SSF",
        "head": "the probe",
        "full": "M",
        "piggyback": "Piggyback",
    }
    ranked = sorted(orders, key=lambda way: fmean(orders[way]), reverse=True)
    told = ", ".join(f"{names[way]} {fmean(orders[way]):.1f}" for way in ranked)
    assert f"Means over five orders, in percent: {told}." in SECTION
    scatter = {way: stdev(orders[way]) for way in ("full", "head")}
    text = "Between orders M scatters by {full:.1f} points, the probe by {head:.1f}"
    assert text.format(**scatter) in SECTION
    assert "the probe's is {head:g}, M's {full:g}.".format(**rates) in SECTION
    firsts = [runs[str(MapRun(way, rates[way], "task-0", 1))] for way in ("full", "piggyback")]
    m, mask = (
        float(CONTINUAL.size[1](way, run["trained"]).replace(",", "")) / 1000
        for way, run in zip(("full", "piggyback"), firsts, strict=True)
    )
    assert f"{m:.1f} kB; one of Piggyback's masks {mask:.0f} kB" in SECTION
