"""What a table lacks, as commands in stages."""

import shlex

import pytest
from tiny_results import PLAIN, STATIC, TINY_TABLE, lines_of, write_by_hand
from tiny_results import tiny_table as tiny_table

from neural_similarity.lab.paper import RowChoice, pace, training_seconds, wanted_records
from neural_similarity.lab.recipes import STARTS

pytestmark = pytest.mark.usefixtures("tiny_table")


def test_lines_go_seed_by_seed_and_leave_out_what_is_recorded(tmp_path):
    write_by_hand(tmp_path / "results", STATIC, 1, [1, 0])
    write_by_hand(tmp_path / "results", STATIC, 2, [1, 0], budget=0.5)
    lines = lines_of(tmp_path)
    titles = ["tiny-plain seed 1", "tiny-plain seed 2", "tiny-static seed 2"]
    assert [str(line.run) for line in lines] == titles
    assert {line.stage for line in lines} == {1}
    assert lines[0].folder == tmp_path / "runs" / "tiny-plain-1-seed1"
    assert lines[0].records == (tmp_path / "results" / PLAIN / "1" / "1.json",)


def test_a_line_trains_and_records_with_one_thread_and_every_place_named(tmp_path):
    folder = f"{tmp_path}/runs/tiny-plain-0.5-seed1"
    own = {"only": (PLAIN,), "budget": 0.5, "precision": "bf16", "device": "cpu"}
    (line,) = lines_of(tmp_path, seeds=(1,), **own)
    assert str(line) == (
        f"nsim train tiny-plain --budget 0.5 --seed 1 --threads 1 --precision bf16 --out {folder} "
        f"--data {tmp_path}/data --device cpu && nsim record {folder} --results {tmp_path}/results"
    )
    words = [shlex.split(part) for part in str(line).split(" && ")]
    assert words == [["nsim", *command] for command in line.commands]
    assert line.steps == 3


def test_a_run_that_starts_from_another_is_of_a_later_stage(tmp_path, monkeypatch):
    monkeypatch.setitem(STARTS, STATIC, PLAIN)
    monkeypatch.setattr("tiny_images.Recipe.START", "start", raising=False)
    plain, static = lines_of(tmp_path, seeds=(1,), only=(STATIC,))
    assert (plain.stage, plain.records) == (1, ())
    assert [words[0] for words in plain.commands] == ["train"]
    assert (static.stage, static.after) == (2, (plain.run,))
    words = static.commands[0]
    assert words[words.index("--start") + 1] == f"{plain.folder}"


def names_of(lines):
    return {line.run.name for line in lines}


def test_only_takes_patterns(tmp_path):
    assert names_of(lines_of(tmp_path, only=("*-static",))) == {STATIC}
    assert names_of(lines_of(tmp_path, only=(PLAIN, "tiny-s*"))) == {PLAIN, STATIC}
    with pytest.raises(ValueError, match=r"`only` must match .* \(tiny-plain, .*\), got 'tiny-x'"):
        lines_of(tmp_path, only=("tiny-*", "tiny-x"))


def test_a_record_is_wanted_once():
    table = TINY_TABLE.panels[0]
    wanted = wanted_records(type(TINY_TABLE)("Twice", (table, table)), (1, 2), RowChoice())
    assert len(wanted) == len(set(wanted)) == 4


@pytest.mark.parametrize("fact", ["cpu", "device", "threads", "precision", None])
def test_time_is_that_of_earlier_runs_on_such_a_machine(tmp_path, monkeypatch, fact):
    monkeypatch.setattr(pace, "cpu_name", lambda: "A CPU")
    monkeypatch.setattr(pace, "device_name", lambda _: "cpu")
    here = {"cpu": "A CPU", "device": "cpu", "threads": 1, "precision": "fp32"}
    there = here | ({fact: 2 if fact == "threads" else "another"} if fact else {})
    for seed, seconds in ((8, 60), (9, 600), (10, 66)):
        facts = {"seconds": seconds, "environment": there}
        write_by_hand(tmp_path / "results", PLAIN, seed, [1, 0], **facts)
    lines = lines_of(tmp_path, seeds=(1,), budget=0.5)
    known, unknown = training_seconds(lines, tmp_path / "results", "fp32")
    assert (known, unknown) == (pytest.approx(0 if fact else 66 / 6 * 3), 2 if fact else 1)
