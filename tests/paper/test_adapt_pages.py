"""Pages of the studies of adaptation are what their records say."""

import math
import re
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from neural_similarity_paper.cli.studies import STUDIES
from neural_similarity_paper.studies.adapt_map import CHANGES, MAP
from neural_similarity_paper.studies.adapt_report import (
    OLDER,
    OLDER_CONTINUAL,
    OLDER_MAP,
    OLDER_RATES,
    OLDER_STREAM,
    best_baseline,
    is_ahead,
    study_to_markdown,
)
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN, KNOWN_CHANGES
from neural_similarity_paper.studies.trials import Trial, read_sheet
from neural_similarity_paper.tables.markdown import interval_text
from neural_similarity_paper.tables.verdicts import LEVEL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/evidence/results-adaptation.md").read_text("utf-8")
SECTION = " ".join(PAGE.partition("## Beyond the map")[2].split())


RESULTS = ROOT / "results"
NEAR = 1
"""Points that a rate may be below the best one to be as good."""


@pytest.fixture(scope="module")
def older_map():
    return OLDER_MAP.read(RESULTS)


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_tables_are_what_the_command_writes(study):
    text = (ROOT / f"docs/evidence/table-{study.name}.md").read_text("utf-8")
    picture = f"table-{study.name}.png" if study is MAP else None
    assert text == study_to_markdown(study, RESULTS, picture)
    for each in (study, *OLDER.get(study.name, ())):
        ran, cells = len(each.read(RESULTS)), len(each.cells)
        assert f"{ran} of {cells} cells have run" in text
    assert f"nsim reproduce {study.name} --data data" in PAGE
    missing = len(study.cells) - len(study.read(RESULTS))
    told = f"{missing} of {len(study.cells)} cells" if missing else "nothing"
    assert f"| `nsim reproduce {study.name} --data data` | {told} |" in PAGE


def test_no_record_has_a_rate_that_saw_a_scored_image():
    """Digests of scored images: those of sheets that choose rates are in no cell's."""
    for study in (MAP, *map(STUDIES.get, ("adapt-stream", "adapt-continual"))):
        chosen, shown = set(), set()
        for path in (RESULTS / study.folder).glob("*.json"):
            digests = {run["scored"] for run in read_sheet(path).runs.values()}
            (chosen if "rates" in path.stem else shown).update(digests)
        assert not chosen & shown


def percents(report, at=0):
    """Accuracies of ways over draws and images."""
    return {way: 100 * x.double().mean().item() for way, x in report.correct[at].items()}


def test_what_the_page_says_of_the_older_map(older_map):
    rows = []
    for report in older_map:
        best, scores, own = best_baseline(OLDER_MAP, report), percents(report), percents(report, 1)
        texts = f"{scores['full']:.2f}", f"{own['full']:.2f}", f"{scores[best]:.2f}"
        leads = (interval_text(report.leads[at][best].interval) for at in (0, 1))
        cells = report.cell.label, *texts[:2], f"{OLDER_MAP.ways[best].label}, {texts[2]}", *leads
        rows.append(f"| {' | '.join(cells)} |")
    assert "\n".join(rows) in PAGE
    ahead, own = (sum(is_ahead(OLDER_MAP, cell, at) for cell in older_map) for at in (0, 1))
    told = f"{len(older_map)} of 36 cells have run; M is ahead of every other method in {ahead}"
    assert f"{told}, with its default learning rate in {own}." in PAGE


def test_what_the_page_says_of_ways_that_train(older_map):
    ahead = {}
    for cell in older_map:
        trained = {w: lead for w, lead in cell.leads[1].items() if cell.runs[w][0]["trained"]}
        best = min(trained, key=lambda way: trained[way].interval.mean)
        lead = trained[best]
        if lead.interval.mean > 0 and lead.p < LEVEL:
            ahead[cell.cell.name] = cell, best, lead
    ((cell, best, lead),) = ahead.values()
    assert (cell.cell.name, best) == ("rotation-30-10", "all")
    text = " ".join(PAGE.split())
    told = f"the best of them, by {interval_text(lead.interval)} points (p {lead.p:.3f} after"
    ours, theirs = (cell.runs[way][0]["trained"] for way in ("full", best))
    assert f"{told} adjustment), with {ours:,} parameters instead of {theirs:,}" in text
    assert f"In no other of the {len(older_map)} cells is M ahead of all that train." in text
    assert best_baseline(OLDER_MAP, cell, 1) == "undone"


def test_what_the_page_says_of_rates():
    reports, ways, text = OLDER_RATES.read(RESULTS), [*OLDER_RATES.ways], " ".join(PAGE.split())
    scores = np.array([[percents(report)[way] for way in ways] for report in reports])
    lost = scores[:, 1:].max(1, keepdims=True) - scores  # The first way is the default.
    means, near = lost.mean(0), (lost <= NEAR).sum(0)
    names = [report.cell.name for report in reports]
    assert f"within one point of the best of five rates in {near[0]} of {len(names)} cells" in text
    few = lost[[name.endswith("-5") for name in names], 0] <= NEAR
    assert f"{sum(few)} of {len(few)} at 5 labels among them" in text
    worst = names[lost[:, 0].argmax()].removesuffix("-10")
    assert f"at most {lost[:, 0].max():.2f}, {CHANGES[worst]}, 10 labels" in text
    assert f"on average {means[0]:.2f} points" in text
    fixed = 1 + means[1:].argmin()
    told = f"{ways[fixed]}, loses {means[fixed]:.2f} and {lost[:, fixed].max():.2f}"
    assert f"one learning rate for all cells, {told}" in text
    former = ways.index("0.003")
    told = f"within one point in {near[former]} cells and loses {means[former]:.2f} on average"
    assert f"0.003, is {told}" in text
    runs = [run for report in reports for run in report.runs["curvature"]]
    assert all(run["finite"] for run in runs)
    low, high = (find(run["lr"] for run in runs) for find in (min, max))
    assert f"The default lay between {low:g} and {high:g}" in text


def test_what_the_page_says_of_known_changes():
    runs = read_sheet(KNOWN_CHANGES.sheet_path(RESULTS, KNOWN_CHANGES.cells[0].file)).runs
    score = {
        (change, way): 100 * runs[str(Trial(way, (1.0,), change, 0))]["accuracy"]
        for change in KNOWN
        for way in KNOWN_CHANGES.ways
    }
    full, undone, plain = (score["rotation-90", way] for way in ("full", "undone", "nothing"))
    assert f"is at {full:.2f} % at 90°, compared with {undone:.2f} % for images" in SECTION
    assert f"and {plain:.2f} % for the network without adaptation" in SECTION
    behind = [score[c, "nothing"] - score[c, "full"] for c in KNOWN if c != "rotation-90"]
    assert f"M is {min(behind):.0f} to {max(behind):.0f} points behind the network" in SECTION
    better = {change for change in KNOWN if score[change, "undone"] > score[change, "nothing"]}
    assert better == {"rotation-30", "rotation-45", "rotation-90", "zoom-1.33"}


def test_what_the_page_says_of_streams():
    told = re.findall(r"At 30°, batches of 200: (.*?)\.\s", SECTION)
    reports = OLDER_STREAM.read(RESULTS)
    found = {report.cell.label: [*percents(report).values()] for report in reports}
    mixed = [(m, norm) for label, (m, norm, _) in found.items() if "i.i.d." in label]
    ahead = sum(norm > m for m, norm in mixed)
    assert f"ahead of M** in {ahead} of {len(mixed)} streams in random order" in SECTION
    ordered = [score for label, three in found.items() if "by class" in label for score in three]
    assert f"all three fail, below {math.ceil(max(ordered))} %" in SECTION
    m, norm, statistics = found["rotated by 30°, i.i.d., batches of 200"]
    names = ("statistics alone", "batch normalisation by entropy", "M by entropy")
    scores = zip(names, (statistics, norm, m), strict=True)
    assert told == [", ".join(f"{name} {score:.2f} %" for name, score in scores)]


def test_what_the_page_says_of_tasks():
    """Means over tasks and orders, and M's scatter between orders."""
    (report,) = OLDER_CONTINUAL.read(RESULTS)
    orders = {w: (100 * x.double().mean(1)).tolist() for w, x in report.correct[0].items()}
    ways = ("norm-statistics", "residual", "ssf", "head", "full", "piggyback")
    told = ("batch normalisation", "TSA", "SSF", "the probe", "M", "Piggyback")
    names = dict(zip(ways, told, strict=True))
    ranked = sorted(orders, key=lambda way: fmean(orders[way]), reverse=True)
    told = ", ".join(f"{names[way]} {fmean(orders[way]):.1f}" for way in ranked)
    assert f"Means over five orders, in percent: {told}." in SECTION
    scatter = {way: stdev(orders[way]) for way in ("full", "head")}
    text = "deviation over orders is {full:.1f} points for M and {head:.1f} for the probe"
    assert text.format(**scatter) in SECTION
    assert "{head} for the probe, {full} for M.".format(**report.rates) in SECTION
    m, mask = (
        float(OLDER_CONTINUAL.size[1](way, report.runs[way][0]["trained"]).replace(",", "")) / 1000
        for way in ("full", "piggyback")
    )
    assert f"{m:.1f} kB with M (81 parameters per layer and a classifier), {mask:.0f} kB" in SECTION
