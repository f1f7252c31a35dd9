"""Every page of the reference has an example, which runs."""

import re
from pathlib import Path

import pytest

import neural_similarity as ns

FILE = Path(__file__).parents[1] / "examples" / "reference.md"
EXAMPLES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", FILE.read_text("utf-8"), re.M | re.S))


def test_every_public_name_has_an_example_and_nothing_else():
    assert list(EXAMPLES) == [name for name in dir(ns) if name != "__version__"]


LONG = ("load", "peft")  # a run, and the import of PEFT


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in EXAMPLES]
)
def test_an_example_runs_and_uses_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(re.findall(r"```python\n(.*?)```", EXAMPLES[name], re.S))
    assert re.search(rf"\bns\.{name}\b", program)
    assert "assert " in program or "print" in program
    exec(compile(program, name, "exec"), {})
