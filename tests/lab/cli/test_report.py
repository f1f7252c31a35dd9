"""`nsim report`: one page that needs nothing else."""

import base64
import io
import json
import re
import shutil

import pytest
from PIL import Image

import neural_similarity as ns
from neural_similarity.lab.cli.report import report_page
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
def test_a_page_compares_runs(folder, tmp_path, nsim):
    out = tmp_path / "new" / "page.html"
    assert nsim("report", folder / "a&b", folder / "plain", "--out", out).out == f"{out}\n"
    text = out.read_text("utf-8")
    assert "<title>a&amp;b, plain</title>" in text
    assert cells(text, "steps") == ["2", "2"]
    static, plain = cells(text, "similarity")
    assert static.startswith("Static(")
    assert plain == "none"
    assert not re.search("<td>width</td>", text)  # It is the same in both.
    assert len(cells(text, "torch")) == 2
    assert "<p>It has none.</p>" in text  # The plain network has no M to show.


def test_a_page_needs_nothing_else_and_shows_pictures_at_half_of_their_size_or_more(folder):
    text = report_page([open_run(folder / "a&b")])
    assert cells(text, "width") == ["0.05"]
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) >= 2  # curves and M
    widths = re.findall(r'min-width: (\d+)px" src="', text)
    for source, width in zip(sources, widths, strict=True):
        assert source.startswith("data:image/png;base64,iVBOR")
        picture = base64.b64decode(source.partition(",")[2])
        assert int(width) == Image.open(io.BytesIO(picture)).width // 2


@pytest.mark.parametrize(("kept", "steps"), [(None, 2), (1, 1), (0, 0)])
def test_an_unfinished_run_says_how_far_it_is(folder, tmp_path, kept, steps):
    run = open_run(shutil.copytree(folder / "plain", tmp_path / "run"))
    run.summary.unlink()
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:kept]))
    assert f"<td>steps</td><td>{steps} of 2, not finished</td>" in report_page([run])


def test_runs_in_folders_of_one_name_stay_apart(folder, tmp_path):
    other = tmp_path / "plain"
    shutil.copytree(folder / "a&b", other)
    text = report_page([open_run(folder / "plain"), open_run(other)])
    assert cells(text, "steps") == ["2", "2"]
    assert cells(text, "similarity")[0] == "none"


def test_what_runs_are_called_and_hold_is_text(folder, tmp_path):
    """No HTML of a folder, a key, a value or a picture's name gets into the page."""
    runs = [tmp_path / f"<b>&{index}" for index in range(2)]
    for run in runs:
        shutil.copytree(folder / "a&b", run)
        picture = next((run / "plots").glob("*.png")).read_bytes()
        (run / "plots" / 'maps-"><i>.png').write_bytes(picture)
        facts = json.loads((run / "environment.json").read_text())
        content = json.dumps(facts | {"<u>": "<s>&amp;", "device": ["<em>"]})
        (run / "environment.json").write_text(content)
    text = report_page([open_run(run) for run in runs])
    assert not re.search("<(b|i|u|s|em)>", text)
    assert "<title>&lt;b&gt;&amp;0, &lt;b&gt;&amp;1</title>" in text
    assert text.count("<h3>&lt;b&gt;&amp;") == 2
    assert 'alt="maps-&quot;&gt;&lt;i&gt;"' in text
    assert cells(text, "&lt;u&gt;") == ["&lt;s&gt;&amp;amp;"] * 2


def test_settings_in_which_any_run_differs(folder, tmp_path):
    runs = [tmp_path / name for name in "abc"]
    for run in runs:
        shutil.copytree(folder / "plain", run)
    config = json.loads((runs[2] / "config.json").read_text())
    config["fields"]["momentum"] = 0.5
    (runs[2] / "config.json").write_text(json.dumps(config))
    text = report_page([open_run(run) for run in runs])
    assert cells(text, "momentum") == ["0.9", "0.9", "0.5"]
    assert not re.search("<td>lr</td>", text)
