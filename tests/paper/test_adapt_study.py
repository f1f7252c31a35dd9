"""Studies of adaptation: rates are chosen off the cells, runs go on, tables follow from images."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from neural_similarity.lab import cli
from neural_similarity.lab.train import pack_correct
from neural_similarity_paper.cli.studies import STUDIES
from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.statistics import by_image, by_seed_and_image
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    FIRST_RATES,
    MAP,
    RATE_CHANGES,
    trial_recipe,
)
from neural_similarity_paper.studies.adapt_report import draw_study, study_to_markdown
from neural_similarity_paper.studies.adapt_study import Cell, Study, Way
from neural_similarity_paper.studies.adapt_unlabelled import STREAM
from neural_similarity_paper.studies.trials import (
    GRID,
    SearchPlace,
    Sheet,
    Trial,
    choose_rate,
    read_sheet,
)
from neural_similarity_paper.tables.markdown import interval_text, p_value_text

IMAGES = 200
PLACE = SearchPlace(("other",), (11,), FIRST_RATES)
TINY_WAYS = {
    "full": Way("M", ("full",)),
    "norm": Way("BN", ("norm",)),
    "full-norm": Way("M and BN", ("full", "norm"), "norm"),
    "as it is": Way("as it is", every_draw=False),
    "late": Way("late", ("norm", "late")),
}


def choose(accuracy):
    """The rate that is chosen where trials have these accuracies, and the trials that ran."""
    scores = {}

    def score(trial):
        return scores.setdefault(str(trial), accuracy(trial))

    place = SearchPlace(RATE_CHANGES, (11, 12, 13), FIRST_RATES)
    return choose_rate("full", place, (), score), scores


@pytest.mark.parametrize("best", GRID)
def test_the_best_rate_is_found_inside_the_grid_or_at_its_end(best):
    at = GRID.index(best)
    rate, scores = choose(lambda trial: -abs(GRID.index(trial.rates[0]) - at))
    assert rate == best
    tried = {float(text.split()[1]) for text in scores}
    assert {*GRID[max(at - 1, 0) : at + 2], *FIRST_RATES} <= tried


def test_the_best_two_rates_are_compared_over_all_draws():
    """The first draw alone would take another one."""
    first = {0.003: 1.0, 0.01: 3.0, 0.03: 2.0}
    rate, scores = choose(
        lambda trial: first[trial.rates[0]] if trial.draw == 11 else 100 * trial.rates[0]
    )
    assert rate == 0.03
    assert len(scores) == len(RATE_CHANGES) * (3 + 2 * 2)
    assert choose(lambda _: 1.0)[0] == GRID[0]  # of equal rates the smaller


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_no_rate_is_chosen_on_what_a_cell_runs(study):
    for cell in study.cells:
        pairs = {(change, draw) for change in cell.changes for draw in cell.draws}
        assert not pairs & {(c, d) for c in cell.place.changes for d in cell.place.draws}
    if study in (MAP, STREAM):
        chosen = {name.split("/")[0] for cell in study.cells for name in cell.place.changes}
        assert chosen == set(RATE_CHANGES)
        assert f"under {', '.join(RATE_CHANGES)}" in study.note
        assert not chosen & set(CHANGES)


@pytest.mark.parametrize("way", MAP.ways)
def test_recipes_of_the_map_are_those_of_their_way(way):
    trial = Trial(way, (0.25,), "rotation-30", 4)
    recipe = trial_recipe(trial, 50)
    assert (recipe.per_class, recipe.seed) == (50, 4)
    assert (recipe.dataset == "cifar10-rotation-30-undone") == (way == "undone")
    assert recipe.norm == ("eval" if way in ("nothing", "undone", "ssf") else "train")
    frozen = trial_recipe(trial, 50, "backbone")
    assert frozen.norm == ("train" if way == "statistics" else "eval")
    assert recipe.steps == (2 if way in ("nothing", "undone") else 200)
    assert (recipe.similarity is not None) == way.startswith("full")
    assert WAYS.get(way, (MAP.ways[way].label,))[0] == MAP.ways[way].label


def test_a_way_with_m_is_tuned_as_without():
    """Its rates are M's and those of the way without, and nothing else is searched for it."""
    pairs = {way: spec for way, spec in MAP.ways.items() if spec.alone}
    assert {spec.alone for spec in pairs.values()} == {"norm", "tsa", "all"}
    for spec in pairs.values():
        assert spec.rates == ("full", spec.alone)
        assert {"full", spec.alone} <= set(MAP.stages[0])


def right_images(trial):
    """A share of images drawn at random: that of ways with M is larger."""
    random = torch.Generator().manual_seed(trial.draw * 7 + len(trial.way))
    return torch.rand(IMAGES, generator=random) < (0.8 if "full" in trial.way else 0.5)


SCORED = {"score_precision": "fp32"}


def fake_run(trial, data, held_out, labels):
    assert data.is_dir()
    assert labels == 2
    assert held_out == (trial.change == "other")
    trained = 7 * (not trial.way.startswith("as"))
    accuracy = -abs(trial.rates[-1] - 0.01)
    correct = pack_correct(right_images(trial))
    return SCORED | {"accuracy": accuracy, "trained": trained, "correct": correct}


def tiny_study(draws=(1, 2, 3), **fields):
    cells = tuple(
        Cell(name, name, (name,), draws, PLACE, name, "rates", facts={"labels": 2})
        for name in ("one", "two")
    )
    stages = tuple(TINY_WAYS)[:4], ("late",)
    curved = [way for way, spec in TINY_WAYS.items() if spec.rates]
    columns = {"chosen": (), "by curvature": curved}
    study = Study(
        "adapt-tiny", "Tiny", "A note.", TINY_WAYS, stages, cells, fake_run, columns=columns
    )
    return replace(study, **fields)


RUNS = 3 * 2 * 3 + 1
"""Of the first stage of a cell: three ways that train, two columns, three draws, and one more."""


def test_a_study_that_was_stopped_goes_on_stage_by_stage(tmp_path):
    study, lines = tiny_study(), []

    def report(line):
        lines.append(line)
        if len(lines) in (4, 3 * 2 + RUNS - 1):
            raise KeyboardInterrupt

    assert "0 of 2 cells have run" in study_to_markdown(study, tmp_path)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            study.run(tmp_path, tmp_path, report)
        assert "0 of 2 cells" in study_to_markdown(study, tmp_path)
    study.run(tmp_path, tmp_path, report, ["o*"])
    assert "1 of 2 cells" in study_to_markdown(study, tmp_path)
    study.run(tmp_path, tmp_path, report)
    assert "2 of 2 cells" in study_to_markdown(study, tmp_path)
    assert len(lines) == len(set(lines)) == 3 * 3 + 2 * RUNS + 2 * 3 * 2
    last = max(at for at, line in enumerate(lines) if line.startswith("one: full"))
    assert last < min(at for at, line in enumerate(lines) if "late" in line)
    late = [line.split()[2] for line in lines if ": late " in line]
    assert set(late) == {"0.01+0.003", "0.01+0.01", "0.01+0.03"}  # The others' rate comes first.
    with pytest.raises(ValueError, match=r"one\.json is of another backbone, None"):
        replace(study, terms=lambda *_: {"backbone": "ab"}).run(tmp_path, tmp_path, report)


@pytest.mark.parametrize(("draws", "interval"), [((1, 2, 3), by_seed_and_image), ((1,), by_image)])
def test_leads_are_those_of_the_images(tmp_path, draws, interval):
    """Of M over what trains and what does not, and of a way with M over the same way."""
    study = tiny_study(draws)
    study.run(tmp_path, tmp_path, lambda _: None)

    def right(way, suffix):
        if way == "as it is":
            return right_images(Trial(way, (1,), "", draws[0])).expand(len(draws), -1)
        return torch.stack([right_images(Trial(way + suffix, (1,), "", d)) for d in draws])

    pairs = {way: ("full", way) for way in ("norm", "late", "as it is")}
    pairs["full-norm"] = "full-norm", "norm"
    reports = study.read(tmp_path)
    for report, (at, suffix) in product(reports, enumerate(("", "-default"))):
        for way, (ours, theirs) in pairs.items():
            change = 100 * (right(ours, suffix).float() - right(theirs, suffix).float())
            lead = interval(change if len(draws) > 1 else change[0].tolist())
            assert report.leads[at][way].interval == lead
        assert report.leads[at].keys() == pairs.keys()
    lead = reports[0].leads[0]["norm"]
    page = study_to_markdown(study, tmp_path)
    row = next(line for line in page.splitlines() if line.startswith("| one | BN | 7 | 0.01 |"))
    assert (
        f"| {interval_text(lead.interval)} | {p_value_text(lead.p)} | {p_value_text(lead.p_all)} |"
        in row
    )
    draw_study(study, tmp_path, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1_000


def test_a_cell_lacks_draws_and_late_ways_that_have_not_run(tmp_path):
    study = tiny_study((1, 2, 3, 4))
    study.run(tmp_path, tmp_path, lambda _: None)
    sheet = read_sheet(study.sheet_path(tmp_path, study.cells[0].file))
    del sheet.runs["late 0.01+0.01 one 2"], sheet.runs["full 0.01 one 4"]
    sheet.write()
    report, whole = study.read(tmp_path)
    assert report.draws == [1, 2, 3]
    assert [*report.runs] == [*TINY_WAYS][:4]
    assert whole.draws == [1, 2, 3, 4]
    del sheet.runs["norm 0.01 one 3"]
    sheet.write()
    assert len(study.read(tmp_path)) == 1


def test_a_damaged_sheet_is_named(tmp_path):
    (tmp_path / "rotation-30-10.json").write_text('{"runs": {}', "utf-8")
    with pytest.raises(ValueError, match=r"rotation-30-10\.json cannot be read as a sheet"):
        read_sheet(tmp_path / "rotation-30-10.json")
    Sheet(tmp_path / "odd.json", {"statistics": "none"}).write()
    with pytest.raises(ValueError, match="`statistics` is 'none'"):
        read_sheet(tmp_path / "odd.json")
    Sheet(tmp_path / "old.json", {}, {"full": {"accuracy": 0.5, "trained": 7}}).write()
    with pytest.raises(ValueError, match=r"old\.json .*score_precision"):
        read_sheet(tmp_path / "old.json")


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_the_command_prints_and_writes(tmp_path, capsys, study):
    words = ["table", study.name, "--results", str(tmp_path)]
    assert cli.main(words) == 0
    assert f"# {study.title}" in capsys.readouterr().out
    assert cli.main([*words, "--out", str(tmp_path / "page.md")]) == 0
    picture = "page.png" if study is MAP else None
    text = study_to_markdown(study, tmp_path, picture)
    assert (tmp_path / "page.md").read_text("utf-8") == text
    assert (tmp_path / "page.png").exists() == (picture is not None)
    first = study.cells[0].name.replace(" ", "?")
    words = ["reproduce", study.name, "--print", "--only"]
    assert cli.main([*words, f"{first},*"]) == 0
    assert capsys.readouterr().out.endswith(f"--only {first},*\n")
