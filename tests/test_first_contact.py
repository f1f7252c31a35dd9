"""The script for a first contact with a GPU, without one: what its steps say is kept as they go."""

import sys
from types import SimpleNamespace

import gpu_first_contact as contact
import torch


def test_a_step_that_fails_or_is_late_ends_no_other_and_its_words_are_kept(
    monkeypatch, tmp_path, capsys
):
    report = tmp_path / "new" / "report.md"
    steps = (
        contact.Step("Fails", 60, ["-c", "raise SystemExit('no')"]),
        contact.Step("Late", 2, ["-c", "import time; print('began'); time.sleep(60)"]),
        contact.Step("Reads", 60, ["-c", f"print(open({str(report)!r}).read()[-11:])"]),
        contact.Step(
            "Works",
            60,
            ["-c", "import os; print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"],
            contact.TESTED,
        ),
    )
    card = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(contact, "steps", lambda _: steps)
    monkeypatch.setattr(sys, "argv", ["gpu_first_contact.py", "--out", str(report.parent)])
    assert contact.main() == 0
    text = report.read_text()
    assert text.startswith("# NVIDIA H200, torch ")
    assert text.index("## Fails\n\n```\nno\n") < text.index("## Late\n\n```\nbegan\n")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Fails", "Late", "Reads", "Works"]
    assert lines[0].endswith(" s, exit code 1")
    assert lines[1].endswith(" s, not done after 2 s")
    assert all(line in text for line in lines)
    assert "## Reads\n\n```\nReads\n" in text  # What came before is there while a step runs.
    assert "## Works\n\n```\n:4096:8\n" in text


def test_all_steps_fit_into_ten_minutes_with_their_starts(tmp_path):
    assert sum(step.seconds for step in contact.steps(tmp_path)) <= 480
