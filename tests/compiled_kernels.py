"""The Triton kernels compiled for Hopper without a GPU; `ops/test_triton.py` runs this.

In a process of its own, so that Triton's cache is a temporary folder and no interpreter is on.
"""

import re
import subprocess
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from disassembly import loop_lengths
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver

from benchmarks.compare import without_tf32
from neural_similarity.ops.operands import Operands
from neural_similarity.ops.triton import kernels, launch, pointwise
from neural_similarity.ops.window import Window

PRODUCTS = {torch.float32: None, torch.float16: "f32.f16.f16", torch.bfloat16: "f32.bf16.bf16"}
"""Types of the matrix instructions that a dtype is multiplied by."""
KERNELS = {
    "diagonal": {"forward", "weight_gradient", "diagonal_gradients"},
    "full": {"forward", "weight_gradient", "full_data_gradient", "full_similarity_gradient"},
}


@dataclass(frozen=True)
class Shape:
    """A convolution; sizes of 1 and strides beyond int32 are types of their own to Triton."""

    channels: tuple[int, int] = (64, 64)
    size: tuple[int, ...] = (16, 16)
    batch: int = 128
    stride: int = 1
    groups: int = 1
    blocks: int = 1
    channels_last: bool = True

    def operands(self, kind, dtype):
        """What the operators are given, without memory."""
        dims = len(self.size)
        c, o = self.channels
        x = torch.zeros(self.batch, c, *self.size, dtype=dtype, device="meta")
        weight = torch.zeros(o, c // self.groups, *[3] * dims, dtype=dtype, device="meta")
        if self.channels_last:
            x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
        window = Window(*([side] * dims for side in (3, self.stride, 1, 1)))
        taps = [window.taps] * (2 if kind == "full" else 1)
        output = window.output_size(self.size)
        m = torch.zeros(self.batch, self.blocks, *taps, *output, device="meta")
        return Operands(x, weight, m, window, self.groups)


SQUARES = [Shape((channels, channels)) for channels in (32, 64, 128)]
SHAPES = [
    Shape(channels_last=False),
    Shape(size=(1, 1), batch=1),
    Shape(channels=(3, 20), stride=2),
    Shape(channels=(16, 16), groups=16, batch=1),
    Shape(channels=(24, 24), groups=2, blocks=3),
    Shape(size=(64,), channels_last=False),
    Shape(size=(8192, 8192), batch=40),
]


def launches(kind, dtype, monkeypatch, shape):
    """Kernel, arguments and constants of every launch of a convolution, forward and backward."""
    found = []

    def note(kernel, task, arguments, constants, _grid):
        found.append((kernel, (*arguments, task.sizes, task.channels), constants))

    monkeypatch.setattr(launch, "_launch_kernel", note)
    given = shape.operands(kind, dtype)
    y = launch.forward(given)
    grad, needs = torch.empty_like(y), (True, True, True)
    launch.backward(grad, given, needs)
    return found


def pointwise_launches(dtype, monkeypatch, shape):
    """As `launches`, of a predictor's pointwise parts."""
    found = []

    def note(kernel, _over, *arguments, **constants):
        *arguments, frame = arguments
        constants.pop("across", None)
        constants |= {"FRAME": frame, "ROWS": pointwise.ROWS}
        found.append((kernel, arguments, constants))

    monkeypatch.setattr(pointwise, "_run_kernel", note)
    given = shape.operands("full", dtype)
    x, raw, gain = given.x, given.m.flatten(1, 3).to(dtype), torch.empty(81, device="meta")
    factors = pointwise.patch_factors(x, given.window, 0.1, 1.0)
    pointwise.patch_factors_gradient(factors, x, factors, given.window, 1.0)
    for rectified in (False, True):
        pointwise.scale_maps(x, factors, rectified)
        pointwise.scaled_gradient(x, x, factors, rectified)
    pointwise.apply_gain(raw, gain, 10)
    pointwise.gained_gradient(raw.float(), raw, gain)
    return found


class NoGpu:
    """Stands for a GPU while Triton compiles; nothing is launched on it."""

    capability = 90

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(driver, "_active", NoGpu())


@pytest.fixture(autouse=True)
def _without_tf32():
    with without_tf32():
        yield


class Built:
    """A kernel compiled as at its first launch: PTX, and what the assembler says of it."""

    def __init__(self, kernel, arguments, constants, config, folder):
        built = kernel.warmup(*arguments, **constants, **config, enable_fp_fusion=True, grid=(1,))
        self.ptx, self.binary = built.asm["ptx"], built.asm["cubin"]
        self.shared_bytes, card = built.metadata.shared, NoGpu.capability
        (folder / "kernel.ptx").write_text(self.ptx)
        target = built.asm["ptx"].partition(".target ")[2].split()[0].rstrip(",")
        command = [get_ptxas(card).path, "-v", f"--gpu-name={target}"]
        command += ["kernel.ptx", "-o", "kernel.cubin"]
        options = {"cwd": folder, "capture_output": True, "text": True, "check": True}
        self.said = subprocess.run(command, **options).stderr

    @property
    def spilt(self) -> set[int]:
        """Bytes of registers stored to and loaded from memory."""
        return set(map(int, re.findall(r"(\d+) bytes spill", self.said)))

    def loop_lengths(self, folder) -> list[int]:
        """Machine instructions of each loop that has matrix products, a warp's each time around."""
        return loop_lengths(self.binary, folder)


def check(kind, launched, dtype, folder):
    kernel, arguments, constants = launched
    config = launch.CONFIGS[dtype.itemsize, kind == "full"][0]
    built = Built(kernel, arguments, constants, config, folder)
    assert built.binary
    frame = constants["FRAME"]
    if (frame.sh, frame.sw) == (1, 1):  # a full data gradient with strides has more to remember
        assert built.spilt == {0}
    products = re.findall(r"mma(?:_async)?\.sync\S*", built.ptx)
    if PRODUCTS[dtype] is None:
        assert not products  # not TF32, which nobody allowed
        assert "fma.rn.f32" in built.ptx
    else:
        assert products
        assert all(PRODUCTS[dtype] in product for product in products), products


@pytest.mark.parametrize("name", ["forward", "diagonal_gradients"])
def test_diagonal_kernels_in_bfloat16(name, monkeypatch, tmp_path):
    found = launches("diagonal", torch.bfloat16, monkeypatch, Shape())
    (launched,) = (one for one in found if one[0] is getattr(kernels, name))
    check("diagonal", launched, torch.bfloat16, tmp_path)


def test_a_tap_takes_few_instructions(monkeypatch, tmp_path):
    """They bound the diagonal forward pass: 278 with M on the operand, 195 with it on the sums."""
    first, *_ = launches("diagonal", torch.bfloat16, monkeypatch, Shape())
    assert first[0] is kernels.forward
    built = Built(*first, launch.CONFIGS[2, False][0], tmp_path)
    assert min(built.loop_lengths(tmp_path)) <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*product(PRODUCTS, SQUARES), *product([torch.bfloat16], SHAPES)],
    ids=str,
)
@pytest.mark.parametrize("kind", KERNELS)
def test_every_kernel(kind, dtype, shape, monkeypatch, tmp_path):
    found = launches(kind, dtype, monkeypatch, shape)
    assert {launched[0].__name__ for launched in found} == KERNELS[kind]
    for launched in found:
        check(kind, launched, dtype, tmp_path)


SHARED_BYTES = {80: 166912, 86: 101376, 89: 101376, 120: 101376}
"""The most that a block can have, by compute capability (CUDA C++ Programming Guide, 5.1)."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_kernel_for_other_cards(capability, kind, monkeypatch, tmp_path):
    """They have the memory, and only the gradient of W spills registers."""
    monkeypatch.setattr(NoGpu, "capability", capability)
    for kernel, arguments, constants in launches(kind, torch.bfloat16, monkeypatch, Shape()):
        kernel.device_caches.clear()  # they are kept by device, not by capability
        built = Built(kernel, arguments, constants, launch.CONFIGS[2, kind == "full"][0], tmp_path)
        kernel.device_caches.clear()
        assert built.shared_bytes <= SHARED_BYTES[capability]
        assert built.spilt == {0} or kernel is kernels.weight_gradient


@pytest.mark.parametrize(
    ("tensor", "far"),
    [
        (torch.empty(3, device="meta"), False),
        (torch.empty_strided((2, 1), (2**31, 1), device="meta"), True),
        (torch.empty(1, device="meta").expand(2**31), True),  # its gradient is as large
    ],
)
def test_an_offset_beyond_int32_in_any_tensor_is_far(tensor, far):
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    near = torch.empty(2, device="meta")
    assert launch.frame_window(window, near).far is False
    assert launch.frame_window(window, near, tensor, near).far is far
    given = Shape(batch=2).operands("diagonal", torch.float32)
    y = torch.empty_strided((2, 64, 16, 16), (2**31, 1, 1024, 64), device="meta")
    assert launch.plan_launch(given, y).frame.far


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
def test_pointwise_kernels(dtype, monkeypatch, tmp_path):
    for kernel, arguments, constants in pointwise_launches(dtype, monkeypatch, Shape()):
        assert Built(kernel, arguments, constants, {}, tmp_path).spilt == {0}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize("kind", KERNELS)
def test_every_configuration(kind, dtype, monkeypatch, tmp_path):
    for launched in launches(kind, dtype, monkeypatch, Shape(stride=2)):
        for config in launch.CONFIGS[dtype.itemsize, kind == "full"]:
            assert Built(*launched, config, tmp_path).binary


@pytest.mark.slow
@pytest.mark.parametrize("shape", SQUARES, ids=str)
@pytest.mark.parametrize("kind", KERNELS)
def test_tf32_where_torch_allows_it(kind, shape, monkeypatch, tmp_path):
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # `_without_tf32` puts back what was
    config = launch.CONFIGS[4, kind == "full"][0]
    for launched in launches(kind, torch.float32, monkeypatch, shape):
        built = Built(*launched, config, tmp_path)
        assert "tf32.tf32" in built.ptx
        assert built.spilt == {0}
