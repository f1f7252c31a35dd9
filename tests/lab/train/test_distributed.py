"""The law of several processes: they compute what one computes."""

import pytest
import torch
import torchrun
from safetensors.torch import load_file
from tiny_images import tiny_world

from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity.lab.tasks.few_shot.evaluation import read_evaluation
from neural_similarity.lab.train.checkpoint import WEIGHTS, list_checkpoints
from neural_similarity.lab.train.journal import read_lines

pytestmark = pytest.mark.long


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


@pytest.mark.parametrize("name", ["whole", "parts", "tasks", "names"])
def test_processes_compute_what_one_computes(alone, together, name):
    assert_close(together / name, alone / name, rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_one_process(alone, together):
    found, expected = (read_json(f / "whole/summary.json") for f in (together, alone))
    assert found["test_correct"] == expected["test_correct"]
    assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["tasks", "names"])
def test_evaluations_are_those_of_one_process(alone, together, name):
    """Of a method that learns from every task's images, and of one that keeps the embedding."""
    (found,), (expected,) = (list((f / name / "evaluations").iterdir()) for f in (together, alone))
    assert torch.equal(read_evaluation(found).correct, read_evaluation(expected).correct)


def test_a_signal_to_one_process_stops_all_and_they_resume_exactly(together):
    assert_close(together / "parts", together / "whole", rtol=0, atol=0)


def test_one_process_resumes_what_several_began(alone, together, monkeypatch):
    monkeypatch.setattr(torchrun.models, "set_norms", torchrun.without_norms)
    with tiny_world():
        run = session.resume(together / "half", device="cpu")
    assert_close(run.path, alone / "whole", rtol=1e-4, atol=1e-5)
