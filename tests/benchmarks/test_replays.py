"""What is timed on a GPU: replays of a graph captured once, and the host apart from them."""

from contextlib import nullcontext

import pytest
import torch

from benchmarks import compare, networks, replays
from benchmarks import subjects as catalogue
from benchmarks.case import Case
from benchmarks.measure import seconds_per_call
from benchmarks.options import Options
from benchmarks.replays import CALLS, LAUNCHES, Replays, clock_of
from benchmarks.report import Report, to_markdown
from neural_similarity.lab.train import choose_runtime

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Tape:
    """Stands for a GPU on the CPU; its clock is the number of calls that replays have made."""

    def __init__(self, monkeypatch, fails=None):
        self.events, self.now, self._fails = [], 0, fails
        tape = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                self.at = tape.now

            def synchronize(self):
                tape.events.append("wait")

            def elapsed_time(self, end):
                return 1e3 * (end.at - self.at)  # a second a call

        monkeypatch.setattr(replays, "update_aside", self.aside)
        monkeypatch.setattr(replays, "capture_update", self.capture)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: self.events.append("wait"))

    def aside(self, calls, _device):
        self.events.append("aside")
        calls()

    def capture(self, calls, _device):
        self.events.append("capture")
        if self._fails:
            raise RuntimeError(self._fails)
        calls()

        def replay():
            self.events.append("replay")
            self.now += CALLS

        return replay


@pytest.fixture
def tape(monkeypatch):
    return Tape(monkeypatch)


def test_a_call_is_captured_once_and_its_replays_are_timed(tape):
    made, clock = [], Replays(CUDA)

    def call():
        made.append(1)

    for repeats, count in ((1, 1), (CALLS, 1), (3 * CALLS - 1, 3)):
        tape.events.clear()
        assert clock(call, repeats) == 1
        assert tape.events[-2 - count :] == ["replay"] * (1 + count) + ["wait"]  # one is not timed
        assert ("capture" in tape.events) == (repeats == 1)
    assert len(made) == 2 * CALLS  # before the capture, and in it
    assert clock(print, 1) == 1  # another call
    assert "capture" in tape.events


def test_the_host_is_timed_without_the_gpu(tape, monkeypatch):
    made, clock = [], Replays(CUDA)
    readings = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0, 30.0, 33.0, 40.0, 41.0])
    monkeypatch.setattr(replays.time, "perf_counter", lambda: next(readings))

    def call():
        tape.events.append("call")
        made.append(1)

    clock(call, 1)
    tape.events.clear()
    assert clock.host_seconds(call) == 2  # of 1, 2, 9, 3 and 1
    assert tape.events == ["call", "wait", *["call"] * LAUNCHES]


def test_what_no_graph_can_hold_is_timed_with_its_launches(monkeypatch, capsys):
    Tape(monkeypatch, "operation not permitted when stream is capturing\nmore")
    monkeypatch.setattr(replays, "seconds_per_call", lambda _, repeats: 7.0 * repeats)
    clock = Replays(CUDA)
    assert [clock(print, 1), clock(print, 2)] == [7, 14]
    assert clock.host_seconds(print) is None
    told = capsys.readouterr().err
    assert told.count("no CUDA graph can hold it: operation not permitted when stream") == 1
    assert "more" not in told


def test_only_a_gpu_has_such_a_clock():
    assert clock_of(CPU) is seconds_per_call
    assert isinstance(clock_of(CUDA), Replays)


@pytest.mark.usefixtures("tape")
def test_rows_of_a_gpu_tell_the_host_apart(monkeypatch):
    monkeypatch.setattr(compare, "clock_of", lambda _: Replays(CUDA))
    monkeypatch.setattr(networks, "CHECKED", 2)
    sizes = {"batch": (2,), "size": (4,), "similarity": ("diagonal",)}
    options = Options(device="cpu", dtype="fp32", rounds=3, quick=True, **sizes)
    case = Case(runtime=choose_runtime("cpu", "fp32"), width=0.1, batch=2, rounds=3, attempts=1)
    for rows in (
        list(catalogue.operators(options)),
        networks.updates("", case, networks.cnn9, (networks.PLAIN, "static-diagonal")),
    ):
        assert all(timing.seconds == 1 for row in rows for timing in row.times.values())
        assert all(0 < row.costs["host_seconds"] < 1 for row in rows)
        report = Report(bench="operators", environment={}, quick=False, others=0, rows=tuple(rows))
        assert "| host, ms |" in to_markdown(report)


def test_operands_alternate_between_copies_of_equal_values_and_layout():
    x = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    seen = []
    call = compare.alternated_calls(seen.append, [x], 3)
    for _ in range(6):
        call()
    assert seen[0] is x
    assert len({t.data_ptr() for t in seen}) == 3
    assert [a is b for a, b in zip(seen[:3], seen[3:], strict=True)] == [True] * 3
    for one in seen:
        assert torch.equal(one, x)
        assert one.stride() == x.stride()
        assert one.requires_grad
        assert one.is_leaf


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_on_a_gpu(capsys):
    torch.use_deterministic_algorithms(False)
    x = torch.randn(2048, 2048, device="cuda")
    clock = Replays(CUDA)
    for call in (lambda: x @ x, lambda: (x @ x).sum().item()):
        assert 0 < clock(call, 3) < 1
    assert clock.host_seconds(lambda: x @ x) < 1
    assert "no CUDA graph can hold it" in capsys.readouterr().err
    torch.rand(3, device="cuda")
