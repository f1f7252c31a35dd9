"""A queue of rows: stopped in time, packed, unpacked elsewhere, gone on with, never repeated."""

import json
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import run_queue

from neural_similarity.lab import cli

ROOT = Path(__file__).parents[1]
TABLES = """
import sys
from neural_similarity.lab import cli
from neural_similarity_paper.tables import TABLES
from neural_similarity_paper.tables.rows import Panel, Row, Table

TABLES["quick"] = Table("Quick", (Panel("Quick", "error", (Row("quick", "quickstart", 1.0),)),))
sys.exit(cli.main(["reproduce", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    "queue", sorted((ROOT / "scripts/queues").glob("*.txt")), ids=lambda q: q.stem
)
def test_every_line_of_a_queue_is_a_command(queue, capsys):
    """What `--dry-run` prints, in this process."""
    for words in run_queue.read_queue(queue, ["--results", str(ROOT / "results")]):
        assert cli.main(["reproduce", *words, "--print"]) == 0, words
    assert "nsim " in capsys.readouterr().out


@pytest.fixture
def quick_queue(tmp_path, monkeypatch):
    """A queue of two lines of the quick start, in a folder of its own."""
    (tmp_path / "reproduce.py").write_text(TABLES)
    program = (run_queue.sys.executable, str(tmp_path / "reproduce.py"))
    monkeypatch.setattr(run_queue, "PROGRAM", program)
    (tmp_path / "queue.txt").write_text(
        "# Tiny.\nquick --budget 0.004 --seeds 1\n\nquick --budget 2 --seeds 1  # Long.\n"
    )
    return tmp_path / "queue.txt"


class Watched(subprocess.Popen):
    """A process whose time is over once the long run has made an update."""

    def wait(self, timeout=None):
        while self.poll() is None:
            if timeout != run_queue.GRACE and any(Path("runs").glob("quickstart-2-*/metrics*")):
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.1)
        return self.returncode


@pytest.mark.long
def test_a_queue_stops_in_time_comes_home_and_goes_on(quick_queue, tmp_path, monkeypatch):
    for name in ("card", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "card")
    monkeypatch.setattr(run_queue.subprocess, "Popen", Watched)
    packs = tmp_path / "packs"
    words = [str(quick_queue), "--home", str(packs), "--device", "cpu"]
    assert run_queue.main([*words, "--seconds", "3600"]) == 1
    assert [path.name for path in sorted(packs.iterdir())] == ["records.tar", "unfinished-1.tar"]
    with tarfile.open(packs / "records.tar") as pack:
        assert pack.getnames() == ["results/quickstart/0.004/1.json", "queue.log"]
    monkeypatch.chdir(tmp_path / "home")
    assert run_queue.main([str(packs), "--unpack"]) == 0
    log = Path("queue.log").read_text().splitlines()
    told = [line for line in log if line.startswith("queue: ")]
    assert [line.partition("exit code ")[2].partition(",")[0] for line in told] == ["0", "143"]
    (run,) = Path("runs").iterdir()
    (checkpoint,) = run.glob("checkpoints/step-*")
    steps = int(checkpoint.name.removeprefix("step-"))
    fields = json.loads((run / "config.json").read_text())["fields"]
    assert 0 < steps < fields["steps"]
    lines = run_queue.read_queue(quick_queue, [])
    for words in lines:
        assert run_queue.run_line([*words, "--print"], 60) == 0
    told = Path("queue.log").read_text()
    assert "Quick, budget 0.004: 0 of 1 records missing" in told
    assert f"nsim train --resume runs/{run.name} " in told


def test_what_has_no_time_is_not_begun(quick_queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = run_queue.read_queue(quick_queue, ["--device", "cpu"])
    assert lines[0] == ["quick", "--budget", "0.004", "--seeds", "1", "--device", "cpu"]
    assert run_queue.run_queue(lines, run_queue.LEAST - 1) == 2
    assert Path("queue.log").read_text().count("exit code not begun") == 2
    assert not Path("runs").exists()


def test_unfinished_runs_come_with_their_newest_checkpoint_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("done", "study/open"):
        for step in (9, 10):
            checkpoint = Path(f"runs/{name}/checkpoints/step-{step}")
            checkpoint.mkdir(parents=True)
            (checkpoint / "weights").touch()
        Path(f"runs/{name}/config.json").touch()
    Path("runs/done/summary.json").touch()
    ((*files,),) = run_queue.unfinished_runs()
    kept = ["runs/study/open/checkpoints/step-10/weights", "runs/study/open/config.json"]
    assert sorted(path.as_posix() for path in files) == kept
