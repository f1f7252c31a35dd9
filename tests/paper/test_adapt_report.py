"""The map as text and picture: leads, adjusted p-values and which cells can be shown."""

from dataclasses import replace

import pytest
import torch
from neural_similarity_paper.studies.adapt_runs import Sheet, cell_path, rates_path, read_sheet

from neural_similarity.lab import cli
from neural_similarity.lab.train import pack_correct
from neural_similarity.lab.train.statistics import by_seed_and_image, holm
from neural_similarity_paper.studies.adapt_map import (
    FIXED_RATES,
    MAP_WAYS,
    RATE_CHANGES,
    RATE_DRAWS,
    MapRun,
    cell_trials,
    rate_trials,
)
from neural_similarity_paper.studies.adapt_report import (
    map_to_markdown,
    read_cell,
    read_map,
    read_map_rates,
)

IMAGES = 200
SHARES = {"full": 0.8, "all": 0.7, "nothing": 0.3}
"""Of images that are right; 0.6 for the other ways."""


def write_rates(results, best=0.01):
    scores = {}
    for way in MAP_WAYS:
        if way not in FIXED_RATES:
            for rate in (0.003, 0.01, 0.03):
                for change in RATE_CHANGES:
                    for draw in RATE_DRAWS:
                        trial = MapRun(way, rate, change, draw)
                        scores[str(trial)] = {"accuracy": 1 - abs(rate - best), "trained": 7}
    sheet = Sheet(rates_path(results, 10), {"labels": 10}, scores)
    run = {"accuracy": 1 - abs(0.003 - best), "trained": 7}
    sheet.add(MapRun("full", 0.003, "rotation-20", 11), run)


def write_cell(results, draws=(1, 2, 3, 4), rate=0.01, shares=SHARES):
    """Runs of ways that are right on images drawn at random, in their shares."""
    random = torch.Generator().manual_seed(0)
    rates = dict.fromkeys(MAP_WAYS, rate)
    sheet = Sheet(cell_path(results, "rotation-30", 10), {"labels": 10, "statistics": "new"})
    for trial in cell_trials("rotation-30", rates):
        if trial.draw in draws:
            right = torch.rand(IMAGES, generator=random) < shares.get(trial.way, 0.6)
            trained = 0 if trial.way in ("nothing", "statistics", "undone") else 7
            run = {"accuracy": 0.6, "trained": trained, "correct": pack_correct(right)}
            sheet.add(trial, run)
    return sheet


@pytest.fixture
def results(tmp_path):
    (tmp_path / "adapt-map").mkdir()
    write_rates(tmp_path)
    return tmp_path


def test_leads_are_crossed_intervals_adjusted_for_the_baselines(results):
    write_cell(results)
    cell = read_cell(results, "rotation-30", 10)
    assert cell.correct["full"].shape == cell.correct["nothing"].shape == (4, IMAGES)
    for ours, leads in cell.leads.items():
        assert set(leads.over) == set(MAP_WAYS) - {"full", "full-default"}
        changes = 100 * (cell.correct[ours].double() - cell.correct["all"].double())
        assert leads.over["all"] == by_seed_and_image(changes) == leads.least
        assert list(leads.adjusted.values()) == holm([lead.p for lead in leads.over.values()])
        assert leads.best_baseline == "all"
    assert [leads.ahead for leads in cell.leads.values()] == [True, False]
    page = map_to_markdown(read_map(results), picture="map.png")
    assert "1 of 36 cells have run" in page
    assert "in 1 of them, and with its rate by curvature in 0." in page
    assert "| static full M | 7 | 0.01 |" in page
    assert "| as it is | 0 |  |" in page
    assert "scores:" not in page


def test_rows_that_were_scored_in_another_precision_are_marked(results):
    """Older runs do not name it: they were scored in that of training."""
    sheet = write_cell(results)
    for key, run in sheet.runs.items():
        if key.startswith("oft ") or (key.startswith("full ") and key.endswith("1")):
            run["score_precision"] = "fp32"
    sheet.write()
    page = map_to_markdown(read_map(results)).splitlines()
    told = {"diag-OFT": " (scores: fp32) |", "static full M |": " (scores: bf16 and fp32) |"}
    for label, mark in told.items():
        (row,) = (line for line in page if line.startswith(f"| {label}"))
        assert mark in row
    assert sum("scores:" in line for line in page) == 2


def test_a_lead_by_chance_is_none(results):
    write_cell(results, shares={"full": 0.61})
    cell = read_cell(results, "rotation-30", 10)
    assert not cell.leads["full"].ahead
    assert "in 0 of them" in map_to_markdown([cell])


def test_cells_of_two_draws_or_of_rates_that_were_not_chosen_are_not_shown(results):
    write_cell(results, draws=(1, 2))
    assert read_map(results) == []
    write_cell(results, rate=0.03)
    assert read_map(results) == []
    write_cell(results)
    assert len(read_map(results)) == 1
    rates = read_sheet(rates_path(results, 10))
    del rates.runs["oft 0.003 blur-1.5 11"]  # As where the choice was stopped.
    rates.write()
    assert read_map(results) == []


def test_rates_of_m_are_shown_once_all_have_run(results):
    """M's own rate, 50 and 40 %, is 0.5 and then 1.5 points below the best of the others."""
    sheet = write_cell(results, draws=(1, 2, 3, 4, 5))
    correct = {"full-default": 0.5, 0.003: 0.505, 0.01: 0.3}
    for key, run in sheet.runs.items():
        if key.startswith("full-default"):
            run["accuracy"] = correct["full-default"] - (0.1 if key.endswith("5") else -0.025)
    assert read_map_rates(results) == []
    for trial in rate_trials("rotation-30"):
        if trial.rate:
            score = correct.get(trial.rate, 0.2)
            sheet.add(trial, {"accuracy": score, "trained": 7, "correct": ""})
    (cell,) = read_map_rates(results)
    assert cell.accuracies == pytest.approx({3e-4: 20, 1e-3: 20, 3e-3: 50.5, 0.01: 30, 0.03: 20})
    assert (cell.by_curvature, cell.lowest) == pytest.approx((50, 40))
    assert cell.lost == pytest.approx(0.5)
    page = map_to_markdown([], [cell, replace(cell, by_curvature=49.0)])
    assert "within 1 point of the best in 1 of 2 cells" in page
    row = "| turned by 30°, 10 labels | 20.00 | 20.00 | 50.50 | 30.00 | 20.00 |"
    assert f"{row} 50.00 | 40.00 | 0.50 |" in page


def test_the_command_writes_text_and_picture(results, capsys):
    write_cell(results)
    out = results / "map.md"
    assert cli.main(["table", "adapt-map", "--results", str(results), "--out", str(out)]) == 0
    assert out.with_suffix(".png").stat().st_size > 1_000
    assert "![M's lead over the best baseline](map.png)" in out.read_text("utf-8")
    assert cli.main(["table", "adapt-map", "--results", str(results / "none")]) == 0
    assert "0 of 36 cells have run" in capsys.readouterr().out
    assert cli.main(["table", "adapt-map", "--out", "map.txt"]) == 2
