"""The script of the campaign: what it names is there."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "campaign.py"


@pytest.fixture
def campaign():
    spec = importlib.util.spec_from_file_location("campaign", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_and_part_that_it_runs_is_there(campaign, monkeypatch):
    campaign.require_files(["writes", "cli", "forged"])
    with pytest.raises(SystemExit, match=r"there is no tests/reliability/test_nothing\.py"):
        campaign.require_files(["nothing"])
    monkeypatch.setitem(campaign.FILES, "what is gone", "tests/test_gone.py")
    with pytest.raises(SystemExit, match=r"there is no tests/test_gone\.py"):
        campaign.require_files([])


def test_errors_of_every_kind_are_counted(campaign):
    counts = {"kills": 2, "kills, errors": 1, "full disks": 1_000, "full disks, errors": 2}
    table = campaign.table_of_works({"a": counts, "b": {"tried": 3, "errors": 0}})
    assert table.splitlines()[2:] == ["| a | 2 |  |  | 1,000 |  |  |  | 3 |"]
    assert "| b | 3 | 0 |" in campaign.table_of_parts({"a": counts, "b": {"tried": 3, "errors": 0}})
