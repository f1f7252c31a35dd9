"""What is said of runs by several processes, from rates known beforehand."""

import json

from benchmarks import distributed


def test_efficiency_is_that_of_the_fastest_runs(tmp_path, monkeypatch, capsys):
    rates = iter([100.0, 150.0, 120.0, 130.0])  # by 1, 2, 1 and 2 processes
    ran = []

    def summary(count, _):
        ran.append(count)
        return {"images_per_second": next(rates), "parameters": 1_000_000}

    monkeypatch.setattr(distributed, "summary", summary)
    out = tmp_path / "new" / "deep"
    words = ["--rounds", "2", "--processes", "1", "2", "--out", str(out)]
    assert distributed.main(words) == 0
    assert ran == [1, 2, 1, 2]
    told = capsys.readouterr().out
    assert "| 1 | 120 | 1.00 |\n| 2 | 150 | 0.62 |" in told
    record = json.loads((out / "distributed.json").read_text())
    assert record["images_per_second"] == {"1": 120.0, "2": 150.0}
