"""The halo kernels, which no GPU has run, by an emulator and by a compiler."""

import itertools
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from disassembly import loop_lengths, resource_usage
from emulated_halo import SOURCES, Emulator, needs_gxx
from kernel_laws import KINDS, Case, check
from problems import Problem

from neural_similarity.ops.halo import HIDDEN_SIZES, SIZES, compiling, launch, trial

HALF = torch.bfloat16
REGISTERS = 65536
"""Of a multiprocessor of sm_90."""
INSTRUCTIONS = {
    "forward": (945,),
    "gradients": (1680,),
    "weight_gradient": (790,),
    "hidden": (1150,),
    "predicted": (1150,),
    "hidden_gradient": (1180,),
    "input_gradient": (1180,),
    "layer_weight_gradients": (375, 860),
    "weight_sums": (),
    "full_forward": (270, 550),
    "full_gradient": (270, 550),
    "full_m_gradient": (1600,),
    "full_weight_gradient": (340, 1450),
}
"""The most of each inner loop, of 64 × 64 channels: over tiles 105, 187 and 263 a warp and tap; of
a full M over three taps of a mixture, then over units of channels, rows of taps, or tiles."""
CONFIGURATIONS = list(itertools.product(SIZES, SIZES, (torch.bfloat16, torch.float16)))
FEW = [(64, 64, HALF), (32, 32, torch.float16), (128, 256, HALF), (256, 32, torch.float16)]
needs_nvrtc = pytest.mark.skipif(
    isinstance(compiling.load_compiler(), str) or find_spec("triton") is None,
    reason="needs NVRTC, of torch's packages for CUDA, and the disassembler in Triton's",
)


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
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "dtype", "kind", "backwards"),
    [
        *((*case, "diagonal", backwards) for case in CASES for backwards in (False, True)),
        (*CASES[0], "full", False),
        (*CASES[2], "full", True),
        (*CASES[3], "full", False),
    ],
)
def test_kernels_obey_the_laws_on_a_cpu(
    channels, outputs, size, dtype, kind, backwards, emulator, monkeypatch
):
    emulator.backwards = backwards
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    check(case_of(channels, outputs, size), kind, dtype, backend="halo")


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize("full", [False, True])
def test_a_map_is_read_once_but_for_the_rings_of_its_tiles(full, emulator, monkeypatch):
    """Today's kernels read it nine times; weights are read once a block, not once a tile."""
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    given, grad = trial.trial_operands(torch.device("cpu"), 64, 64, HALF, full, (16, 24))
    trial.kernel_results(launch.KernelTask(given, 1), grad)
    x, weight, m = (t.numel() * t.element_size() for t in given[:3])
    # Of 16 rows in two tiles 9 and 9 are read, of 24 columns in three 9, 10 and 9.
    halo = x * (18 * 28) // (16 * 24)
    # Pieces of 16 bytes begin 3 numbers before M around a tile, and end 3 after it.
    columns = 28 * (81 if full else 9) + 4 * 3
    ring = columns * 18 * given.m.element_size() * len(given.m)
    copied = emulator.copied
    if not full:
        assert copied["forward"] == halo + weight + m
        assert copied["weight_gradient"] == halo + x + m
        assert copied["gradients"] == halo + weight + ring
        return
    assert copied["full_forward"] == halo + weight + m
    assert copied["full_gradient"] == halo + weight + ring
    assert copied["full_m_gradient"] == 2 * halo + weight
    assert copied["full_weight_gradient"] == halo + 2 * (x + m)  # 32 channels a block


@needs_gxx
@pytest.mark.slow
@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "outputs", "dtype"), CONFIGURATIONS, ids=str)
def test_every_number_of_channels_on_a_cpu(channels, outputs, dtype, kind, emulator, monkeypatch):
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    check(case_of(channels, outputs, (9, 8)), kind, dtype, backend="halo")


LOOP = "copy_wait<0>();\n      proxy_fence();\n"
STORE = "#pragma unroll\n    for (int k = thread; k < ROWS * PIECES"
FORWARD, SLICES, BACKWARD = ("forward", 32), ("forward", 128), ("gradients", 32)
WEIGHT = ("weight_gradient", 32)
LAYER, WIDE_LAYER = ("layer", 32), ("layer", 128)
MIXED, MIXED_BACK = ("full_forward", 32), ("full_gradient", 32)
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
    "the same buffer twice": (FORWARD, "taps.cuh", "halos + (buffer ^ 1)", "halos + buffer"),
    "columns beyond the map": (FORWARD, "tile.cuh", " && column < map.width)\n", ")\n"),
    "a stage that is not full": (FORWARD, "tile.cuh", f"group_sync(group);\n{STORE}", STORE),
    "a block that does not meet": (
        SLICES, "taps.cuh", "proxy_fence();\n        block_sync();", "proxy_fence();"
    ),
    "weights that are late": (SLICES, "taps.cuh", "copy_wait<2>()", "copy_wait<3>()"),
    "a kernel that is not mirrored": (BACKWARD, "taps.cuh", "TAPS - 1 - tap : tap", "tap : tap"),
    "no gradient at the border": (BACKWARD, "gradients.cu", "* TAPS + tap] = 0;", "* TAPS + tap];"),
    "rows of positions": (WEIGHT, "weight_tiles.cuh", "+ 2 * k * ROW", "+ k * ROW"),
    "another pixel's M": (MIXED_BACK, "mixing.cuh", " - (MIRRORED ? M::step(tap) : 0)", ""),
    "a mixture that is overwritten": (
        MIXED, "full_tiles.cuh", "      product_wait<0>();\n      proxy_fence();", "proxy_fence();"
    ),
    "a mixture that is not full": (
        MIXED, "full_tiles.cuh", "proxy_fence();\n      group_sync(group);\n", "proxy_fence();\n"
    ),
    "a neighbour of the pixel": (
        ("full_m_gradient", 32), "full_m_gradient.cu", "(SIDE + 1) * PIECE", "SIDE * PIECE"
    ),
    "mixtures by rows": (
        ("full_weight_gradient", 32), "full_weight_gradient.cu", "8 * PIECE, MIXED_CHUNK",
        "MIXED_CHUNK, 8 * PIECE",
    ),
    "norms before energies": (
        LAYER, "hidden.cu", "group_sync(thread_index() / WARPGROUP);", ""
    ),
    "energies of one slice": (
        ("hidden", 128), "hidden.cu", "slice.index > 0 ? energies[thread] : 0", "0"
    ),
    "M before it is there": (LAYER, "predicted.cu", "group_sync(group); // M", "// M"),
    "tiles that overtake": (WEIGHT, "weight_tiles.cuh", "block_sync(); // this", "// this"),
    "a bias of the next channels": (LAYER, "predicted.cu", "(b + first + j", "(b + first + 1 + j"),
    "gains of another tap": (LAYER, "tile.cuh", "gain_at(gains, tap) * r", "gain_at(gains, 0) * r"),
    "dr before it is there": (LAYER, "hidden_gradient.cu", "group_sync(group); // dr", "// dr"),
    "a fence that dr lacks": (
        LAYER, "hidden_gradient.cu", "product_fence();\n#pragma unroll\n    for", "for"
    ),
    "a tap that is not mirrored": (
        LAYER, "hidden_gradient.cu", "int seen = TAPS - 1 - tap;\n", "int seen = tap;\n"
    ),
    "rows of dr": (LAYER, "hidden_gradient.cu", "seen / 3 + 2 * k", "seen / 3 + k"),
    "no rectifier": (LAYER, "hidden_gradient.cu", "value <= 0 ? 0 : total[j]", "total[j]"),
    "an h that is overwritten": (
        LAYER, "hidden_gradient.cu", "own + buffer * BUFFER;\n    const", "own;\n    const"
    ),
    "gains of all pixels": (
        LAYER, "hidden_gradient.cu", "right >= map.width) continue", "right > map.width) continue"
    ),
    "sums of one group": (LAYER, "hidden_gradient.cu", "(turn ? block_sums[i] : 0)", "0"),
    "groups that add at once": (
        LAYER, "hidden_gradient.cu", "    block_sync();\n  }", "  }"
    ),
    "a gradient of x that is not added": (
        LAYER, "input_gradient.cu", "here ? *(const u32 *)(dx + at) : 0", "0"
    ),
    "norms of the pixel's own patch": (
        LAYER, "input_gradient.cu", "row + tap / 3 - 1", "row"
    ),
    "W₁'s gradient at W's place": (
        LAYER, "layer_weight_gradients.cu", "first_parts, map", "parts, map"
    ),
    "channels of one slice": (WIDE_LAYER, "predicted.cu", "x + slice * SLICE", "x"),
    "r of no tile": (WIDE_LAYER, "predicted.cu", "if (there && column", "if (column"),
    "M of another slice": (WIDE_LAYER, "predicted.cu", "slice.index == 0)", "slice.index > 0)"),
    "one block of channels": (
        WIDE_LAYER, "layer_weight_gradients.cu", "column % (CHANNELS / WIDTH) * WIDTH", "0"
    ),
    "one part too few": (LAYER, "weight_sums.cu", "k < count;", "k < count - 1;"),
}  # fmt: skip


NEEDS = {
    "forward": (False, False, False),
    "gradients": (True, False, True),
    "weight_gradient": (False, True, False),
    "full_forward": (False, False, False),
    "full_gradient": (True, False, False),
    "full_m_gradient": (False, False, True),
    "full_weight_gradient": (False, True, False),
}
"""Of x, weight and M, so that a kernel runs alone."""


def is_refused(name, channels):
    """Whether the emulator, or a comparison with the eager form, finds a kernel wrong."""
    if name in ("hidden", "layer"):
        task, grad = trial.predictor_task(torch.device("cpu"), channels, 32, HALF, 32)
        truth = trial.true_predictor_results(task, grad)
        if name == "hidden":
            return not are_close(lambda: hidden_map(task), [truth[1], truth[3]])
        return not are_close(lambda: trial.predictor_results(task, grad), truth)
    given, grad = trial.trial_operands(
        torch.device("cpu"), channels, 32, HALF, name.startswith("full")
    )
    y, *gradients = trial.true_results(given, grad)
    task, needs = launch.KernelTask(given, 2), NEEDS[name]
    if any(needs):
        return not are_close(lambda: task.backward(grad, needs), gradients)
    return not are_close(lambda: [task.forward()], [y])


def hidden_map(task):
    """Alone: `are_close` compares all that a layer returns."""
    maps, norms = (
        torch.empty(trial.BATCH, *trial.SIZE, c, dtype=d) for c, d in ((32, HALF), (1, None))
    )
    results = maps.movedim(-1, 1), norms.movedim(-1, 1)
    task.write_hidden_map(*results, trial.EPS, trial.FACTOR)
    return results


def are_close(run, truth):
    try:
        pairs = zip(run(), truth, strict=True)
    except (RuntimeError, AssertionError):
        return False
    errors = [(one.double() - true).norm() / true.norm() for one, true in pairs if one.numel()]
    return all(error <= 1e-2 for error in errors)


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize(("kernel", "file", "old", "new"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(kernel, file, old, new, emulator, tmp_path, monkeypatch):
    changed = Emulator(tmp_path, {file: (old, new)})

    def launch_kernel(name, *rest):
        source = (SOURCES / f"{name}.cu").read_text("utf-8")
        (changed if file == f"{name}.cu" or f'"{file}"' in source else emulator)(name, *rest)

    monkeypatch.setattr(launch, "launch_kernel", launch_kernel)
    if kernel == WIDE_LAYER:  # nine tiles, so that one of a block's two groups runs out first
        monkeypatch.setattr(trial, "BATCH", 3)
        monkeypatch.setattr(trial, "SIZE", (7, 18))
    for backwards in (False, True):  # a barrier is missed in one order of the threads
        emulator.backwards = changed.backwards = backwards
        if is_refused(*kernel):
            return
    pytest.fail("the bug is not found")


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
def test_what_has_no_bug_is_not_refused(hidden, backwards, emulator, monkeypatch):
    """Either order of the threads, of both types and numbers of hidden channels."""
    emulator.backwards = backwards
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    dtype = torch.float16 if backwards else HALF
    task, grad = trial.predictor_task(torch.device("cpu"), 32, 32, dtype, hidden)
    found = trial.predictor_results(task, grad)
    truth = trial.true_predictor_results(task, grad)
    assert trial.compare_results(found, found, truth, trial.PREDICTOR_RESULTS) is None


@needs_gxx
@pytest.mark.long
def test_a_wide_layer_whose_groups_run_out(emulator, monkeypatch):
    """Blocks of rows and channels of W's gradients, with and without those of W itself."""
    monkeypatch.setattr(launch, "launch_kernel", emulator)
    monkeypatch.setattr(trial, "BATCH", 3)
    monkeypatch.setattr(trial, "SIZE", (7, 18))
    emulator.backwards = False
    task, grad = trial.predictor_task(torch.device("cpu"), 128, 128, HALF, 32)
    truth = trial.true_predictor_results(task, grad)
    found = trial.predictor_results(task, grad)
    assert trial.compare_results(found, found, truth, trial.PREDICTOR_RESULTS) is None
    _, *kept = task.forward(trial.EPS, trial.FACTOR)
    frozen = task.backward(grad, kept, trial.FACTOR, [True, False, *[True] * 5])
    named = dict(zip(trial.PREDICTOR_RESULTS, found, strict=True))
    assert torch.equal(frozen.first, named["dW1"])


def launched_definitions(name, channels, outputs, dtype, monkeypatch):
    """What a kernel is compiled for by operators and layers of these channels."""
    found, cpu = {}, torch.device("cpu")
    monkeypatch.setattr(launch, "launch_kernel", lambda *words: found.setdefault(words[:2]))
    for full in (False, True):
        given, grad = trial.trial_operands(cpu, channels, outputs, dtype, full)
        trial.kernel_results(launch.KernelTask(given, 2), grad)
    for hidden in HIDDEN_SIZES[::-1]:
        task, grad = trial.predictor_task(cpu, channels, outputs, dtype, hidden)
        for gain in (task.given.gain, task.given.gain.to(dtype)):
            narrow = task._replace(given=task.given._replace(gain=gain))
            trial.predictor_results(narrow, grad)
    return [definitions for other, definitions in found if other == name]


def compiled(name, definitions):
    texts = [(SOURCES / file).read_bytes() for file in (f"{name}.cu", *compiling.HEADERS)]
    return compiling.compile_kernel(compiling.load_compiler(), texts, definitions)


def check_resources(name, code, folder):
    used = resource_usage(code, folder)
    assert used["STACK"] == used["LOCAL"] == 0  # nothing is spilt
    assert used["REG"] * launch.WARPGROUP * launch.WARPGROUPS[name] <= REGISTERS


TAPS_OF_LOOPS = {
    **dict.fromkeys(("forward", "gradients", "hidden", "predicted", "input_gradient"), 9),
    **{"weight_gradient": 3, "layer_weight_gradients": 3, "hidden_gradient": 1},
}
"""The kernel taps of a turn of the longest loop, where the page tells of one."""


def check_page(name, lengths, registers):
    """The row of a kernel in docs/gpu.md has the compiler's numbers."""
    page = Path(__file__).parents[2] / "docs/gpu.md"
    (row,) = re.findall(rf"^\| `{name}\.cu` \|(.*)\|$", page.read_text("utf-8"), re.MULTILINE)
    _, instructions, shown, warpgroups = row.replace(",", "").split(" | ")
    assert (int(shown), int(warpgroups)) == (registers, launch.WARPGROUPS[name])
    if name in TAPS_OF_LOOPS:
        assert int(instructions.split()[0]) == round(lengths[-1] / TAPS_OF_LOOPS[name])


@needs_nvrtc
@pytest.mark.long
@pytest.mark.parametrize("name", launch.WARPGROUPS)
def test_kernels_compile_for_hopper_into_few_instructions(name, tmp_path, monkeypatch):
    for configuration in FEW:
        found = launched_definitions(name, *configuration, monkeypatch)
        for definitions in {*found[:1], *found[-1:]}:
            code = compiled(name, definitions)
            check_resources(name, code, tmp_path)
            if (configuration, definitions) == (FEW[0], found[0]):
                lengths = sorted(loop_lengths(code, tmp_path, "MMA|FFMA"))
                for length, most in zip(lengths, INSTRUCTIONS[name], strict=False):
                    assert length <= most
                check_page(name, lengths, resource_usage(code, tmp_path)["REG"])


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("channels", "outputs", "dtype"), CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("name", launch.WARPGROUPS)
def test_every_kernel_compiles_for_hopper(name, channels, outputs, dtype, tmp_path, monkeypatch):
    for definitions in launched_definitions(name, channels, outputs, dtype, monkeypatch):
        check_resources(name, compiled(name, definitions), tmp_path)


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
