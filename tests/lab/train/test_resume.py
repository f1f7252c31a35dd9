import contextlib
import json
import os
import signal
from dataclasses import replace

import kills
import pytest
import torch
from kills import killed_after, outcome
from tiny_images import TINY, tiny_world, train_tiny

from neural_similarity.lab import cli
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.session import resume, train
from neural_similarity.lab.tasks import classification
from neural_similarity.lab.train import distributed, read_run
from neural_similarity.lab.train import run as run_module
from neural_similarity.lab.train.checkpoint import list_checkpoints
from neural_similarity.lab.train.files import hold_lock
from neural_similarity.lab.train.journal import Journal, cut_back
from neural_similarity.lab.train.stopping import catch_signals

pytestmark = pytest.mark.usefixtures("tiny")

# Checkpoints fall between lines of metrics and between drops, so nothing is at rest when saved.
STEPS = 14
EVERY = {"log_every": 4, "checkpoint_every": 3, "evaluate_every": 5}
MODEL = "Dynamic(Diagonal(), predictor=SphereNet(hidden=4))"
INTERRUPTED = replace(TINY, steps=STEPS, drops=(6, 11), validation=16, **EVERY)

BOTH = "last", "best"


def assert_same(run, reference):
    kills.assert_same(outcome(run, *BOTH), reference)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    with tiny_world():
        run = train(INTERRUPTED, out=tmp_path_factory.mktemp("reference") / "run")
        return outcome(run, *BOTH)


@pytest.mark.long
def test_killed_after_every_step_it_ends_bit_identical(reference, tmp_path):
    out = tmp_path / "run"
    killed_after(1, lambda: train(INTERRUPTED, out=out, device="cpu"))
    for step in range(2, STEPS + 1):
        torch.rand(step)
        killed_after(step, lambda: resume(out, device="cpu"))
    assert_same(resume(out, device="cpu"), reference)


WORDS = (
    "train cifar10-dynamic-dns --dataset embedded --width 0.1 --batch-size 8 --crop 1 "
    f"--padding zero --precision fp32 --steps {STEPS} --drops 6 11 --validation 16 --log-every 4 "
    "--checkpoint-every 3 --evaluate-every 5 --device cpu --similarity"
)


@pytest.fixture
def with_a_terminal():
    """SIGHUP means something, as it does not under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.long
@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_step_and_saves(reference, tmp_path, monkeypatch, capsys, number, code):
    def stepped(_journal, done):
        if done == 8:
            os.kill(os.getpid(), number)

    out = tmp_path / "run"
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "show_step", stepped)
        assert cli.main([*WORDS.split(), MODEL, "--out", str(out)]) == code
    assert signal.getsignal(number) is handler
    told = f"after step 8, saved; continue with nsim train --resume {out}"
    assert told in capsys.readouterr().err
    assert list_checkpoints(out / "checkpoints")[-1].name == "step-00000008"
    assert cli.main(["train", "--resume", str(out), "--device", "cpu"]) == 0
    assert_same(read_run(out), reference)


@pytest.fixture
def handler(request):
    """What handles a signal before; what it hears."""
    (number, action), heard = request.param, []
    before = signal.signal(number, action or (lambda *_: heard.append("as before")))
    yield heard
    signal.signal(number, before)


@pytest.mark.parametrize("handler", [(signal.SIGHUP, signal.SIG_IGN)], indirect=True)
@pytest.mark.usefixtures("handler")
def test_under_nohup_a_lost_terminal_is_ignored():
    with catch_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop() is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("handler", [(signal.SIGTERM, None)], indirect=True)
def test_a_second_signal_acts_as_before(handler):
    with catch_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop(), handler) == (signal.SIGTERM, [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert handler == ["as before"]


def put_into(folder, name):
    folder.mkdir()
    (folder / name).touch()


BEGUN = {
    "nothing": lambda _: None,
    "another process": lambda run: hold_lock(run.path / "config.json", "taken"),
    "metrics": lambda run: run.metrics.write_text("{}"),
    "a checkpoint": lambda run: (run.checkpoints / "step-00000003").mkdir(parents=True),
    "a user's file": lambda run: (run.path / "notes.txt").touch(),
    "a user's file of our name": lambda run: put_into(run.checkpoints, "config.json"),
    "a user's folder": lambda run: (run.checkpoints / "mine").mkdir(parents=True),
}


@pytest.mark.parametrize("begun", BEGUN)
def test_an_error_leaves_no_folder_but_where_something_began(tmp_path, monkeypatch, begun):
    """Another process goes on between this one's making the folder and its lock."""
    held = contextlib.ExitStack()

    def fail(run, *_):
        thing = BEGUN[begun](run)
        if begun == "another process":
            held.enter_context(thing)
        raise RuntimeError("out of memory")

    out = tmp_path / "run"
    with monkeypatch.context() as patch, held:
        patch.setattr("neural_similarity.lab.session.complete_run", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(TINY, out=out, device="cpu")
    there = {*tmp_path.rglob("*")}
    assert (out in there) == (begun != "nothing")
    if begun.startswith("a user"):
        assert resume(out, device="cpu").summary.exists()
        assert there <= {*tmp_path.rglob("*")}


def test_of_two_trainings_that_begin_at_once_one_wins(tmp_path, monkeypatch):
    """The other one finds the folder when it is about to make its own."""
    first, write = tmp_path / "run" / "config.json", run_module.write_json

    def write_second(path, content):
        first.parent.mkdir(exist_ok=True)
        first.write_text("{}")
        write(path, content)

    monkeypatch.setattr(run_module, "write_json", write_second)
    with pytest.raises(RunError, match="exists already; continue it with"):
        train(TINY, out=first.parent, device="cpu")
    assert ([*tmp_path.rglob("*")], first.read_text()) == ([first.parent, first], "{}")


@pytest.fixture
def stopped(tmp_path):
    """A run that was killed after step 8, with checkpoints of the steps 3 and 6."""
    killed_after(8, lambda: train(INTERRUPTED, out=tmp_path / "run", device="cpu"))
    return tmp_path / "run"


def test_without_a_whole_checkpoint_it_exits_with_1(stopped, capsys):
    for path in list_checkpoints(stopped / "checkpoints"):
        (path / "weights.safetensors").write_bytes(b"")
    assert cli.main(["train", "--resume", str(stopped)]) == 1
    assert "holds no whole checkpoint; train again" in capsys.readouterr().err


def test_finished_run_is_left_as_it_is(tmp_path, capsys):
    run = train_tiny(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    assert cli.main(["train", "--resume", str(run.path)]) == 0
    assert "is finished already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


@pytest.mark.parametrize(
    "content", [[], "x", {"steps": {}, "seconds": 1}, {"steps": 2}, "[" * 99999]
)
def test_a_summary_that_is_none_is_named(tmp_path, capsys, content):
    run = train_tiny(tmp_path, steps=1, drops=())
    text = content if str(content).startswith("[[") else json.dumps(content)
    run.summary.write_text(text, encoding="utf-8")
    assert cli.main(["train", "--resume", str(run.path)]) == 1
    assert f"{run.summary} cannot be read: " in capsys.readouterr().err


@pytest.mark.long
def test_resumption_is_recorded_and_a_change_of_threads_or_code_warned_of(
    stopped, caplog, monkeypatch
):
    place = "neural_similarity.lab.train.environment.checkout_commit"
    monkeypatch.setattr(place, lambda: "another")
    path = stopped / "environment.json"
    path.write_text(path.read_text().replace('"threads": 1', '"threads": 64'))
    resume(stopped, device="cpu")
    assert "threads is 1 and was 64" in caplog.text
    assert "commit is another and was" in caplog.text
    resumed = json.loads(path.read_text())["resumed"]
    assert [(process["step"], process["threads"]) for process in resumed] == [(6, 1)]


def test_a_run_goes_on_in_the_precision_that_it_began_with(stopped):
    path = stopped / "environment.json"
    assert INTERRUPTED.precision != "bf16"
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    assert json.loads(resume(stopped, device="cpu").summary.read_text())["precision"] == "bf16"
    assert [p["precision"] for p in json.loads(path.read_text())["resumed"]] == ["bf16"]


@pytest.mark.long
def test_two_processes_do_not_train_one_run(stopped, capsys):
    with hold_lock(stopped / "config.json", "taken"):
        assert cli.main(["train", "--resume", str(stopped)]) == 1
    assert f"another process trains {stopped} already" in capsys.readouterr().err
    assert not (stopped / "summary.json").exists()
    assert cli.main(["train", "--resume", str(stopped)]) == 0


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"step": 6}\n{"st')
    cut_back(path, 4)
    assert path.read_text() == '{"step": 2}\n{"step": 4}\n'


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_goes_on_with_its_threads_and_in_its_memory_format(tmp_path, monkeypatch, threads):
    short = {"threads": threads, "channels_last": False, "steps": 3, "drops": ()}
    recipe, real, seen = replace(TINY, **short), classification.batches_of, set()
    killed_after(2, lambda: train(recipe, out=tmp_path / "run", device="cpu"))

    def noted(images, run, runtime, **options):
        seen.add(runtime.channels_last)
        return real(images, run, runtime, **options)

    monkeypatch.setattr(classification, "batches_of", noted)
    monkeypatch.setattr(Journal, "show_step", lambda *_: seen.add(torch.get_num_threads()))
    resume(tmp_path / "run", device="cpu")
    assert seen == {False, threads}


def test_processes_that_torchrun_starts_anew_go_on(tmp_path, monkeypatch):
    """Also where the data changed the recipe, as a batch that is larger than they are."""
    recipe = replace(TINY, batch_size=100, steps=2, drops=())
    run = train(recipe, out=tmp_path / "run", device="cpu")
    assert run.recipe.batch_size == 64
    run.summary.unlink()
    monkeypatch.setattr(distributed, "was_restarted", lambda: True)
    assert train(recipe, out=tmp_path / "run", device="cpu").summary.exists()
    with pytest.raises(RunError, match="exists already"):
        train(replace(recipe, lr=0.5), out=tmp_path / "run", device="cpu")
