"""Tables from records written by hand."""

import json

import pytest
import torch
from matplotlib.figure import Figure
from tiny_results import PLAIN, STATIC, TINY_TABLE, edit, write_by_hand
from tiny_results import tiny_table as tiny_table

from benchmarks.measure import Timing
from benchmarks.report import Report, Row, write_report
from neural_similarity.lab import cli
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import recipe_to_json
from neural_similarity_paper.tables import (
    TABLES,
    draw_report,
    make_report,
    to_markdown,
)
from neural_similarity_paper.tables.markdown import signed_number
from neural_similarity_paper.tables.records import budget_name

pytestmark = pytest.mark.usefixtures("tiny_table")


def bits(count, seed, share):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=generator) < share).tolist()


def cells(markdown, label):
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def markdown_of(results, budget=1.0):
    return to_markdown(make_report(TINY_TABLE, budget=budget, results=results))


def test_every_row_of_tables_1_to_4_has_its_recipe_on_the_panels_data():
    for name in ("1", "2", "3", "4"):
        for panel in TABLES[name].panels:
            assert panel.rows[0].recipe == f"{panel.title.lower().replace('-', '')}-cnn"
            for row in panel.rows:
                assert RECIPES[row.recipe].dataset == panel.title.lower().replace("-", "")


def test_top_5_errors_are_shown_where_every_run_has_one(tmp_path):
    for seed, top5 in ((1, 12.0), (2, 16.0)):
        path = write_by_hand(tmp_path, PLAIN, seed, [1, 1, 0, 0])
        edit(path, "summary", test_top5_error_percent=top5, test_error_percent=1.0)
    assert cells(markdown_of(tmp_path), "plain")[3] == "50.00 ± 0.00, top-5 14.00 ± 2.83"
    write_by_hand(tmp_path, PLAIN, 3, [1, 1, 0, 0])
    assert cells(markdown_of(tmp_path), "plain")[3] == "50.00 ± 0.00"


def write_three_seeds(results):
    """Errors 40, 60, 20 % and 20, 20, 20 %: differences -20, -40, 0."""
    for seed, right in enumerate(([1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 0]), 1):
        write_by_hand(results, PLAIN, seed, right, seconds=60)
        write_by_hand(results, STATIC, seed, [1, 1, 1, 1, 0], seconds=60 * seed)


def test_row_by_hand(tmp_path):
    write_three_seeds(tmp_path)
    text = markdown_of(tmp_path)
    assert cells(text, "plain")[2:7] == ["10.00", "40.00 ± 20.00", "3", "", ""]
    row = cells(text, "static")
    assert row[1:5] == [f"`{STATIC}`", "9.00 (−1.00)", "20.00 ± 0.00", "3"]
    assert row[5] == "−20.00 [−69.68, +29.68]"  # 20 · 4.302653 / √3 = 49.68
    # Images right more often than the baseline's: 1/3, 1/3, 0, 1/3, 0 of 3 seeds; s = 0.1826.
    assert row[6] == "−20.00 [−36.00, −4.00]"
    # Mean squares: images 1,000, the rest 2,000. Images scatter by chance alone: that by seed.
    assert row[7] == row[5]
    # Student's √3 with two degrees of freedom; that by pooled scatter, √3 with four, is smaller.
    assert row[8:10] == ["0.225", "0.014"]
    assert row[10:] == ["1.23 M", "67 M", "2:00"]


def test_the_picture_has_the_intervals_of_the_table_and_adaptations_their_numbers(
    tmp_path, monkeypatch
):
    write_three_seeds(tmp_path)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_report(make_report(TINY_TABLE, budget=1, results=tmp_path), tmp_path / "table.png")
    found = []
    for middle, _, (bars,) in drawn[0].axes[1].containers:
        (((low, _), (high, _)),) = bars.get_segments()
        found.append((low, middle.get_xdata().item(), high))
    expected = [(-69.68, -20, 29.68), (-36, -20, -4)]
    assert found == [pytest.approx(interval, abs=0.01) for interval in expected]
    for record in (tmp_path / STATIC).rglob("*.json"):
        edit(record, "summary", trained=81, bytes=1700)
    draw_report(make_report(TINY_TABLE, budget=1, results=tmp_path), tmp_path / "table.png")
    (point,) = drawn[1].axes[2].containers
    assert point.lines[0].get_xydata().tolist() == [[81, pytest.approx(20)]]
    last = [cells(markdown_of(tmp_path), row)[-2:] for row in ("network", "static", "plain")]
    assert last == [["trained", "file, kB"], ["81", "1.7"], ["", ""]]


def test_without_a_common_seed_there_is_no_difference(tmp_path):
    write_by_hand(tmp_path, PLAIN, 1, [1, 0])
    write_by_hand(tmp_path, STATIC, 2, [1, 0])
    assert cells(markdown_of(tmp_path), "static")[5:7] == ["no common seed"] * 2


def test_rows_without_runs_and_the_schedule_are_labelled(tmp_path):
    code = {"version": "0.1.0", "commit": None, "dirty": False}
    write_by_hand(tmp_path, PLAIN, 1, [1, 0], budget=0.5, code=code)
    text = markdown_of(tmp_path, 0.5)
    assert text.startswith("# A tiny table (reduced schedule, budget 0.5: 3 of 6 steps)\n")
    assert cells(text, "static")[2:] == ["9.00 (−1.00)", "not run", "0", *[""] * 8]
    assert "Run on A CPU, 1 thread, fp32, torch 2.15; code version 0.1.0." in text
    full = markdown_of(tmp_path)
    assert full.startswith("# A tiny table (full schedule, budget 1: 6 of 6 steps)\n")
    assert "Runs at other budgets: 0.5" in full
    assert markdown_of(tmp_path, 2).startswith("# A tiny table (extended schedule, budget 2")


def test_the_budget_is_that_of_most_rows(tmp_path):
    def budget():
        return make_report(TINY_TABLE, results=tmp_path).budget

    assert budget() == 1
    write_by_hand(tmp_path, PLAIN, 1, [1, 0], budget=0.5)
    write_by_hand(tmp_path, PLAIN, 1, [1, 0], budget=0.25)
    assert budget() == 0.5
    write_by_hand(tmp_path, STATIC, 1, [1, 0], budget=0.25)
    assert budget() == 0.25
    for record in (tmp_path / STATIC).rglob("*.json"):
        record.unlink()
    assert budget() == 0.5
    (tmp_path / PLAIN / "0.5").rename(tmp_path / PLAIN / "old")
    assert budget() == 0.25


def test_budget_as_a_folder():
    assert [budget_name(budget) for budget in (1, 1.0, 0.0625, 2.0)] == ["1", "1", "0.0625", "2"]


def test_records_of_other_data_are_not_compared(tmp_path):
    write_by_hand(tmp_path, PLAIN, 1, [1, 0])
    write_by_hand(tmp_path, STATIC, 1, [1, 0], data={"name": "tiny", "digest": "e"})
    with pytest.raises(ValueError, match="`results` must be of the same data to be compared, got"):
        markdown_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correct": {"images": 9, "packed": "wA=="}}, "must hold 2 bytes for 9 images, got 1"),
        ({"summary": {"test_accuracy": 0.25}}, "its images say 0.5, its summary"),
        ({"summary": {"test_accuracy": 0.75}}, "its images say 0.5, its summary"),
        ({"config": {}}, "it lacks"),
    ],
)
def test_damaged_record_is_named(tmp_path, changes, message):
    write_by_hand(tmp_path, PLAIN, 1, [1, 0], **changes)
    with pytest.raises(ValueError, match=f"1.json cannot be read as a run record: .*{message}"):
        markdown_of(tmp_path)


def test_command_prints_the_table(tmp_path, capsys, monkeypatch):
    write_by_hand(tmp_path, PLAIN, 1, [1, 1, 0, 0], budget=0.5)
    assert cli.main(["table", "tiny", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == markdown_of(tmp_path, 0.5)
    assert cli.main(["table", "tiny", "--results", str(tmp_path), "--budget", "1"]) == 0
    assert capsys.readouterr().out == markdown_of(tmp_path)
    monkeypatch.chdir(tmp_path)  # Where there are none.
    assert cli.main(["table", "tiny"]) == 0
    told = capsys.readouterr()
    assert told.err == "nsim: no records in results/\n"
    assert "not run" in told.out


def test_command_writes_markdown_and_picture(tmp_path, capsys):
    out = tmp_path / "docs" / "tiny.v1.md"
    assert cli.main(["table", "tiny", "--results", str(tmp_path), "--out", str(out)]) == 0
    picture = out.with_name("tiny.v1.png")
    assert capsys.readouterr().out.splitlines() == [str(out), str(picture)]
    assert out.read_text().endswith("(tiny.v1.png)\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def write_costs(folder, **ratios):
    """A report of `python -m benchmarks recipes` with these ratios, each plus and minus a tenth."""
    group = {"what": "updates by recipe", "dtype": "bf16", "batch": 128, "threads": 1}
    rows = [Row(group=group, name=PLAIN, baseline=True, times={"step": timing(1.0, 0.0)})]
    rows += [Row(group=group, name=n, times={"step": timing(r, 0.1)}) for n, r in ratios.items()]
    rows += [Row(group=group | {"dtype": "fp32"}, name=STATIC, times={"step": timing(9.0, 0.1)})]
    environment = {"device": "cpu", "cpu": "A CPU", "torch": "2.15", "command": "nsim bench"}
    environment["commit"] = "0123456789abcdef"
    environment["recipes"] = {name: recipe_to_json(RECIPES[name]) for name in (PLAIN, STATIC)}
    facts = {"environment": environment, "quick": False, "others": 0.0, "rows": tuple(rows)}
    report = Report(bench="recipes", **facts)
    return write_report(report, folder)


def timing(ratio, reach):
    low, high = ratio - reach, ratio + reach
    return Timing(seconds=ratio, spread=0.01, ratio=ratio, low=low, high=high, rounds=9)


def test_times_of_updates_stand_beside_the_runs(tmp_path, capsys):
    for name in (PLAIN, STATIC):
        write_by_hand(tmp_path, name, 1, bits(64, 1, 0.5))
    args = ["table", "tiny", "--results", str(tmp_path)]
    costs = write_costs(tmp_path / "costs", **{STATIC: 1.5, "elsewhere": 2.0})
    assert cli.main([*args, "--costs", str(tmp_path / "nowhere")]) == 0
    assert cells(capsys.readouterr().out, "network")[-1] == "time"
    for others in (0.0, 0.5):
        edit(costs, others=others)
        assert cli.main([*args, "--costs", str(costs), "--out", str(tmp_path / "a.md")]) == 0
        told = (tmp_path / "a.md").read_text()
        last = [cells(told, name)[-1] for name in ("network", "plain", "static")]
        assert last == ["step", "1", "1.50 [1.40, 1.60]"]
        assert ("(not quiet: other processes kept 0.50 cores busy)" in told) == bool(others)


@pytest.mark.parametrize(
    ("changed", "shown"), [(STATIC, ["step", "1", ""]), (PLAIN, ["time", "1:00", "1:00"])]
)
def test_costs_of_recipes_that_have_changed_are_left_out(tmp_path, capsys, changed, shown):
    costs = write_costs(tmp_path / "costs", **{STATIC: 1.5})
    edit(costs, "environment", "recipes", changed, width=3.0)
    for name in (PLAIN, STATIC):
        write_by_hand(tmp_path, name, 1, bits(64, 1, 0.5))
    assert cli.main(["table", "tiny", "--results", str(tmp_path), "--costs", str(costs)]) == 0
    told = capsys.readouterr().out
    assert [cells(told, name)[-1] for name in ("network", "plain", "static")] == shown


@pytest.mark.parametrize("lost", ["device", "torch", "command", None])
def test_costs_that_lack_a_fact_or_are_of_another_benchmark_are_refused(lost, tmp_path, capsys):
    path = write_costs(tmp_path / "costs")
    report = json.loads(path.read_text())
    if lost:
        del report["environment"][lost]
    path.write_text(json.dumps(report if lost else report | {"bench": "training"}))
    assert cli.main(["table", "tiny", "--results", str(tmp_path), "--costs", str(path)]) == 1
    assert "cannot be read as a report of `python -m benchmarks recipes`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.235, "+0.24"), (-0.235, "−0.24"), (0.225, "+0.22"), (1e-12, "0.00"), (-0.004, "0.00")],
)
def test_halves_are_rounded_as_decimals_are(number, text):
    """A mean of two runs of 10,000 images is a multiple of 0.005; binary, 0.235 is below it."""
    assert signed_number(number) == text
