"""What a table lacks, how long it takes, and what is shown of it."""

from dataclasses import replace

import pytest
import torch
from tiny_results import PLAIN, STATIC, TINY_RECIPES, plan_of, write_by_hand
from tiny_results import tiny_table as tiny_table

from neural_similarity import models
from neural_similarity.lab.cli.paper import ReproduceOptions
from neural_similarity.lab.paper import makespan, pace, plan, show
from neural_similarity.lab.paper.display import Display
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.session import train
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.models import counts

pytestmark = pytest.mark.usefixtures("tiny_table")


def test_plan_goes_seed_by_seed_and_leaves_out_what_is_recorded(tmp_path):
    write_by_hand(tmp_path / "results", STATIC, 1, [1, 0])
    write_by_hand(tmp_path / "results", STATIC, 2, [1, 0], budget=0.5)
    found = plan_of(tmp_path)
    titles = ["tiny-plain seed 1", "tiny-plain seed 2", "tiny-static seed 2"]
    assert [job.title for job in found.jobs] == titles
    assert found.recorded == 1
    assert {job.state for job in found.jobs} == {"new"}
    assert found.jobs[0].folder == tmp_path / "runs" / "tiny-plain-1-seed1"
    assert found.jobs[0].record == tmp_path / "results" / PLAIN / "1" / "1.json"


def names_of(found):
    return {one.run.name for one in found.lacking}


def test_only_takes_patterns(tmp_path):
    assert names_of(plan_of(tmp_path, only=("*-static",))) == {STATIC}
    assert names_of(plan_of(tmp_path, only=(PLAIN, "tiny-s*"))) == {PLAIN, STATIC}
    with pytest.raises(ValueError, match=r"`only` must match .* \(tiny-plain, .*\), got 'tiny-x'"):
        plan_of(tmp_path, only=("tiny-*", "tiny-x"))


ONE_OF_EACH = {(recipe.model, recipe.image_size): name for name, recipe in RECIPES.items()}


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_the_time_of_every_network_can_be_told(name, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "seconds_per_mac", lambda _: 1e-9)
    assert pace.paces([name], tmp_path, "fp32")[name].seconds > 0


def test_time_is_that_of_earlier_runs_on_such_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "cpu_name", lambda: "A CPU")
    monkeypatch.setattr(pace, "device_name", lambda _: "cpu")
    for seed, seconds in ((8, 60), (9, 600), (10, 66)):
        write_by_hand(tmp_path / "results", PLAIN, seed, [1, 0], seconds=seconds)
    plain, static = plan_of(tmp_path, seeds=(1,), budget=0.5, precision="fp32").jobs
    assert plain.seconds == pytest.approx(66 / 6 * 3)
    assert (plain.rough, static.rough) == (False, True)
    monkeypatch.setattr(pace, "cpu_name", lambda: "Another CPU")
    assert all(job.rough for job in plan_of(tmp_path, precision="fp32").jobs)


def test_time_without_a_record_is_by_multiplications(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "seconds_per_mac", lambda _: 1e-9)
    macs = counts.macs(models.cnn9(10, width=0.1), 3, 32, 32)
    job = plan_of(tmp_path, only=(PLAIN,), budget=0.5).jobs[0]
    assert job.rough
    assert job.seconds == pytest.approx(3 * 8 * macs * 1e-9)  # steps, images


def test_the_speed_of_multiplications_is_that_of_the_shortest_pass(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(clock))
    pace.seconds_per_mac.cache_clear()
    macs = counts.macs(models.cnn9(10), 3, 32, 32)
    found = pace.seconds_per_mac(choose_runtime("cpu", "fp32"))
    pace.seconds_per_mac.cache_clear()
    assert found == pytest.approx(2 / 32 / macs)


def test_makespan_by_hand(tmp_path):
    job = plan_of(tmp_path).jobs[0]
    jobs = [replace(job, seconds=seconds) for seconds in (4.0, 1.0, 2.0, 5.0)]
    assert makespan(jobs, 1) == 12
    assert makespan(jobs, 2) == 8  # 4, then nothing; 1, 2, 5
    assert makespan(jobs, 9) == makespan(jobs, 10**14) == 5


def test_lines_tell_every_tenth_once(tmp_path, capsys):
    job = replace(plan_of(tmp_path).jobs[0], steps=1000, done=250)
    display = Display(3)
    display.started(job)
    for step in (260, 299, 300, 300, 650):
        measured = {"loss": 2.0, "accuracy": 0.5, "images_per_second": 10.0}
        display.measured(job, {"step": step} | measured)
    display.measured(job, {"step": 900, "validation_loss": 1.0})
    display.ended(job, "done")
    assert capsys.readouterr().err.splitlines() == [
        "tiny-plain seed 1: from step 250 of 1,000",
        "tiny-plain seed 1: step 300/1,000  loss 2.000  accuracy 50.0 %  10 images/s  0:00 left",
        "tiny-plain seed 1: step 650/1,000  loss 2.000  accuracy 50.0 %  10 images/s  0:00 left",
        "tiny-plain seed 1: done (1 of 3)",
    ]


def test_a_terminal_gets_a_bar_for_all_runs_and_one_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal then
    first, second, *_ = jobs = plan_of(tmp_path).jobs
    with show(jobs) as display:
        display.started(first)
        display.measured(
            first, {"step": 4, "loss": 2.0, "accuracy": 0.5} | {"images_per_second": 9}
        )
        every, one = display.bars.tasks
        assert (every.completed, every.total) == (0, 4)
        assert (one.description, one.completed, one.total) == ("tiny-plain seed 1", 4, 6)
        assert one.fields["text"] == "loss 2.000  accuracy 50.0 %  9 images/s"
        display.ended(first, "done")
        display.ended(second, "recorded by another process")
        assert [(bar.description, bar.completed) for bar in display.bars.tasks] == [("runs", 2)]


@pytest.mark.parametrize("fact", ["cpu", "device", "threads", "precision"])
def test_runs_elsewhere_tell_no_times(tmp_path, monkeypatch, fact):
    monkeypatch.setattr(pace, "cpu_name", lambda: "A CPU")
    monkeypatch.setattr(pace, "device_name", lambda _: "cpu")
    here = {"cpu": "A CPU", "device": "cpu", "threads": 1, "precision": "fp32"}
    write_by_hand(tmp_path / "results", PLAIN, 8, [1, 0], environment=here)
    assert plan_of(tmp_path, only=(PLAIN,), precision="fp32").jobs[0].seconds == 60
    other = here | {fact: 2 if fact == "threads" else "another"}
    write_by_hand(tmp_path / "results", PLAIN, 8, [1, 0], environment=other)
    assert plan_of(tmp_path, only=(PLAIN,), precision="fp32").jobs[0].rough


def test_lines_without_a_time_tell_no_pace(tmp_path):
    folder = tmp_path / "runs" / "tiny-plain-1-seed1"
    run = train(replace(TINY_RECIPES[PLAIN], seed=1), name=PLAIN, out=folder, device="cpu")
    run.summary.unlink()
    with run.metrics.open("a") as file:
        file.write('{"step": 6, "validation_loss": 1.0}\n')
    assert plan_of(tmp_path, seeds=(1,), only=(PLAIN,)).jobs[0].state == "interrupted"


def test_no_tasks_take_no_time_and_jobs_are_one_at_least():
    assert makespan([], 2) == 0
    with pytest.raises(ValueError, match="`jobs` must be an integer of at least 1, got 0"):
        makespan([], 0)


@pytest.mark.parametrize(
    ("device", "cores", "jobs"), [("cpu", 1, 1), ("cpu", 2, 2), ("cpu", 16, 2), ("cuda", 16, 1)]
)
def test_two_processes_go_side_by_side_on_several_cores_alone(monkeypatch, device, cores, jobs):
    monkeypatch.setattr(plan, "cores", lambda: cores)
    there = Runtime(torch.device(device), "fp32", channels_last=True)
    monkeypatch.setattr(plan, "choose_runtime", lambda **_: there)
    assert ReproduceOptions(table="4").jobs == jobs
    assert ReproduceOptions(table="4", jobs=3).jobs == 3
