"""The script for a first contact with a GPU, without one: what its steps say is kept as they go."""

import sys
from pathlib import Path
from types import SimpleNamespace

import gpu_first_contact as contact
import pytest
import torch


@pytest.fixture
def card(monkeypatch):
    card = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)


def contacted(monkeypatch, folder, *steps):
    monkeypatch.setattr(contact, "steps", lambda _: steps)
    monkeypatch.setattr(sys, "argv", ["gpu_first_contact.py", "--out", str(folder)])
    assert contact.main() == 0
    return (folder / "report.md").read_text()


@pytest.mark.usefixtures("card")
def test_a_step_that_fails_or_is_late_ends_no_other_and_its_words_are_kept(
    monkeypatch, tmp_path, capsys
):
    code = "import os; print(os.environ.get('CUBLAS_WORKSPACE_CONFIG')); "
    late = contact.Step("Late", 2, ["-c", "import time; print('began'); time.sleep(60)"])
    text = contacted(
        monkeypatch,
        tmp_path / "new",
        contact.Step("Fails", 60, ["-c", "raise SystemExit('no')"]),
        late,
        contact.Step("Works", 60, ["-c", code], contact.TESTED),
    )
    assert text.startswith("# NVIDIA H200, torch ")
    fails, works = text.index("## Fails\n\n```\nno\n"), text.index("## Works\n\n```\n:4096:8\n")
    assert fails < text.index("## Late\n\n```\nbegan\n") < works
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Fails", "Late", "Works"]
    assert lines[0].endswith(" s, exit code 1")
    assert lines[1].endswith(" s, not done after 2 s")
    assert all(line in text for line in lines)


@pytest.mark.usefixtures("card")
def test_what_was_said_is_there_while_a_step_runs(monkeypatch, tmp_path):
    report = tmp_path / "report.md"
    code = f"import pathlib; print('early'); print(pathlib.Path({str(report)!r}).read_text()[-6:])"
    text = contacted(monkeypatch, tmp_path, contact.Step("Reads", 60, ["-c", code]))
    assert text.count("early\n") == 2


def test_tests_run_first_without_the_plugin_that_warns_of_several_processes(tmp_path):
    first, *others = contact.steps(tmp_path)
    assert first.words[:6] == ["-m", "pytest", "-p", "no:benchmark", "-q", "-m"]
    assert first.environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert first.seconds <= 120
    assert {"test_triton.py", "test_graph.py"} < {Path(word).name for word in first.words}
    assert [step.title for step in others] == ["Operators, bf16", "One update", "The quick start"]


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_first_contact.py", "--out", str(tmp_path)])
    assert contact.main() == 1
    assert "no GPU" in capsys.readouterr().err
