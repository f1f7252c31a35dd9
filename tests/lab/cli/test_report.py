"""`nsim report`: one page that needs nothing else."""

import base64
import io
import re
import shutil

import pytest
from PIL import Image

import neural_similarity as ns
from neural_similarity.lab.cli import main
from neural_similarity.lab.cli.report import page
from neural_similarity.lab.session import open_run, train
from neural_similarity.lab.train import Recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, similarity in (("a&b", ns.Static(ns.Full())), ("plain", None)):
        settings = {"dataset": "embedded", "steps": 2, "drops": (), "threads": 1, "log_every": 1}
        recipe = Recipe(width=0.05, similarity=similarity, validation=100, **settings)
        train(recipe, out=folder / name)
    return folder


def cells(text, first):
    (row,) = re.findall(rf"<tr><td>{first}</td>(.*?)</tr>", text)
    return re.findall("<td>(.*?)</td>", row)


@pytest.mark.long
def test_a_page_compares_runs(folder, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    runs = [str(folder / "a&b"), str(folder / "plain")]
    assert main(["report", *runs, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    text = out.read_text("utf-8")
    assert "<title>a&amp;b, plain</title>" in text
    assert cells(text, "steps") == ["2", "2"]
    static, plain = cells(text, "similarity")
    assert static.startswith("Static(")
    assert plain == "none"
    assert not re.search("<td>width</td>", text)  # It is the same in both.
    assert len(cells(text, "torch")) == 2
    assert "<p>It has none.</p>" in text  # The plain network has no M to show.


def test_a_page_needs_nothing_else(folder):
    text = page([open_run(folder / "a&b")])
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) >= 2  # curves and M
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert cells(text, "width") == ["0.05"]


def test_pictures_do_not_shrink_below_half_of_their_size(folder):
    text = page([open_run(folder / "a&b")])
    pictures = re.findall(r'min-width: (\d+)px" src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) >= 2
    for width, data in pictures:
        assert int(width) == Image.open(io.BytesIO(base64.b64decode(data))).width // 2


def test_an_unfinished_run_says_how_far_it_is(folder):
    run = open_run(folder / "plain")
    kept = run.summary.read_bytes()
    run.summary.unlink()
    try:
        assert "<td>steps</td><td>2 of 2, not finished</td>" in page([run])
    finally:
        run.summary.write_bytes(kept)


def test_what_is_not_a_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert not (tmp_path / "report.html").exists()


def test_runs_in_folders_of_one_name_stay_apart(folder, tmp_path):
    other = tmp_path / "plain"
    shutil.copytree(folder / "a&b", other)
    text = page([open_run(folder / "plain"), open_run(other)])
    assert cells(text, "steps") == ["2", "2"]
    assert cells(text, "similarity")[0] == "none"
