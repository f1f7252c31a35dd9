"""The halo kernels, which no GPU has run: dispatch, and what a CPU and a compiler tell of them."""

import ctypes
import itertools
import shutil
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import halo_first_contact
import pytest
import torch
from disassembly import loop_lengths, resource_usage
from emulated_halo import SOURCES, Emulator
from kernel_laws import Case, check
from on_gpu import on_gpu
from problems import Problem

from neural_similarity.functional import similarity_conv2d
from neural_similarity.ops import backend, declines, halo, use_halo
from neural_similarity.ops.halo import SIZES, WINDOW, compiling, launch, trial
from neural_similarity.ops.operands import Operands

HALF = torch.bfloat16
MOST_SHARED, REGISTERS = 232448, 65536
"""Bytes that a block can have on sm_90, and registers of a multiprocessor."""
INSTRUCTIONS = {"forward": 945, "gradients": 1680, "weight_gradient": 790}
"""The most of a loop over tiles of 64 × 64 channels: 105, 187 and 263 a warp and tap."""
CONFIGURATIONS = list(itertools.product(SIZES, SIZES, (torch.bfloat16, torch.float16)))
FEW = [(64, 64, HALF), (32, 32, torch.float16), (128, 256, HALF), (256, 32, torch.float16)]
needs_gxx = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"), reason="needs Linux and g++"
)
needs_nvrtc = pytest.mark.skipif(
    isinstance(compiling.load_compiler(), str) or find_spec("triton") is None,
    reason="needs NVRTC, of torch's packages for CUDA, and the disassembler in Triton's",
)


def maps(channels, size=(4, 5), dtype=HALF, batch=1):
    x = torch.zeros(batch, channels, *size, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last)


def operands(channels=64, outputs=64, size=(4, 5), dtype=HALF, **changes):
    weight = torch.zeros(outputs, channels, 3, 3, dtype=dtype)
    m = torch.zeros(1, 1, 9, *size)
    x = on_gpu(maps(channels, size, dtype))
    return Operands(x, weight, m, WINDOW, 1)._replace(**changes)


@pytest.fixture
def switched(monkeypatch):
    """The switch is on, and a Hopper GPU there."""
    monkeypatch.setattr(halo, "_SWITCH", {"on": True})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(trial, "_FAULTS", {})
    monkeypatch.setattr(trial, "find_fault", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    two = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: two)
    return halo


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
        ({"m": torch.zeros(1, 1, 9, 9, 4, 5)}, "M is full"),
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


@pytest.fixture
def taken(monkeypatch, switched):
    """The family takes tensors of the CPU, untried."""
    monkeypatch.setitem(backend._REASONS, "halo", lambda *_: None)
    monkeypatch.setattr(switched, "declines_operands", lambda _: None)


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
def test_a_trial_finds_what_is_wrong(change, fault, monkeypatch):
    def results(task, grad):
        return change(task, *(t.to(HALF) for t in trial.true_results(task.given, grad)))

    monkeypatch.setattr(launch, "make_task", lambda given: launch.KernelTask(given, 3))
    monkeypatch.setattr(trial, "kernel_results", results)
    assert fault in str(trial.find_fault(torch.device("cpu"), 32, 32, HALF))


def test_where_nothing_compiles_a_trial_says_so(monkeypatch):
    def missing(_name):
        raise OSError("libnvrtc: no such file")

    monkeypatch.setattr(launch, "make_task", lambda given: launch.KernelTask(given, 3))
    monkeypatch.setattr(
        launch, "launch_kernel", lambda *_: compiling.kernel_code.__wrapped__("forward", ())
    )
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(compiling, "load_compiler", compiling.load_compiler.__wrapped__)
    fault = trial.find_fault(torch.device("cpu"), 32, 32, HALF)
    assert fault.startswith("they do not run here: NVRTC, the compiler of torch's packages")
    assert fault.endswith("libnvrtc: no such file")


def test_memory_and_threads_suffice_for_every_number_of_channels(monkeypatch):
    launched = []
    monkeypatch.setattr(launch, "launch_kernel", lambda *words: launched.append(words))
    for c, o in itertools.product(SIZES, SIZES):
        given, grad = trial.trial_operands(torch.device("cpu"), c, o, HALF)
        trial.kernel_results(launch.KernelTask(given, 132), grad)
    assert len(launched) == 3 * len(SIZES) ** 2
    for name, _, grid, threads, shared_bytes, _ in launched:
        assert shared_bytes <= MOST_SHARED, name
        assert threads == 128 * launch.WARPGROUPS[name]
        assert grid[0] * grid[1] <= 132


@pytest.mark.usefixtures("taken")
def test_an_empty_batch_launches_nothing(monkeypatch):
    monkeypatch.setattr(launch, "launch_kernel", None)
    check(case_of(32, 64, (4, 5), batch=0), "diagonal", HALF, backend="halo")


@pytest.mark.usefixtures("taken")
def test_the_script_of_the_first_contact_times_every_way(monkeypatch):
    for way in ("halo", "triton"):
        monkeypatch.setitem(halo_first_contact.WAYS, way, halo_first_contact.Convolution())
    shape, cpu, timed = (32, 64, 4), torch.device("cpu"), []

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


CASES = [
    (64, 64, (9, 17), HALF),  # ragged, and rows of M that 16 bytes do not divide
    (32, 32, (12, 8), torch.float16),
    (128, 32, (7, 4), HALF),  # slices of weights forward
    (32, 128, (10, 8), torch.float16),  # and backward; two blocks of columns
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator(tmp_path_factory.mktemp("kernels"))


def case_of(channels, outputs, size, batch=2):
    return Case(Problem("halo", channels=(channels, outputs), size=size, batch=batch))


@needs_gxx
@pytest.mark.long
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "size", "dtype"), CASES)
def test_kernels_obey_the_laws_on_a_cpu(
    channels, outputs, size, dtype, backwards, emulator, monkeypatch
):
    emulator.backwards = backwards
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    check(case_of(channels, outputs, size), "diagonal", dtype, backend="halo")


@needs_gxx
@pytest.mark.long
def test_a_map_is_read_once_but_for_the_rings_of_its_tiles(emulator, monkeypatch):
    """Today's kernels read it nine times; weights are read once a block, not once a tile."""
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    given, grad = trial.trial_operands(torch.device("cpu"), 64, 64, HALF, (16, 24))
    trial.kernel_results(launch.KernelTask(given, 1), grad)
    x, weight, m = (t.numel() * t.element_size() for t in given[:3])
    # Of 16 rows in two tiles 9 and 9 are read, of 24 columns in three 9, 10 and 9.
    halo = x * (18 * 28) // (16 * 24)
    assert emulator.copied["forward"] == halo + weight + m
    assert emulator.copied["weight_gradient"] == halo + x + m
    # M around a tile begins at a multiple of 16 bytes: of 24 columns 12, 16 and 12 are read.
    assert emulator.copied["gradients"] == halo + weight + m * (18 * 40) // (16 * 24)


@needs_gxx
@pytest.mark.slow
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize(("channels", "outputs", "dtype"), CONFIGURATIONS, ids=str)
def test_every_number_of_channels_on_a_cpu(channels, outputs, dtype, emulator, monkeypatch):
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    check(case_of(channels, outputs, (9, 8)), "diagonal", dtype, backend="halo")


LOOP = "copy_wait<0>();\n      proxy_fence();\n"
STORE = "#pragma unroll\n    for (int k = thread; k < ROWS * PIECES"
FORWARD, SLICES, BACKWARD = ("forward", 32), ("forward", 128), ("gradients", 32)
WEIGHT = ("weight_gradient", 32)
BUGS = {
    "wrong row of the halo": (FORWARD, "tile.cuh", "tile.row - 1, column", "tile.row, column"),
    "rows of the next image": (
        FORWARD, "tile.cuh", " && within(tile.row - 1 + i, map.height)", ""
    ),
    "transposed taps": (FORWARD, "taps.cuh", "/ 3 * SIDE + seen % 3", "% 3 * SIDE + seen / 3"),
    "another position's M": (FORWARD, "forward.cu", "at(row + 1, lane / 4)", "at(row, lane / 4)"),
    "no proxy fence": (FORWARD, "taps.cuh", LOOP, "copy_wait<0>();\n"),
    "no product fence": (FORWARD, "taps.cuh", "product_fence();", ""),
    "a group that does not meet": (FORWARD, "taps.cuh", "} else group_sync(group);", "}"),
    "sums before the wait": (FORWARD, "taps.cuh", "product_wait<1>();", "product_wait<2>();"),
    "the same buffer twice": (FORWARD, "taps.cuh", "own + (buffer ^ 1)", "own + buffer"),
    "columns beyond the map": (FORWARD, "tile.cuh", " && column < map.width)\n", ")\n"),
    "a stage that is not full": (FORWARD, "tile.cuh", f"group_sync(group);\n{STORE}", STORE),
    "a block that does not meet": (
        SLICES, "taps.cuh", "proxy_fence();\n            block_sync();", "proxy_fence();"
    ),
    "weights that are late": (SLICES, "taps.cuh", "copy_wait<2>()", "copy_wait<3>()"),
    "a kernel that is not mirrored": (BACKWARD, "taps.cuh", "TAPS - 1 - tap : tap", "tap : tap"),
    "no gradient at the border": (BACKWARD, "gradients.cu", "* TAPS + tap] = 0;", "* TAPS + tap];"),
    "rows of positions": (WEIGHT, "weight_gradient.cu", "+ 2 * k * ROW", "+ k * ROW"),
    "tiles that overtake": (WEIGHT, "weight_gradient.cu", "block_sync(); // this", "// this"),
}  # fmt: skip


NEEDS = {
    "forward": (False, False, False),
    "gradients": (True, False, True),
    "weight_gradient": (False, True, False),
}
"""Of x, weight and M, so that a kernel runs alone."""


def is_refused(name, channels):
    """Whether the emulator, or a comparison with the eager form, finds a kernel wrong."""
    given, grad = trial.trial_operands(torch.device("cpu"), channels, 32, HALF)
    y, *gradients = trial.true_results(given, grad)
    task, needs = launch.KernelTask(given, 2), NEEDS[name]
    try:
        found = [*task.backward(grad, needs)] if any(needs) else [task.forward()]
    except (RuntimeError, AssertionError):
        return True
    pairs = zip(found, gradients if any(needs) else [y], strict=True)
    errors = [(one.double() - true).norm() / true.norm() for one, true in pairs if one.numel()]
    return not all(error <= 1e-2 for error in errors)


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize(("kernel", "file", "old", "new"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(kernel, file, old, new, tmp_path, monkeypatch):
    emulator = Emulator(tmp_path, {file: (old, new)})
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    refused = is_refused(*kernel)
    if not refused:
        emulator.backwards = True  # a barrier is missed in one order of the threads
        refused = is_refused(*kernel)
    assert refused


def compiled(name, *channels_and_type):
    texts = [(SOURCES / file).read_bytes() for file in (f"{name}.cu", *compiling.HEADERS)]
    definitions = launch.kernel_definitions(name, *channels_and_type)
    return compiling.compile_kernel(compiling.load_compiler(), texts, definitions)


def check_resources(name, code, folder):
    used = resource_usage(code, folder)
    assert used["STACK"] == used["LOCAL"] == 0  # nothing is spilt
    assert used["REG"] * launch.WARPGROUP * launch.WARPGROUPS[name] <= REGISTERS


@needs_nvrtc
@pytest.mark.long
@pytest.mark.parametrize("name", launch.WARPGROUPS)
def test_kernels_compile_for_hopper_into_few_instructions(name, tmp_path):
    for channels_and_type in FEW:
        code = compiled(name, *channels_and_type)
        check_resources(name, code, tmp_path)
        if channels_and_type == FEW[0]:
            assert max(loop_lengths(code, tmp_path)) <= INSTRUCTIONS[name]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("channels", "outputs", "dtype"), CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("name", launch.WARPGROUPS)
def test_every_kernel_compiles_for_hopper(name, channels, outputs, dtype, tmp_path):
    check_resources(name, compiled(name, channels, outputs, dtype), tmp_path)


@needs_nvrtc
@pytest.mark.long
def test_a_compiled_kernel_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = "weight_gradient", launch.kernel_definitions("weight_gradient", 32, 32, HALF)
    code = compiling.kernel_code.__wrapped__(*arguments)
    (file,) = (tmp_path / "neural_similarity").iterdir()
    assert file.read_bytes() == code
    monkeypatch.setattr(compiling, "compile_kernel", None)
    assert compiling.kernel_code.__wrapped__(*arguments) == code
    file.write_bytes(code[:-1])  # a file that is cut is compiled again
    with pytest.raises(TypeError, match="not callable"):
        compiling.kernel_code.__wrapped__(*arguments)


@needs_nvrtc
def test_an_error_of_the_compiler_is_quoted():
    texts = [b"int x = y;", *(b"" for _ in compiling.HEADERS)]
    with pytest.raises(RuntimeError, match='"y" is undefined'):
        compiling.compile_kernel(compiling.load_compiler(), texts, ())
