"""What `nsim` does with targets that are no files, full disks, and links out of a run."""

import os
import shutil
import stat
from pathlib import Path

import pytest
from PIL import Image
from test_files import contents, full_disk
from tiny_images import TINY

from neural_similarity.lab import session
from neural_similarity.lab.data import registry

pytestmark = pytest.mark.usefixtures("tiny")
FORMATS = ["safetensors", *(pytest.param(f, marks=pytest.mark.long) for f in ("onnx", "pt2"))]


@pytest.fixture
def run(tmp_path):
    """A short run in its own folder."""
    session.train(TINY, out=tmp_path / "run", device="cpu")
    return tmp_path / "run"


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_whole_or_not_at_all(run, tmp_path, nsim, format):
    out = tmp_path / "new" / "deep" / "m"
    words = ("export", run, "--format", format, "--out")
    nsim(*words, out)
    before = os.umask(0)
    os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~before
    (tmp_path / "link").symlink_to(out)
    os.mkfifo(tmp_path / "pipe")
    everything = contents(tmp_path)
    for name, kind in (("link", "link"), ("pipe", "pipe"), ("new", "folder")):
        assert f"or not exist, got a {kind}" in nsim(*words, tmp_path / name, code=1).err
    told = nsim(*words, "/dev/null", code=1).err
    assert "/dev/null must be a regular file or not exist, got a device" in told
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with full_disk(100):
        assert str(out) in nsim(*words, out, code=1).err
    assert contents(tmp_path) == everything


def test_a_report_follows_no_link_out_of_a_run(run, tmp_path, nsim):
    Image.new("L", (8, 8)).save(tmp_path / "private.png")
    out = tmp_path / "page.html"
    for name in ("plots/similarities.png", "summary.json", "environment.json", "metrics.jsonl"):
        shutil.copytree(run, tmp_path / "forged")
        forged = tmp_path / "forged" / name
        private = tmp_path / "private.png" if name.endswith("png") else run / name
        forged.parent.mkdir(exist_ok=True)
        forged.unlink(missing_ok=True)
        forged.symlink_to(private)
        told = nsim("report", forged.parents[name.count("/")], "--out", out, code=1).err
        assert f"{forged} must lie in" in told
        assert not out.exists()
        shutil.rmtree(tmp_path / "forged")


USES = "evaluate", "train --resume", "report", "predict", "inspect", "export"


@pytest.mark.parametrize("folder", ["checkpoints", "checkpoints/best", "plots", "evaluations"])
def test_no_folder_of_a_run_leads_out_of_it(run, tmp_path, nsim, folder):
    """What lies there would be read as the run's own, overwritten and removed."""
    inside, elsewhere = run / folder, tmp_path / "elsewhere"
    if inside.exists():
        shutil.move(inside, elsewhere)
    elsewhere.mkdir(exist_ok=True)
    inside.symlink_to(elsewhere)
    everything = contents(tmp_path)
    for words in USES:
        more = {"predict": ["image.png"], "export": ["--out", tmp_path / "m"]}.get(words, [])
        told = nsim(words, run, *more, code=1).err
        assert f"{inside} must be a folder of the run itself, got a link" in told
    assert contents(tmp_path) == everything


def test_a_name_that_is_too_long_is_refused_before_data_are_read(tmp_path, nsim, monkeypatch):
    monkeypatch.setattr(registry, "load_dataset", lambda *_, **__: 1 / 0)
    monkeypatch.chdir(tmp_path)
    told = nsim(f"train quickstart --out runs/{'x' * 250}", code=1).err
    assert "must have a name of at most 235 bytes, got 250" in told
    assert not list(tmp_path.iterdir())
