"""Nothing that only POSIX has is called outside a guard, as far as Linux can show it."""

import subprocess
import sys
from pathlib import Path

import pytest

SHORT = ["--steps", "2", "--drops", "1"]


def nsim(*words):
    program = Path(__file__).with_name("windows.py")
    command = [sys.executable, str(program), *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_the_quick_start_trains_evaluates_and_exports_without_posix(tmp_path):
    run = tmp_path / "run"
    assert "test accuracy" in nsim("train", "quickstart", *SHORT, "--out", run)
    assert "test accuracy" in nsim("train", "--resume", run)
    file = tmp_path / "model.safetensors"
    other = tmp_path / f".{file.name}.1.partial"
    other.touch()
    nsim("export", run, "--format", "safetensors", "--out", file)
    assert file.exists()
    assert other.exists()  # Another process may be writing to it.


@pytest.mark.long
def test_few_shot_learning_and_tables_need_no_posix(tmp_path):
    run = tmp_path / "run"
    nsim("train", "fewshot-quickstart", *SHORT, "--out", run)
    assert "20 tasks of test classes" in nsim("evaluate", run, "--tasks", 20)
    lines = nsim("reproduce", "4", "--results", tmp_path, "--print", "--seeds", "1").splitlines()
    assert sum(line.startswith("nsim train ") for line in lines) == 14
