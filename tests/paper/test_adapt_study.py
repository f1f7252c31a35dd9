"""Studies of adaptation: what was stopped goes on, and tables follow from the runs."""

from dataclasses import replace

import pytest
import torch
from paper.test_adapt_map import coloured_dataset
from paper.test_adapt_map import tiny_map as tiny_map
from torch import nn

import neural_similarity as ns
from neural_similarity.lab import cli
from neural_similarity.lab.data.corruption import CORRUPTIONS
from neural_similarity.lab.train import pack_correct, unpack_correct
from neural_similarity.lab.train.statistics import by_image, by_seed_and_image, holm
from neural_similarity_paper.cli.studies import OTHER_STUDIES
from neural_similarity_paper.studies import adapt_runs, adapt_unlabelled
from neural_similarity_paper.studies.adapt_map import (
    CHANGES,
    GRID,
    RATE_CHANGES,
    MapRun,
    RateSearch,
)
from neural_similarity_paper.studies.adapt_study import Study, StudyCell
from neural_similarity_paper.studies.adapt_unlabelled import (
    KNOWN,
    KNOWN_LABELS,
    STREAM,
    run_stream,
    score_known,
    stream_positions,
)

# What peft imports warns.
pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = 200
SEARCH = RateSearch(("other",), (11,), (0.003, 0.01, 0.03))
LABELS = {"full": "M", "norm": "BN", "statistics": "alone"}


def right_images(trial):
    """A share of images drawn at random: M's is larger."""
    random = torch.Generator().manual_seed(trial.draw * 7 + len(trial.way))
    return torch.rand(IMAGES, generator=random) < (0.8 if trial.way == "full" else 0.5)


def fake_run(trial, data, held_out):
    assert data.is_dir()
    assert held_out == (trial.change == "other")
    accuracy = -abs(GRID.index(trial.rate) - GRID.index(0.01))
    return {"accuracy": accuracy, "trained": 7, "correct": pack_correct(right_images(trial))}


def study_of(draws):
    searches = {"full": SEARCH, "norm": SEARCH, "statistics": None}
    cells = tuple(StudyCell(name, (name,), draws, searches) for name in ("one", "two"))
    return Study("adapt-tiny", "Tiny", "A note.", LABELS, cells, fake_run)


def test_a_study_that_was_stopped_goes_on_and_shows_whole_draws_alone(tmp_path):
    study, lines = study_of((1, 2, 3)), []

    def report(line):
        lines.append(line)
        if len(lines) in (4, 14):
            raise KeyboardInterrupt

    assert "0 of 6 comparisons have run" in study.to_markdown(tmp_path)
    for shown in (0, 2):
        with pytest.raises(KeyboardInterrupt):
            study.run(tmp_path, tmp_path, report)
        assert f"{shown} of 6 comparisons" in study.to_markdown(tmp_path)
    study.run(tmp_path, tmp_path, report)
    assert len(lines) == len(set(lines)) == 2 * 3 + 2 * 3 * 3
    assert "6 of 6 comparisons" in study.to_markdown(tmp_path)


@pytest.mark.parametrize(("draws", "interval"), [((1, 2, 3), by_seed_and_image), ((1,), by_image)])
def test_leads_are_those_of_the_images(tmp_path, draws, interval):
    study = study_of(draws)
    study.run(tmp_path, tmp_path, lambda _: None)
    right = {
        way: torch.stack([right_images(MapRun(way, 1, "", draw)) for draw in draws]).double()
        for way in LABELS
    }
    changes = [100 * (right["full"] - right[way]) for way in ("norm", "statistics")]
    leads = [interval(c if len(draws) > 1 else c[0].tolist()) for c in changes]
    page = study.to_markdown(tmp_path)
    for label, lead, p in zip(
        ("BN", "alone"), leads, holm([lead.p for lead in leads]), strict=True
    ):
        (row, _) = [line for line in page.splitlines() if f"| {label} |" in line]
        assert f"{lead.mean:+.2f} [{lead.low:+.2f}, {lead.high:+.2f}] | {p:.3f} |" in row
    assert "| one | M | 7 | 0.01 |" in page


def test_images_stand_where_their_positions_say(tmp_path):
    """Draws that have the images in other orders agree on each."""

    def run_half(trial, **_):
        half = right_images(trial._replace(draw=0))[places(trial, IMAGES // 2)]
        return {"accuracy": 0.5, "trained": 7, "correct": pack_correct(half)}

    def places(trial, count):
        random = torch.Generator().manual_seed(trial.draw)
        part = slice(0, count) if trial.change == "a" else slice(count, 2 * count)
        return torch.randperm(2 * count, generator=random)[part]

    searches = dict.fromkeys(LABELS)
    cell = StudyCell("one", ("a", "b"), (1, 2, 3), searches)
    study = replace(study_of((1,)), cells=(cell,), run_trial=run_half, positions=places)
    study.run(tmp_path, tmp_path, lambda _: None)
    runs = adapt_runs.read_sheet(study.path(tmp_path)).runs
    for way in LABELS:
        trials = [t for t in cell.trials({}) if t.way == way]
        found = study._correct_images(trials, runs)
        wanted = right_images(MapRun(way, 1, "", 0))
        assert torch.equal(found, wanted.expand(3, -1))


def test_rates_of_streams_are_chosen_off_the_map():
    for cell in STREAM.cells:
        for search in filter(None, cell.searches.values()):
            changes = {name.split("/")[0] for name in search.changes}
            assert changes == set(RATE_CHANGES)
            assert not changes & set(CHANGES)
            assert not set(search.draws) & set(cell.draws)
    assert len(STREAM.cells) == 4 * len(CHANGES)


def test_streams_by_class_have_the_same_images_class_by_class():
    labels = torch.arange(5).repeat(8)
    mixed, sorted_ = (stream_positions(labels, order, 1) for order in ("iid", "by-class"))
    assert sorted(mixed.tolist()) == sorted(sorted_.tolist()) == list(range(40))
    assert labels[sorted_].tolist() == sorted(labels.tolist())
    assert labels[mixed].tolist() != sorted(labels.tolist())


def kept_networks(monkeypatch):
    """The tasks, runs and states that runs begin with, as they come."""
    kept, begin = [], adapt_unlabelled.start_in_memory

    def keep(*given):
        kept.append(begin(*given))
        return kept[-1]

    monkeypatch.setattr(adapt_unlabelled, "start_in_memory", keep)
    return kept, begin


@pytest.mark.parametrize("way", ["full", "norm", "statistics"])
def test_a_stream_adapts_what_its_way_trains_and_answers_first(tiny_map, monkeypatch, passes, way):
    """The first batch has the answers of the pretrained network with the batch's statistics."""
    kept, begin = kept_networks(monkeypatch)
    trial = MapRun(way, 0.05, "rotation-30/iid/8", 1)
    facts = run_stream(trial, tiny_map, False)
    found = unpack_correct(facts["correct"])
    assert (facts["score_precision"], passes) == ("fp32", {(True, False)})
    (_, run, state), runtime = kept[0], adapt_runs.cpu_runtime()
    network = state.model
    fresh = begin(run.recipe, coloured_dataset(), tiny_map)[2].model
    moved = {n for n, p in network.named_parameters() if not torch.equal(p, fresh.state_dict()[n])}
    assert bool(moved) == (way != "statistics")
    assert all(("similarity" if way == "full" else "bn") in name for name in moved)
    test = coloured_dataset().test
    first = stream_positions(test.labels, "iid", 1)[:8]
    with torch.no_grad():
        logits = fresh.train()(runtime.place_images(run.preprocess(test.pixels[first])))
    assert torch.equal(found[:8], logits.argmax(1) == test.labels[first])


def test_m_from_the_geometry_turns_every_kernel_and_trains_nothing(tiny_map, monkeypatch):
    kept, _ = kept_networks(monkeypatch)
    for way in KNOWN_LABELS:
        assert score_known(MapRun(way, 1.0, "rotation-90", 0), tiny_map, False)["trained"] == 0
    turned, back, plain = (state.model for _, _, state in kept)
    assert kept[1][1].recipe.dataset == "cifar10-rotation-90-undone"
    for name, kernel in ns.fold(turned).state_dict().items():
        if "conv" in name:
            assert torch.equal(kernel, plain.state_dict()[name].rot90(1, (2, 3)))
            assert torch.equal(back.state_dict()[name], plain.state_dict()[name])


def central_response(change, number, changed=True):
    """Of a 13x13 kernel that is moved by a number, over its sum, to a smooth image."""
    down, right = torch.meshgrid(*[torch.linspace(-1, 1, 65)] * 2, indexing="ij")
    x = (127 + 100 * torch.sin(8 * right + 2 * down))[None, None]
    taps = torch.arange(13.0) - 6
    layer = ns.Conv2d(1, 1, 13, bias=False, similarity=ns.Static(KNOWN[change][0]))
    with torch.no_grad():
        layer.weight.copy_(torch.exp(-((taps[:, None] - 1) ** 2) / 4 - (taps - 2) ** 2 / 8))
        next(p for n, p in layer.named_parameters() if "similarity" in n).fill_(number)
        kernel = ns.fold(nn.Sequential(layer))[0].weight
    x = CORRUPTIONS[change](x, torch.Generator()) if changed else x
    return ((x[..., 26:39, 26:39] * kernel).sum() / kernel.sum()).item()


@pytest.mark.parametrize("change", KNOWN)
def test_kernels_move_as_the_images_do(change):
    """Of two moves and none, only the right one answers the changed image as the image itself."""
    plain, number = central_response(change, 0.0, changed=False), KNOWN[change][1]
    right, opposite, none = (abs(central_response(change, n) - plain) for n in (number, -number, 0))
    assert 2 * right < min(opposite, none)


@pytest.mark.parametrize("study", OTHER_STUDIES, ids=lambda study: study.name)
def test_the_command_prints_and_writes(tmp_path, capsys, study):
    words = ["table", study.name, "--results", str(tmp_path)]
    assert cli.main(words) == 0
    assert f"# {study.title}" in capsys.readouterr().out
    assert cli.main([*words, "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text("utf-8") == study.to_markdown(tmp_path)
