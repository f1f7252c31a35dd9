"""The halo kernels, which no GPU has run: when they are taken, and how they are launched."""

import ctypes
import itertools

import halo_first_contact
import pytest
import torch
from kernel_laws import KINDS, Case, check
from on_gpu import on_gpu
from problems import Problem

from neural_similarity.functional import similarity_conv2d
from neural_similarity.ops import declines, halo, layer, use_halo
from neural_similarity.ops.halo import HIDDEN_SIZES, SIZES, WINDOW, compiling, launch, trial
from neural_similarity.ops.operands import Operands

HALF = torch.bfloat16
MOST_SHARED = 232448
"""Bytes that a block can have on sm_90."""


def maps(channels, size=(4, 5), dtype=HALF, batch=1):
    x = torch.zeros(batch, channels, *size, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last)


def operands(channels=64, outputs=64, size=(4, 5), dtype=HALF, **changes):
    weight = torch.zeros(outputs, channels, 3, 3, dtype=dtype)
    m = torch.zeros(1, 1, 9, *size)
    x = on_gpu(maps(channels, size, dtype))
    return Operands(x, weight, m, WINDOW, 1)._replace(**changes)


def test_they_are_off_and_say_why():
    reason = declines("halo", on_gpu(maps(64)), 9)
    assert reason.startswith("not measured on a GPU yet")
    assert halo.declines_operands(operands()) == reason


def test_one_switch_puts_them_on_and_off(monkeypatch):
    monkeypatch.setattr(halo, "_SWITCH", {"on": False})
    for on in (True, False):
        use_halo(on)
        assert halo._SWITCH == {"on": on}


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("x", "taps", "reason"),
    [
        (maps(64), 9, "the input is on cpu, not on a GPU"),
        (on_gpu(maps(64, dtype=torch.float32)), 9, "float32, neither float16 nor bfloat16"),
        (on_gpu(maps(64)), 25, "2 spatial dimensions and 25 taps, not 2 and 9"),
        (on_gpu(maps(48)), 9, "48 channels, none of (32, 64, 128, 256)"),
        (on_gpu(maps(64).contiguous()), 9, "not channels-last"),
    ],
)
def test_reasons_of_the_input(x, taps, reason):
    assert reason in declines("halo", x, taps)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": WINDOW._replace(stride=(2, 2))}, "stride=(2, 2)"),
        ({"window": WINDOW._replace(padding=(0, 1))}, "padding=(0, 1)"),
        ({"groups": 2}, "in groups or blocks"),
        ({"m": torch.zeros(1, 2, 9, 4, 5)}, "in groups or blocks"),
        ({"weight": torch.zeros(48, 64, 3, 3)}, "48 outputs, none of"),
        ({"m": torch.zeros(1).expand(2**14, 1, 9, 64, 64)}, "2147483648 numbers or more"),
    ],
)
def test_reasons_of_other_operands(changes, reason):
    assert halo.declines_operands(operands()) is None
    assert reason in halo.declines_operands(operands(**changes))


@pytest.mark.usefixtures("switched")
def test_other_gpus_are_declined(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    assert declines("halo", on_gpu(maps(64)), 9) == "the GPU's compute capability is not 9.0"


@pytest.mark.usefixtures("switched")
def test_they_are_tried_once_and_not_while_a_graph_is_captured(monkeypatch):
    tried, capturing = [], [True]
    monkeypatch.setattr(trial, "find_fault", lambda *key: tried.append(key) or "wrong")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    assert "a graph is being captured" in halo.declines_operands(operands())
    capturing[0] = False
    for capturing[0] in (False, True):
        assert halo.declines_operands(operands()) == "wrong"
    assert len(tried) == 1


@pytest.mark.usefixtures("switched")
def test_a_traced_program_takes_what_was_tried_before(monkeypatch):
    def taken(x):
        return x + 1 if trial.predictor_fault(x, 64, 64) is None else x - 1

    x, compiled = maps(64), torch.compile(taken, backend="eager", fullgraph=True)
    assert compiled(x).eq(-1).all()
    monkeypatch.setattr(trial, "find_predictor_fault", lambda *_: None)
    assert taken(x).eq(1).all()
    assert compiled(x).eq(1).all()


def zero_output():
    weight, m = torch.zeros(32, 64, 3, 3, dtype=HALF), torch.zeros(1, 9, 4, 5)
    return similarity_conv2d(maps(64), weight, m, padding=1, backend="halo")


@pytest.mark.usefixtures("taken")
def test_the_operator_takes_them_or_says_why_not(monkeypatch):
    launched = []
    monkeypatch.setattr(launch, "launch_kernel", lambda name, *_: launched.append(name))
    assert zero_output().shape == (1, 32, 4, 5)
    assert launched == ["forward"]
    monkeypatch.setattr(halo, "declines_operands", lambda _: "no reason")
    with pytest.raises(ValueError, match="the halo backend declines this input: no reason"):
        zero_output()


def roll_rows(_, y, *gradients):
    return [y.roll(1, 2), *gradients]


def spoil_last(_, *results):
    return [*results[:-1], results[-1] * torch.nan]


def change_with_blocks(task, y, dx, *others):
    return [y, dx * (1 + task.multiprocessors / 300), *others]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _, *results: results, "None"),
        (roll_rows, "y differs from the eager form"),
        (spoil_last, "dM differs from the eager form"),
        (change_with_blocks, "dx differs between two runs"),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_a_trial_finds_what_is_wrong(change, fault, full, monkeypatch):
    def results(task, grad):
        return change(task, *(t.to(HALF) for t in trial.true_results(task.given, grad)))

    monkeypatch.setattr(launch, "make_task", lambda given: launch.KernelTask(given, 3))
    monkeypatch.setattr(trial, "kernel_results", results)
    assert fault in str(trial.find_fault(torch.device("cpu"), 32, 32, HALF, full))


def test_where_nothing_compiles_a_trial_says_so(monkeypatch):
    def missing(_name):
        raise OSError("libnvrtc: no such file")

    monkeypatch.setattr(launch, "make_task", lambda given: launch.KernelTask(given, 3))
    monkeypatch.setattr(
        launch, "launch_kernel", lambda *_: compiling.kernel_code.__wrapped__("forward", ())
    )
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(compiling, "load_compiler", compiling.load_compiler.__wrapped__)
    monkeypatch.setattr(trial, "_FAULTS", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    given, _ = trial.trial_operands(torch.device("cpu"), 32, 32, HALF, False)
    fault = trial.kernel_fault(given)
    assert fault.startswith("they do not run here: NVRTC, the compiler of torch's packages")
    assert fault.endswith("libnvrtc: no such file")


def test_memory_and_threads_suffice_for_every_number_of_channels(monkeypatch):
    launched, cpu, squares = [], torch.device("cpu"), len(SIZES) ** 2
    monkeypatch.setattr(launch, "launch_kernel", lambda *words: launched.append(words))
    for c, o, full in itertools.product(SIZES, SIZES, (False, True)):
        given, grad = trial.trial_operands(cpu, c, o, HALF, full)
        trial.kernel_results(launch.KernelTask(given, 132), grad)
    assert len(launched) == 7 * squares
    for c, o, hidden in itertools.product(SIZES, SIZES, HIDDEN_SIZES):
        task, grad = trial.predictor_task(cpu, c, o, HALF, hidden)
        trial.predictor_results(task._replace(multiprocessors=132), grad)
    for name, _, grid, threads, shared_bytes, _ in launched:
        assert shared_bytes <= MOST_SHARED, name
        assert threads == 128 * launch.WARPGROUPS[name]
        assert grid[0] * grid[1] <= 132 or name == "weight_sums"  # as many as numbers
    assert {words[0] for words in launched} == set(launch.WARPGROUPS)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_launches_nothing(kind, monkeypatch):
    monkeypatch.setattr(launch, "launch_kernel", None)
    case = Case(Problem("halo", channels=(32, 64), size=(4, 5), batch=0))
    check(case, kind, HALF, backend="halo")


@pytest.mark.usefixtures("taken")
def test_the_script_of_the_first_contact_times_every_way(monkeypatch):
    for way in ("halo", "triton"):
        monkeypatch.setitem(halo_first_contact.WAYS, way, halo_first_contact.Convolution())
    shape, cpu, timed = (32, 64, 4, True), torch.device("cpu"), []

    def clock(call, _repeats):
        timed.append(call())
        return 1e-6

    monkeypatch.setattr(halo_first_contact, "declines_operands", lambda _: None)
    first, *rows = halo_first_contact.measured_rows(shape, 1, cpu, clock)
    assert first["fault"] is None
    assert [row["way"] for row in rows] == ["nn.Conv2d", "triton", "halo"]
    assert len(timed) == 12
    monkeypatch.setattr(halo_first_contact, "declines_operands", lambda _: "wrong")
    first, *rows = halo_first_contact.measured_rows(shape, 1, cpu, clock)
    assert first["fault"] == "wrong"
    assert [row["way"] for row in rows] == ["nn.Conv2d", "triton"]


def test_the_script_of_the_first_contact_times_a_layer(monkeypatch):
    monkeypatch.setattr(halo, "_SWITCH", {"on": False})
    monkeypatch.setattr(halo_first_contact, "LAYERS", [(4, 6, 5, False)])
    rows = halo_first_contact.layer_rows(torch.device("cpu"), lambda call, _: call() is None)
    assert [row["way"] for row in rows] == ["nn.Conv2d", "triton, NCHW", "triton", "halo"]
    assert halo._SWITCH["on"]


@pytest.mark.usefixtures("taken")
def test_the_script_of_the_first_contact_times_each_kernel_of_a_layer(monkeypatch):
    launched = []
    monkeypatch.setattr(layer, "by_kernels", lambda _: True)
    monkeypatch.setattr(launch, "launch_kernel", lambda *words: launched.append(words))
    monkeypatch.setattr(halo_first_contact, "SHAPES", [(32, 32, 1, False)])

    def clock(call, _repeats):
        launched.clear()
        for _ in range(4):
            call()
        addresses = [words[-1][0].data_ptr() for words in launched]
        assert len({words[0] for words in launched}) == 1
        assert len(set(addresses)) == halo_first_contact.SETS
        assert addresses[0] == addresses[3]
        return 1e-6

    names = [row["kernel"] for row in halo_first_contact.kernel_rows(torch.device("cpu"), clock)]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 7
