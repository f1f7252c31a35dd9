"""Times by turns, costs and the quiet of the machine, from numbers known beforehand."""

import itertools
import sys
from statistics import median

import pytest
import torch
from scipy import stats
from torch import nn

from benchmarks import measure as measuring
from benchmarks import subjects as catalogue
from benchmarks.case import Case
from benchmarks.measure import (
    Watch,
    macs,
    measure,
    median_interval,
    peak_bytes,
    python_frames,
    saved_bytes,
)
from benchmarks.oracle import outcome
from neural_similarity.lab.train import choose_runtime

CPU = choose_runtime("cpu", "fp32")


class Clock:
    """Seconds by a table, instead of calling; notes what is asked for."""

    def __init__(self, seconds):
        self.seconds = {name: iter(values) for name, values in seconds.items()}
        self.asked = []

    def __call__(self, call, repeats):
        self.asked.append((call, repeats))
        return next(self.seconds[call])


def measured(times, **effort):
    """Of names for calls."""
    clock = Clock(times)
    effort = {"attempts": 1} | effort
    return measure({name: name for name in times}, **effort, clock=clock), clock


def test_ratios_are_of_the_same_round():
    plain = [1, *(1.0, 2.0, 4.0, 8.0, 16.0)]
    ours = [1, *(3.0, 2.0, 8.0, 40.0, 32.0)]  # 3, 1, 2, 5 and 2 times the baseline
    found, _ = measured({"plain": plain, "ours": ours}, rounds=5)
    assert (found["ours"].seconds, found["ours"].ratio) == (8, 2)
    assert (found["ours"].low, found["ours"].high, found["ours"].rounds) == (1, 5, 5)
    assert (found["plain"].seconds, found["plain"].ratio) == (4, 1)
    assert (found["plain"].low, found["plain"].high) == (1, 1)
    assert found["plain"].spread == (8 - 2) / 4


def test_every_round_begins_with_another():
    _, clock = measured({name: itertools.repeat(1.0) for name in "abc"}, rounds=4)
    turns = [name for name, _ in clock.asked[3:]]
    assert turns == [*"abc", *"bca", *"cab", *"abc"]


def test_short_calls_are_repeated():
    _, clock = measured({"a": itertools.repeat(1e-3), "b": itertools.repeat(1.0)}, rounds=3)
    assert set(clock.asked[2:]) == {("a", 20), ("b", 1)}


def test_slow_calls_take_part_in_fewer_rounds_and_are_compared_in_those():
    plain = [1, *range(1, 16)]
    slow = [20, *(20 * turn for turn in (1, 4, 7, 10, 13))]  # of rounds 0, 3, 6, 9, 12
    found, _ = measured({"plain": plain, "slow": slow}, rounds=15)
    assert found["plain"].rounds == 15
    assert (found["slow"].rounds, found["slow"].ratio) == (5, 20)
    assert (found["slow"].low, found["slow"].high) == (20, 20)


@pytest.mark.parametrize(("rounds", "least"), [(3, 3), (7, 4), (15, 3)])
def test_the_slowest_takes_part_at_least_three_times(rounds, least):
    times = {"plain": itertools.repeat(1.0), "slow": itertools.repeat(1e6)}
    found, _ = measured(times, rounds=rounds)
    assert found["slow"].rounds == least >= measuring.LEAST_ROUNDS


def test_what_was_not_quiet_is_measured_again_and_the_calmest_baseline_counts():
    plain = [1, *(1, 2, 3), *(1.0, 1.2, 1.4), *(2, 4, 6)]
    ours = [1, *(1, 2, 3), *(5.0, 6.0, 7.0), *(2, 4, 6)]  # the slowest beside the calmest
    found, _ = measured({"plain": plain, "ours": ours}, rounds=3, attempts=3)
    assert found["plain"].spread == pytest.approx(0.2 / 1.2)
    assert found["ours"].ratio == 5


def test_what_was_quiet_is_measured_once():
    times = [1, *(1.00, 1.01, 1.02), *(9, 9, 9)]
    found, clock = measured({"plain": times}, rounds=3, attempts=3)
    assert (found["plain"].seconds, len(clock.asked)) == (1.01, 4)


@pytest.mark.parametrize("count", range(3, 40))
def test_interval_covers_the_median_by_the_binomial_distribution(count):
    values = [float(value) for value in torch.randperm(count)]
    low, high = median_interval(values)
    below = count - 1 - int(high)
    assert int(low) == below  # as many from both ends
    missed = 2 * stats.binom.cdf(below, count, 0.5)
    if count < 6:
        assert (low, high) == (0, count - 1)
    else:
        assert missed <= 0.05 < 2 * stats.binom.cdf(below + 1, count, 0.5)
    assert low <= median(values) <= high


def test_calls_are_timed():
    ran = []
    seconds = measuring.seconds_per_call(lambda: ran.append(sum(range(10_000))), 3)
    assert len(ran) == 4  # the first does not count
    assert 0 < seconds < 1


def test_others_are_what_the_machine_did_and_this_process_did_not(monkeypatch):
    readings = iter([(100.0, 10.0, 50.0), (107.0, 12.0, 60.0)])
    monkeypatch.setattr(measuring, "_readings", lambda: next(readings))
    assert Watch().others() == pytest.approx(0.5)  # 7 seconds busy, 2 our own, of 10


def test_a_machine_that_does_not_tell_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "STATISTICS", tmp_path / "stat")
    assert Watch().others() is None


def test_readings_of_linux(monkeypatch, tmp_path):
    (tmp_path / "stat").write_text("cpu  100 0 50 1000 70 6 4 40 9 9\ncpu0 1\n")
    monkeypatch.setattr(measuring, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(measuring.os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    busy, own, wall = measuring._readings()
    assert busy == pytest.approx(2.0)  # all but idle and waiting; guests are in the first two
    assert own > 0
    assert wall > 0


def test_saved_bytes_are_whole_storages_counted_once():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x[:, :4] * self.weight) * x[:, 4:]

    x = torch.ones(3, 100, requires_grad=True)
    with pytest.raises(RuntimeError):  # 4 and 96 columns do not fit
        saved_bytes(Views(), [x])
    x = torch.ones(3, 8, requires_grad=True)
    assert saved_bytes(Views(), [x]) == 4 * (24 + 12)  # x, and its product with the weight


def test_multiplications_by_hand():
    case = Case(kind="diagonal", runtime=CPU, batch=2, channels=4, size=6)
    conv, mask = 9 * 4 * 4 * 36, 9 * 4 * 36
    found = catalogue.subjects(case)
    found = {subject.name: macs(subject.module, subject.inputs) / 2 for subject in found}
    assert found["nn.Conv2d"] == conv
    for name in ("ours, compiled", "ours, eager", "unfold + matmul", "deform_conv2d"):
        assert found[name] == conv + mask
    assert (
        found["TensorFlow form"] == 9 * conv + mask + 9 * 4 * 4 * 9 / 2
    )  # and the live taps, once
    full = Case(kind="full", runtime=CPU, batch=2, channels=4, size=6)
    found = catalogue.subjects(full)
    found = {subject.name: macs(subject.module, subject.inputs) / 2 for subject in found}
    for name in ("ours, compiled", "ours, eager", "unfold + matmul", "TensorFlow form"):
        assert found[name] == conv + 9 * mask


def test_peak_memory_is_what_a_call_touches():
    size = 1 << 26
    found = peak_bytes(lambda: torch.ones(size, dtype=torch.uint8), torch.device("cpu"))
    if found is None:
        pytest.skip("this system does not tell the memory of a process")
    assert 0.99 * size < found < 1.3 * size


def test_peak_memory_is_unknown_where_the_system_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "PROCESS", tmp_path / "nowhere")
    assert peak_bytes(lambda: None, torch.device("cpu")) is None


def test_outcome_without_gradients_is_the_output():
    x = torch.ones(2)
    assert [t.tolist() for t in outcome(lambda x: 2 * x, [x], [], x)] == [[2, 2]]


def test_python_frames_are_calls_of_functions():
    def inner():
        return len("")  # A builtin is none.

    def outer():
        return [inner() for _ in range(3)]

    assert python_frames(outer) == 4 + (sys.version_info < (3, 12))  # Comprehensions were one.
