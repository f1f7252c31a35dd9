"""Deblurring: cameras and ways obey their formulas, and tables follow from the runs."""

from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from neural_similarity.lab import cli
from neural_similarity.lab.data.images import seeded_generator
from neural_similarity_paper.statistics import by_seed_and_image
from neural_similarity_paper.studies import restore, restore_task
from neural_similarity_paper.studies.restore import DRAWS, FIELDS, TRAINED, Cell, read_cells
from neural_similarity_paper.studies.restore_task import (
    CAMERAS,
    RATE_CAMERAS,
    TRAINED_FOR,
    WAYS,
    Deblurring,
    observe,
    score_images,
    turn_kernels,
)
from neural_similarity_paper.studies.sheets import read_sheet

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


@pytest.mark.parametrize("way", WAYS)
def test_a_way_starts_at_the_network_and_trains_its_numbers(way, network):
    before, x = deepcopy(network), images(2)
    WAYS[way][1](network)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == NUMBERS[way]
    if way != "turned":
        torch.testing.assert_close(network(x), before(x))


def test_kernels_that_m_turns_undo_a_turned_camera(network):
    x, before = images(2), deepcopy(network)
    turn_kernels(network, 1)
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
    """Two ways and small networks that train for a step."""
    parts = {"train": images(4), "draws": images(130, seed=1)}
    parts |= {"held_out": images(3, seed=2), "test": images(5, seed=3)}
    monkeypatch.setattr(restore, "load_sharp", lambda *_: parts)
    monkeypatch.setattr(restore, "GROUPS", (("tiny", 4, 2),))
    monkeypatch.setattr(restore, "TRAINED", {way: TRAINED[way] for way in ("m", "all", "last")})
    few = ("turned-35", "turned-90")
    monkeypatch.setattr(restore, "CAMERAS", {camera: CAMERAS[camera] for camera in few})
    monkeypatch.setattr(restore, "STEPS", 1)
    monkeypatch.setattr(restore_task, "PRETRAINING", {"batch": 2, "steps": 1, "rate": 1e-3})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stopped_study_goes_on_and_its_page_follows_from_the_runs(tiny_study, monkeypatch):
    """Runs are scored on test images alone once all rates are chosen, on held-out ones before."""
    asked, run_trial = [], restore.run_trial

    def stopping(backbone, trial, count, sharp, held_out):
        if len(asked) == 40:
            raise KeyboardInterrupt
        asked.append((trial, held_out))
        return run_trial(backbone, trial, count, sharp, held_out)

    arguments = tiny_study, tiny_study / "results", lambda _: None
    monkeypatch.setattr(restore, "run_trial", stopping)
    with pytest.raises(KeyboardInterrupt):
        restore.run_restore(*arguments)
    monkeypatch.setattr(
        restore, "run_trial", lambda *all: asked.append(all[1::3]) or run_trial(*all)
    )
    restore.run_restore(*arguments)
    assert len({trial for trial, _ in asked}) == len(asked)
    assert all(held_out == (trial.change in RATE_CAMERAS) for trial, held_out in asked)
    cell = Cell("tiny", 4, 2, "turned-35")
    sheet = read_sheet(tiny_study / "results" / "adapt-restore" / "tiny-4-2.json", FIELDS)
    scores = restore.scores_of(sheet)
    assert not any(cell.search(way).missing(scores) for way in restore.TRAINED)
    report = read_cells(tiny_study / "results")[0]
    mine, theirs = (
        torch.tensor([sheet.runs[str(trial)]["images"] for trial in cell.trials(scores)[way]])
        for way in ("m", "last")
    )
    assert mine.shape == (len(DRAWS), 5)
    torch.testing.assert_close(report.ratios["m"], mine)
    if report.leads:
        assert report.leads["last"] == by_seed_and_image(mine - theirs)
    assert cli.main(["table", "adapt-restore", "--results", "results"]) == 0


def test_a_cell_where_nothing_beats_the_image_ranks_nothing():
    ratios = {way: torch.full((5, 4), 20.0) for way in TRAINED} | {
        "input": torch.full((1, 4), 21.0)
    }
    report = restore.CellReport(Cell("tiny", 4, 2, "turned-35"), ratios, {})
    assert not report.leads
    better = restore.CellReport(report.cell, ratios | {"all": torch.full((5, 4), 22.0)}, {})
    assert better.leads["all"].mean == -2


def test_a_sheet_of_another_network_is_refused(tiny_study):
    restore.run_restore(tiny_study, tiny_study / "results", lambda _: None)
    (tiny_study / "runs" / "adapt-restore" / "tiny-4.pt").unlink()
    restore_task.PRETRAINING["rate"] = 2e-3
    with pytest.raises(ValueError, match="another backbone; move it away"):
        restore.run_restore(tiny_study, tiny_study / "results", lambda _: None)
