"""Several processes compute what one computes; of a death the others say so, and all go on."""

import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import dying
import pytest
import tiny_classes
import torch
import torchrun
from kills import assert_same, outcome
from safetensors.torch import load_file
from tiny_images import TINY, tiny_world
from torchrun import launch

from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity.lab.errors import PeerDied, RunError
from neural_similarity.lab.tasks.few_shot.evaluation import read_evaluation
from neural_similarity.lab.train import distributed, peers
from neural_similarity.lab.train.checkpoint import WEIGHTS, list_checkpoints
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import read_run

FLAGS = (
    *("quickstart", "--similarity", "Dynamic(Diagonal(), predictor=SphereNet(hidden=4))"),
    *("--width", "0.1", "--batch-size", "8", "--crop", "1", "--padding", "zero", "--steps", "6"),
    *("--drops", "4", "--precision", "fp32", "--log-every", "2", "--validation", "16"),
    *("--evaluate-every", "2", "--checkpoint-every", "1", "--device", "cpu", "--out", "run"),
)
DEATHS = [
    (2, "1:load:kill"),
    (2, "0:step:kill"),
    (2, "1:step:raise"),
    (2, "0:save:kill"),
    (2, "0:keep:kill"),
    (2, "1:finish:exit"),
    (4, "2:judge:kill"),
    (4, "3:step:kill"),
]


def nsim_lines(text):
    return [line for line in text.splitlines() if line.startswith("nsim: ")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the run of so many processes comes to where none dies."""

    @cache
    def whole(processes):
        folder = tmp_path_factory.mktemp("whole")
        result = launch(processes, dying.__file__, "none::", "train", *FLAGS, cwd=folder)
        assert result.returncode == 0, result.stderr
        return outcome(read_run(folder / "run"), "last", "best")

    return whole


@pytest.mark.long
@pytest.mark.parametrize(("processes", "death"), DEATHS)
def test_the_others_say_which_process_died_and_all_go_on(tmp_path, undisturbed, processes, death):
    """In one line; begun again, the run ends with the weights of one that nothing disturbed."""
    rank, place, how = death.split(":")
    result = launch(processes, dying.__file__, death, "train", *FLAGS, cwd=tmp_path)
    assert result.returncode == 1
    assert "gloo" not in result.stderr
    assert result.stderr.count("Traceback") == 1, result.stderr  # torchrun's own
    run = Path("run")
    goes_on = f"continue with nsim train --resume {run}"
    goes_on = "run the command again" if place == "load" else goes_on
    own = ["nsim: this process alone fails"] if how == "raise" else []
    others = f"nsim: of {processes} processes, rank {rank} died; {goes_on}"
    assert sorted(nsim_lines(result.stderr)) == sorted([*own, others]), result.stderr
    assert (tmp_path / run).exists() == (place != "load")
    words = FLAGS if place == "load" else ("--resume", "run", "--device", "cpu")
    again = launch(processes, dying.__file__, "none::", "train", *words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    done = read_run(tmp_path / run)
    assert_same(outcome(done, "last", "best"), undisturbed(processes))
    names = [path.name for path in list_checkpoints(done.checkpoints)]
    assert names == ["step-00000005", "step-00000006"]
    assert not list(done.path.rglob(".*"))


@pytest.mark.long
def test_what_all_processes_say_is_said_once(tmp_path):
    result = launch(2, dying.__file__, "none::", "train", *FLAGS, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(" training, ") == 1
    again = launch(2, dying.__file__, "none::", "train", *FLAGS, cwd=tmp_path)
    (line,) = nsim_lines(again.stderr)
    assert "exists already" in line


@pytest.mark.parametrize(
    ("recipe", "field", "count"),
    [
        (replace(TINY, batch_size=9), "batch_size", 9),
        (replace(tiny_classes.BY_NAMES, batch_size=7), "batch_size", 7),
        (replace(tiny_classes.BY_TASKS, meta_batch=3), "meta_batch", 3),
    ],
    ids=["classes", "names", "tasks"],
)
def test_a_batch_that_does_not_divide_is_refused(tmp_path, monkeypatch, recipe, field, count):
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    began = Mock(side_effect=AssertionError("something began"))
    for place in ("_load_task", "choose_runtime", "create_run"):
        monkeypatch.setattr(session, place, began)
    monkeypatch.setattr(distributed, "join_processes", began)
    message = f"`{field}` must be a multiple of 2, the number of processes, got {count}"
    with pytest.raises(ValueError, match=message):
        session.train(recipe, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("tiny")
def test_a_resumption_by_processes_that_cannot_share_a_batch_is_refused(tmp_path, monkeypatch):
    run = session.train(TINY, out=tmp_path / "run", device="cpu")
    run.summary.unlink()
    monkeypatch.setattr(distributed, "launched_processes", lambda: 3)
    with pytest.raises(ValueError, match=r"`batch_size` must be a multiple of 3, .* got 8"):
        session.resume(run.path, device="cpu")


@pytest.mark.usefixtures("tiny")
def test_a_batch_of_all_images_is_cut_to_equal_shares(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "process_count", lambda: 3)
    recipe = replace(TINY, batch_size=99)
    assert session._load_task(recipe, tmp_path).recipe.batch_size == 63


@pytest.fixture
def two_processes(monkeypatch):
    """Of which the other has died."""
    dead = 2**22 + 1
    here = peers.socket.gethostname()
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "peers", lambda: [(here, os.getpid()), (here, dead)])


@pytest.fixture
def heard():
    """What the handler of SIGTERM hears that was there before."""
    found, before = [], signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: found.append("as before"))
    yield found
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("two_processes")
def test_sigterm_after_a_death_names_it_and_acts_as_before_else(monkeypatch, heard):
    with pytest.raises(PeerDied, match="of 2 processes, rank 1 died; run the command again"):
        with peers.report_dead_processes():
            os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(distributed, "peers", lambda: [])
    with peers.report_dead_processes():
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == ["as before"]


@pytest.mark.usefixtures("two_processes")
def test_errors_of_this_process_stay_its_own():
    with pytest.raises(RuntimeError, match=r"^my own$"), peers.report_dead_processes():
        raise RuntimeError("my own")
    with pytest.raises(PeerDied, match="rank 1 died"), peers.report_dead_processes():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer")


MISMATCH = "[enforce fail at pair.cc:454] op.preamble.length <= op.nbytes.\n64 vs 32 (gloo)"


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("error", [RuntimeError(MISMATCH), distributed.dist.DistError(MISMATCH)])
def test_without_a_death_the_error_itself_is_passed_on(monkeypatch, elsewhere, error):
    here = peers.socket.gethostname()
    processes = [(here, os.getpid()), ("another machine" if elsewhere else here, os.getpid())]
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "peers", lambda: processes)
    monkeypatch.setattr(peers, "WAIT_SECONDS", 0.05)
    failing = pytest.raises(RunError, match=r"could not communicate")
    with failing as found, peers.report_dead_processes():
        raise error
    assert not isinstance(found.value, PeerDied)
    assert str(found.value).endswith(f": {MISMATCH}")
    assert ("died" in str(found.value)) == elsewhere


@pytest.mark.usefixtures("two_processes")
def test_torchruns_sigterm_does_not_cut_short_what_a_broken_connection_says(monkeypatch, heard):
    """It comes once, while the dead process is looked for or after."""
    find = peers._dead_ranks

    def find_and_be_ended(*seconds):
        if seconds:  # The handler of the signal looks without waiting.
            os.kill(os.getpid(), signal.SIGTERM)
        return find(*seconds)

    for during in (True, False):
        monkeypatch.setattr(peers, "_dead_ranks", find_and_be_ended if during else find)
        with pytest.raises(PeerDied, match="rank 1 died"), peers.report_dead_processes():
            raise RuntimeError("gloo")
        if not during:
            os.kill(os.getpid(), signal.SIGTERM)
        assert not heard
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.pop() == "as before"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    torchrun.train_all(folder)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def together(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    torchrun.torchrun(request.param, torchrun.__file__, folder)
    return folder


def weights(run):
    return load_file(list_checkpoints(run / "checkpoints")[-1] / WEIGHTS)


def assert_close(run, other, **tolerance):
    torch.testing.assert_close(weights(run), weights(other), **tolerance)
    lines, others = read_lines(run / "metrics.jsonl"), read_lines(other / "metrics.jsonl")
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, expected in zip(lines, others, strict=True):
        for key in {"loss", "accuracy", "validation_loss", "validation_accuracy"} & set(expected):
            assert line[key] == pytest.approx(expected[key], rel=1e-4), (line, expected)


@pytest.mark.long
@pytest.mark.parametrize("name", ["whole", "parts", "tasks", "names"])
def test_processes_compute_what_one_computes(alone, together, name):
    assert_close(together / name, alone / name, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_scores_are_those_of_one_process(alone, together):
    found, expected = (read_json(f / "whole/summary.json") for f in (together, alone))
    assert found["test_correct"] == expected["test_correct"]
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tasks", "names"])
def test_evaluations_are_those_of_one_process(alone, together, name):
    """Of a method that learns from every task's images, and of one that keeps the embedding."""
    (found,), (expected,) = (list((f / name / "evaluations").iterdir()) for f in (together, alone))
    assert torch.equal(read_evaluation(found).correct, read_evaluation(expected).correct)


@pytest.mark.long
def test_a_signal_to_one_process_stops_all_and_they_resume_exactly(together):
    assert_close(together / "parts", together / "whole", rtol=0, atol=0)


@pytest.mark.long
def test_one_process_resumes_what_several_began(alone, together, monkeypatch):
    monkeypatch.setattr(torchrun.models, "set_norms", torchrun.without_norms)
    with tiny_world():
        run = session.resume(together / "half", device="cpu")
    assert_close(run.path, alone / "whole", rtol=1e-4, atol=1e-5)
