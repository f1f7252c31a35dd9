"""Trained to the end: verdicts by the rules of docs/evidence/end.md, from records alone."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kills import killed_after
from tiny_images import TINY
from tiny_images import tiny as tiny

from neural_similarity.lab.train import read_run
from neural_similarity.lab.train.journal import read_lines
from neural_similarity_paper.studies import end
from neural_similarity_paper.studies.end import (
    ARMS,
    DECAY,
    END_SEARCH,
    EPOCHS,
    PEAKS,
    PRIMARY,
    SECONDARY,
    ArmKey,
    Settings,
    choose_settings,
    end_to_markdown,
    judge_primary,
    judge_secondary,
    level_factor,
)
from neural_similarity_paper.studies.trials import SCORED, read_sheet

RESULTS = Path(__file__).parents[2] / "results"
IMAGES = 4_000


def arm(rate, seeds, salt, scatter=0.002):
    """Errors of networks of about this error rate, in percent; seeds differ by `scatter`."""
    random = torch.Generator().manual_seed(salt)
    rates = rate + scatter * torch.randn(seeds, 1, generator=random)
    return 100.0 * (torch.rand(seeds, IMAGES, generator=random) < rates)


def primary(ours, theirs, seeds):
    return dict(zip(PRIMARY, (arm(ours, seeds, 1), arm(theirs, seeds, 2)), strict=True))


@pytest.mark.parametrize(
    ("ours", "theirs", "seeds", "looked", "verdict"),
    [
        (0.07, 0.09, 7, 7, "not judged before 8 seeds"),
        (0.07, 0.09, 9, 8, "lower error"),
        (0.09, 0.07, 16, 8, "higher error"),
        (0.08, 0.08, 15, 8, "no gain seen at the first look"),
    ],
)
def test_the_primary_comparison_is_judged_at_two_looks(ours, theirs, seeds, looked, verdict):
    judged = judge_primary(primary(ours, theirs, seeds))
    assert (judged.seeds, judged.verdict) == (looked, verdict)


def test_no_gain_is_said_only_where_equivalence_holds():
    """At the second look: images that are hard for all, and images drawn for each."""
    hard = 100.0 * (torch.arange(IMAGES) < 0.075 * IMAGES)
    sides = (torch.maximum(hard, arm(0.005, 16, salt, scatter=0.0)) for salt in (1, 2))
    steady = judge_primary(dict(zip(PRIMARY, sides, strict=True)))
    assert steady.verdict == "no gain: within ±0.2"
    assert steady.equivalence < 0.05
    noisy = judge_primary(primary(0.08, 0.08, 16))
    assert noisy.verdict == "no gain seen, nor equivalence"
    assert noisy.equivalence > 0.05


def test_the_secondary_comparisons_are_one_family_of_nine():
    assert len(SECONDARY) == 9
    keys = dict.fromkeys(key for pair in SECONDARY for key in pair)
    errors = {key: arm(0.08, 5, salt) for salt, key in enumerate(keys)}
    errors[ArmKey("cnn", 16)] = arm(0.12, 5, 99)
    errors[ArmKey("cnn-wide", 16)] = arm(0.12, 4, 98)
    judged = {(one.ours.name, one.theirs): one for one in judge_secondary(errors)}
    assert judged["pooled", ArmKey("cnn", 16)].verdict == "lower error"
    assert judged["pooled", ArmKey("cnn", 32)].verdict == "not seen"
    assert judged["dynamic-diagonal", ArmKey("cnn-wide", 16)].verdict == "not run"  # four seeds
    ran = [one for one in judged.values() if one.interval]
    clearest = min(ran, key=lambda one: one.interval.p)
    assert clearest.adjusted == pytest.approx(9 * clearest.interval.p)
    assert all(one.adjusted >= one.interval.p for one in ran)


def test_how_much_longer_the_plain_network_must_train():
    """Error 8 % at 8 epochs, 1 point less with every doubling; 6.5 % is half-way to 32."""
    steady = {8: 8.0, 16: 7.0, 32: 6.0}
    errors = {ArmKey("cnn", e): torch.full((3, 2), v) for e, v in steady.items()}
    errors[ArmKey("static-full", 16)] = torch.full((3, 2), 6.5)
    assert level_factor(errors, 16).mean == pytest.approx(2**0.5)
    errors[ArmKey("static-full", 16)] = torch.full((3, 2), 5.0)
    assert level_factor(errors, 16).mean == float("inf")
    assert level_factor(errors, 32) is None


def test_a_search_goes_from_peaks_to_decays_at_the_best_peak():
    asked = {}

    def score(settings):
        return asked.setdefault(settings, 1 - abs(settings.peak - 0.4) - settings.decay)

    assert choose_settings(score) == (0.4, 2.5e-4)
    assert choose_settings(lambda settings: -abs(settings.decay - DECAY)) == (PEAKS[0], DECAY)
    assert [*asked] == [*((peak, DECAY) for peak in PEAKS), (0.4, 2.5e-4), (0.4, 1e-3)]


@pytest.mark.usefixtures("tiny")
def test_a_search_trains_what_its_sheet_lacks_from_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setitem(end.ARMS, "tiny", ("", replace(TINY, checkpoint_every=1)))
    monkeypatch.setattr(end, "HELD_OUT", 8)
    monkeypatch.setitem(EPOCHS, end.SEARCH_EPOCHS, 0.5)
    monkeypatch.chdir(tmp_path)
    killed_after(2, lambda: end.run_search("tiny", tmp_path, tmp_path, [].append))
    for _ in range(2):
        end.run_search("tiny", tmp_path, tmp_path, [].append)
    runs = [read_run(path) for path in Path("runs", END_SEARCH).iterdir()]
    sheet = read_sheet(tmp_path / END_SEARCH / "tiny.json", SCORED).runs
    assert len(sheet) == len(PEAKS) + 2
    assert {f"{run.recipe.lr:g} {run.recipe.weight_decay:g}" for run in runs} == sheet.keys()
    for run in runs:
        recipe = run.recipe
        assert (recipe.steps, recipe.validation, recipe.seed, run.budget) == (3, 8, 0, 0.5)
        kept = sheet[f"{recipe.lr:g} {recipe.weight_decay:g}"]
        assert kept["accuracy"] == read_lines(run.metrics)[-1]["validation_accuracy"]


def test_the_recipes_have_what_their_sheets_chose():
    """And no arm has a record before its sheet is whole."""
    chosen = {}
    for path in (RESULTS / END_SEARCH).glob("*.json"):
        with suppress(KeyError):
            chosen[path.stem] = choose_settings(read_sheet(path, SCORED).score)
    settings = {name: (recipe.lr, recipe.weight_decay) for name, (_, recipe) in ARMS.items()}
    searched = {name: own for name, own in settings.items() if own != (PEAKS[1], DECAY)}
    assert chosen == searched
    recorded = {path.name.partition("-end-")[2] for path in RESULTS.glob("cifar10*-end-*")}
    assert recorded <= searched.keys()


def test_equal_settings_of_both_arms_differ_on_held_out_images_as_the_page_says():
    ours, plain = (
        read_sheet(RESULTS / END_SEARCH / f"{arm}.json", SCORED) for arm in ("static-full", "cnn")
    )
    equal = [Settings(peak, DECAY) for peak in PEAKS]
    points = [f"{100 * (ours.score(each) - plain.score(each)):.2f}" for each in equal]
    text = (RESULTS.parent / "docs" / "explanation" / "scratch.md").read_text("utf-8")
    assert "by {}, {} and {} points, one seed each".format(*points) in text


def test_the_page_is_printed_from_records():
    text = end_to_markdown(RESULTS)
    assert text.startswith("# Trained to the end")
    assert "| < 0.001 |" in text
    assert "| 0.000 |" not in text
    assert all(f"{epochs} epochs" in text for epochs in EPOCHS)
