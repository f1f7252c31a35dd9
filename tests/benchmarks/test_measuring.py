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


RESTLESS = [1, *(1, 2, 3), *(1.0, 1.2, 1.4), *(2, 4, 6)]


@pytest.mark.parametrize(
    ("times", "effort", "expected"),
    [
        (  # Ratios are of the same round: 3, 1, 2, 5 and 2 times the baseline.
            {"plain": [1, 1, 2, 4, 8, 16], "ours": [1, 3, 2, 8, 40, 32]},
            {"rounds": 5},
            {"plain": (4, 1.5, 1, 1, 1, 5), "ours": (8, 29 / 8, 2, 1, 5, 5)},
        ),
        (  # A slow call takes part in rounds 0, 3, 6, 9 and 12, and is compared in those.
            {"plain": [1, *range(1, 16)], "slow": [20, 20, 80, 140, 200, 260]},
            {"rounds": 15},
            {"plain": (8, 7 / 8, 1, 1, 1, 15), "slow": (140, 6 / 7, 20, 20, 20, 5)},
        ),
        (  # Of attempts the calmest baseline counts, not the slowest call beside it.
            {"plain": RESTLESS, "ours": [1, *(1, 2, 3), *(5.0, 6.0, 7.0), *(2, 4, 6)]},
            {"rounds": 3, "attempts": 3},
            {"plain": (1.2, 1 / 6, 1, 1, 1, 3), "ours": (6, 1 / 6, 5, 5, 5, 3)},
        ),
    ],
)
def test_times_by_hand(times, effort, expected):
    found, _ = measured(times, **effort)
    values = {n: (t.seconds, t.spread, t.ratio, t.low, t.high, t.rounds) for n, t in found.items()}
    assert values == {name: pytest.approx(wanted) for name, wanted in expected.items()}


def test_every_round_begins_with_another_and_short_calls_are_repeated():
    times = {"a": itertools.repeat(1e-3), **dict.fromkeys("bc", itertools.repeat(1.0))}
    _, clock = measured(times, rounds=4)
    assert [name for name, _ in clock.asked[3:]] == [*"abc", *"bca", *"cab", *"abc"]
    assert set(clock.asked[3:]) == {("a", 20), ("b", 1), ("c", 1)}


@pytest.mark.parametrize(("rounds", "least"), [(3, 3), (7, 4), (15, 3)])
def test_the_slowest_takes_part_at_least_three_times(rounds, least):
    times = {"plain": itertools.repeat(1.0), "slow": itertools.repeat(1e6)}
    found, _ = measured(times, rounds=rounds)
    assert found["slow"].rounds == least >= measuring.LEAST_ROUNDS


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


def test_others_are_what_the_machine_did_and_this_process_did_not(monkeypatch, tmp_path):
    """As Linux tells it; guests are in the first two columns, too."""
    (tmp_path / "stat").write_text("cpu  100 0 50 1000 70 6 4 40 9 9\ncpu0 1\n")
    monkeypatch.setattr(measuring, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(measuring.os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    busy, own, wall = measuring._readings()
    assert busy == pytest.approx(2.0)  # all but idle and waiting
    assert own > 0
    assert wall > 0
    readings = iter([(100.0, 10.0, 50.0), (107.0, 12.0, 60.0)])
    monkeypatch.setattr(measuring, "_readings", lambda: next(readings))
    assert Watch().others() == pytest.approx(0.5)  # 7 seconds busy, 2 our own, of 10


def test_what_the_system_does_not_tell_is_unknown(monkeypatch, tmp_path):
    for name in ("STATISTICS", "PROCESS"):
        monkeypatch.setattr(measuring, name, tmp_path / "nowhere")
    assert Watch().others() is None
    assert peak_bytes(lambda: None, torch.device("cpu")) is None


def test_saved_bytes_are_whole_storages_counted_once():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x[:, :4] * self.weight) * x[:, 4:]

    x = torch.ones(3, 8, requires_grad=True)
    assert saved_bytes(Views(), [x]) == 4 * (24 + 12)  # x, and its product with the weight


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_multiplications_by_hand(kind):
    case = Case(kind=kind, runtime=CPU, batch=2, channels=4, size=6)
    conv, mask = 9 * 4 * 4 * 36, 9 * 4 * 36
    ours = conv + (mask if kind == "diagonal" else 9 * mask)
    expected = dict.fromkeys(("ours, compiled", "ours, eager", "unfold + matmul"), ours)
    expected |= {"nn.Conv2d": conv, "TensorFlow form": ours}
    if kind == "diagonal":
        live_taps = 9 * 4 * 4 * 9 / 2  # once
        expected |= {"deform_conv2d": ours, "TensorFlow form": 9 * conv + mask + live_taps}
    found = {one.name: macs(one.module, one.inputs) / 2 for one in catalogue.subjects(case)}
    assert {name: found[name] for name in expected} == expected


def test_peak_memory_is_what_a_call_touches():
    size = 1 << 26
    found = peak_bytes(lambda: torch.ones(size, dtype=torch.uint8), torch.device("cpu"))
    if found is None:
        pytest.skip("this system does not tell the memory of a process")
    assert 0.99 * size < found < 1.3 * size


def test_a_call_is_timed_its_frames_are_counted_and_without_gradients_its_outcome_is_the_output():
    ran = []
    seconds = measuring.seconds_per_call(lambda: ran.append(sum(range(10_000))), 3)
    assert len(ran) == 4  # the first does not count
    assert 0 < seconds < 1
    x = torch.ones(2)
    assert [t.tolist() for t in outcome(lambda x: 2 * x, [x], [], x)] == [[2, 2]]

    def inner():
        return len("")  # A builtin is none.

    def outer():
        return [inner() for _ in range(3)]

    assert python_frames(outer) == 4 + (sys.version_info < (3, 12))  # Comprehensions were one.
