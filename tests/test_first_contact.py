"""The script of the first minutes with a GPU: all that it runs exists, and ends in time."""

import re
import shlex
import sys

import gpu_first_contact
import pytest
import torch

from benchmarks.__main__ import BENCHES
from benchmarks.__main__ import main as benchmark
from neural_similarity import models

PLAN_A = 420
"""Seconds of the first of two commands; docs/evidence/gpu.md says what the second is."""


@pytest.fixture
def steps(tmp_path):
    return {step.title: step for step in gpu_first_contact.steps(tmp_path)}


def test_its_steps_end_in_time_in_order_and_have_their_files(steps):
    assert sum(step.seconds for step in steps.values()) <= PLAN_A
    titles = [title.partition(",")[0] for title in steps]
    assert titles[1:] == ["Operators", "Layers", "One update", "Correctness"]
    words = [word for step in steps.values() for word in step.words if word.endswith(".py")]
    assert len(words) > 4
    assert all((gpu_first_contact.ROOT / word).exists() for word in words)


@pytest.mark.parametrize("title", ["Operators, bf16", "Layers, bf16"])
def test_the_benchmarks_take_their_options(steps, title, capsys, monkeypatch):
    """All that they find wrong is that there is no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark(steps[title].words[2:]) != 0
    assert "`device` must be present, got 'cuda'" in capsys.readouterr().err


def test_what_is_unmeasured_has_commands_that_exist():
    text = (gpu_first_contact.ROOT / "docs/evidence/gpu.md").read_text("utf-8")
    table = text.partition("## Unmeasured")[2].partition("## If you")[0]
    scripts = set(re.findall(r"python (scripts/\w+\.py)", table))
    assert scripts == {"scripts/gpu_first_contact.py"}
    assert {*re.findall(r"-m benchmarks (\w+)", table)} <= BENCHES.keys()


def test_a_step_tells_how_it_ended(tmp_path):
    for seconds, words, end in (
        (60, ["-c", "print(1)"], "exit code 0"),
        (60, ["-c", "1 / 0"], "exit code 1"),
        (1, ["-c", "import time; time.sleep(60)"], "not done after 1 s"),
    ):
        with (tmp_path / "report.md").open("w") as report:
            step = gpu_first_contact.Step("Short", seconds, words)
            assert gpu_first_contact.carry_out(step, report).endswith(end), shlex.join(words)


@pytest.mark.long
def test_the_profiled_program_runs_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(models, "build", lambda *_, **__: torch.nn.Conv2d(3, 8, 3))
    program = gpu_first_contact.PROFILE.replace(".cuda()", "").replace('"cuda"', '"cpu"')
    program = program.replace("ProfilerActivity.CPU, ProfilerActivity.CUDA", "ProfilerActivity.CPU")
    printed = []
    exec(program.replace("cuda_time_total", "cpu_time_total"), {"print": printed.append})
    assert "aten::" in printed[0]


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_first_contact.py", "--out", str(tmp_path / "report")])
    assert gpu_first_contact.main() == 1
    assert capsys.readouterr().err == "torch finds no GPU here\n"
    assert not (tmp_path / "report").exists()
