"""Deblurring: cameras and ways obey their formulas, and tables follow from the runs."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from neural_similarity.lab.data.images import seeded_generator
from neural_similarity_paper.studies import restore, restore_picture
from neural_similarity_paper.studies.adapt_report import study_to_markdown
from neural_similarity_paper.studies.restore import (
    CAMERAS,
    RATE_CAMERAS,
    RESTORE,
    TRAINED_FOR,
    Deblurring,
    observe,
    score_images,
)
from neural_similarity_paper.studies.trials import Trial, read_sheet

# What peft imports warns.
pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERS = {
    "m": 6 * 81,
    "m-shared": 81,
    "m-bias": 6 * 81 + 5 * 4 + 1,
    "m-all": 6 * 81 + 9 * (4 + 4 * 16 + 4) + 21,
    "all": 9 * (4 + 4 * 16 + 4) + 21,
    "adafm": 10 * 21,
    "lora": (9 + 4) + 4 * (36 + 4) + (36 + 1),
    "residual": 4 + 4 * 16 + 4,
    "ssf": 2 * 21,
    "last": 36 + 1,
    "nothing": 0,
    "turned": 0,
}
"""Numbers that train in a network of four channels, by the formulas of the ways."""


@pytest.fixture
def network():
    torch.manual_seed(1)
    return Deblurring(4)


def images(count, side=30, seed=0):
    return torch.rand(count, 1, side, side, generator=seeded_generator("tiny", seed))


@pytest.mark.parametrize("way", NUMBERS)
def test_a_way_starts_at_the_network_and_trains_its_numbers(way, network):
    before, x = deepcopy(network), images(2)
    restore.prepare_network(network, way)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == NUMBERS[way]
    if way != "turned":
        torch.testing.assert_close(network(x), before(x))


def test_kernels_that_m_turns_undo_a_turned_camera(network):
    x, before = images(2), deepcopy(network)
    restore.prepare_network(network, "turned")
    torch.testing.assert_close(network(x.rot90(1, (2, 3))), before(x).rot90(1, (2, 3)))
    across, along = CAMERAS["turned-90"].kernel, TRAINED_FOR.kernel
    torch.testing.assert_close(across, along.rot90())


@pytest.mark.parametrize("camera", [TRAINED_FOR, *CAMERAS.values(), *RATE_CAMERAS.values()])
def test_a_camera_blurs_and_adds_noise(camera):
    assert camera.kernel.sum().item() == pytest.approx(1)
    grey = torch.full((50, 1, 60, 60), 0.5)
    observed, sharp = observe(grey, camera, 0)
    torch.testing.assert_close(sharp, torch.full_like(sharp, 0.5))
    assert (observed - sharp).std().item() == pytest.approx(camera.noise, rel=0.02)
    quiet = camera._replace(noise=0.0, pitch=1.0)
    x, reach = images(1), camera.kernel.shape[0] // 2
    padded = F.pad(x, (reach,) * 4, mode="reflect")
    rows = padded.unfold(2, 2 * reach + 1, 1).unfold(3, 2 * reach + 1, 1)
    by_hand = (rows * camera.kernel).sum((-1, -2))[..., 6:-6, 6:-6]
    torch.testing.assert_close(observe(x, quiet, 0).observed, by_hand)


def test_a_ratio_is_that_of_its_definition():
    sharp = torch.full((2, 1, 4, 4), 0.5)
    ratios = score_images(sharp + torch.tensor([0.1, 0.9])[:, None, None, None], sharp)
    assert ratios.tolist() == pytest.approx([20.0, -10 * torch.tensor(0.25).log10().item()])


@pytest.fixture
def tiny_study(monkeypatch, tmp_path):
    """Three ways that train, under two cameras, in small networks that train for a step."""
    parts = {"train": images(4), "draws": images(130, seed=1)}
    parts |= {"held_out": images(3, seed=2), "test": images(5, seed=3)}
    monkeypatch.setattr(restore, "load_sharp", lambda *_: parts)
    monkeypatch.setattr(restore, "STEPS", 1)
    monkeypatch.setattr(restore, "PRETRAINING", {"batch": 2, "steps": 1, "rate": 1e-3})
    monkeypatch.chdir(tmp_path)
    restore.load_backbone.cache_clear()
    ways = {way: RESTORE.ways[way] for way in ("m", "all", "m-all", "nothing", "input", "turned")}
    cells = tuple(restore.restore_cell("tiny", 4, 2, c) for c in ("turned-35", "turned-90"))
    yield replace(RESTORE, ways=ways, stages=(tuple(ways),), cells=cells)
    restore.load_backbone.cache_clear()


def test_the_page_follows_from_the_runs(tiny_study, tmp_path):
    """Rates are chosen on held-out images, and cells are scored on test images."""
    asked = {}

    def run_trial(trial, data, held_out):
        assert trial not in asked
        asked[trial] = held_out
        return restore.run_trial(trial, data, held_out)

    study = replace(tiny_study, run_trial=run_trial)
    study.run(tmp_path, tmp_path / "results", lambda _: None)
    for trial, held_out in asked.items():
        assert held_out == (trial.change.split("/")[3] in RATE_CAMERAS)
    reports = tiny_study.read(tmp_path / "results")
    assert [report.draws for report in reports] == [[1, 2, 3, 4, 5]] * 2
    sheet = read_sheet(tmp_path / "results/adapt-restore/tiny-4-2.json", RESTORE.measure.fields)
    trained = NUMBERS | {"input": 0}
    assert all(run["trained"] == trained[key.split()[0]] for key, run in sheet.runs.items())
    for report in reports:
        ours = [
            sheet.runs[f"m {report.rates['m']} {report.cell.changes[0]} {d}"] for d in range(1, 6)
        ]
        images = torch.tensor([run["images"] for run in ours])
        torch.testing.assert_close(report.correct[0]["m"], images)
    text = study_to_markdown(tiny_study, tmp_path / "results")
    assert "2 of 2 cells have run" in text
    assert "bfloat16" not in text


def test_a_picture_is_drawn_from_a_cells_rates(tiny_study, tmp_path, monkeypatch):
    """Of networks that are adapted as the sheet's were, and from nothing else."""
    images, draw = [], restore_picture.draw_restored

    def restore_images(trial, *given):
        images.append((trial, restore.restore_images(trial, *given)))
        return images[-1][1]

    monkeypatch.setattr(restore_picture, "restore_images", restore_images)
    monkeypatch.setattr(restore_picture, "RESTORE", tiny_study)
    monkeypatch.setattr(restore_picture, "SHOWN", ("input", "m"))
    cell, out = "tiny-4-2-turned-35", tmp_path / "a.png"
    with pytest.raises(ValueError, match=rf"tiny-4-2-rates\.json must have the rates of {cell}"):
        draw(cell=cell, results=tmp_path)
    tiny_study.run(tmp_path, tmp_path, lambda _: None, ["*-35"])
    draw(cell=cell, results=tmp_path, out=out)
    assert out.read_bytes().startswith(b"\x89PNG")
    runs = read_sheet(tmp_path / "adapt-restore/tiny-4-2.json", RESTORE.measure.fields).runs
    for trial, (restored, scored, _) in images:
        ratios = score_images(restored, scored.sharp).tolist()
        assert runs[str(trial)]["images"] == pytest.approx(ratios, abs=6e-4)
    assert [(trial.way, trial.draw) for trial, _ in images] == [("input", 1), ("m", 1)]
    with pytest.raises(ValueError, match="`cell` must be one of adapt-restore, got 'x'"):
        draw(cell="x", results=tmp_path)


@pytest.mark.parametrize("other", ["backbone", "data"])
def test_a_sheet_of_another_network_or_images_is_refused(tiny_study, tmp_path, other):
    study = replace(tiny_study, stages=(("nothing",),), cells=tiny_study.cells[:1])
    study.run(tmp_path, tmp_path, lambda _: None)
    if other == "backbone":
        (tmp_path / "runs/adapt-restore/tiny-4.pt").unlink()
        restore.PRETRAINING["rate"] = 2e-3
    else:
        restore.load_sharp()["test"].mul_(0.5)
    restore.load_backbone.cache_clear()
    with pytest.raises(ValueError, match=rf"tiny-4-2.json is of another {other}"):
        study.run(tmp_path, tmp_path, lambda _: None)


@pytest.mark.usefixtures("tiny_study")
def test_pairs_that_choose_rates_are_of_other_images(tmp_path, monkeypatch):
    drawn, observe = [], restore.observe

    def keep(images, camera, *seeds):
        if seeds[0] == 1:
            drawn.append({image.numpy().tobytes() for image in images})
        return observe(images, camera, *seeds)

    monkeypatch.setattr(restore, "observe", keep)
    for draw in range(3):
        for held_out in (True, False):
            trial = Trial("m", (0.01,), "tiny/4/2/turned-35", draw)
            restore.restore_images(trial, tmp_path, held_out)
    images = [image.numpy().tobytes() for image in restore.load_sharp()["draws"]]
    assert set.union(*drawn[::2]) < {*images[-100:]}
    assert set.union(*drawn[1::2]) < {*images[:-100]}
