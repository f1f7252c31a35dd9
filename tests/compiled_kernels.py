"""The Triton kernels compiled for Hopper without a GPU; `test_ops_triton.py` runs this.

In a process of its own, so that Triton's cache is a temporary folder and no interpreter is on.
"""

import re
import subprocess
from dataclasses import dataclass

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from neural_similarity.ops.triton import kernels, launch
from neural_similarity.ops.window import Window

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
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
        """x, weight and M without memory, and the window."""
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
        return x, weight, m, window


SHAPES = {
    "contiguous": Shape(channels_last=False),
    "one-pixel": Shape(size=(1, 1), batch=1),
    "first": Shape(channels=(3, 20), stride=2),
    "depthwise": Shape(channels=(16, 16), groups=16, batch=1),
    "blocks": Shape(channels=(24, 24), groups=2, blocks=3),
    "line": Shape(size=(64,), channels_last=False),
    "beyond-int32": Shape(size=(8192, 8192), batch=40),
}


def launches(kind, dtype, monkeypatch, shape):
    """Kernel, arguments and constants of every launch of a convolution, forward and backward."""
    found = []

    def note(kernel, task, arguments, constants, _grid):
        found.append((kernel, (*arguments, task.sizes, task.channels), constants))

    monkeypatch.setattr(launch, "_launch", note)
    x, weight, m, window = shape.operands(kind, dtype)
    y = launch.forward(x, weight, m, window, shape.groups)
    grad, needs = torch.empty_like(y), (True, True, True)
    launch.backward(grad, x, weight, m, window, shape.groups, needs)
    return found


class Built:
    """A kernel compiled as Triton would at its first launch: PTX, and what ptxas says of it."""

    def __init__(self, kernel, arguments, constants, config, folder):
        self.constants, self.attributes = {}, {}
        signature = {
            name: self.describe(value, (i,))
            for i, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False))
        }
        for name, value in (constants | {"ROWS": config["ROWS"]}).items():
            signature[name] = "constexpr"
            self.constants[(kernel.arg_names.index(name),)] = value
        source = ASTSource(kernel, signature, self.constants, self.attributes)
        options = {key: config[key] for key in ("num_warps", "num_stages")}
        compiled = triton.compile(source, HOPPER, options | {"enable_fp_fusion": True})
        self.ptx, self.binary = compiled.asm["ptx"], compiled.asm["cubin"]
        (folder / "kernel.ptx").write_text(self.ptx)
        command = [
            get_ptxas(90).path,
            "-v",
            "--gpu-name=sm_90a",
            "kernel.ptx",
            "-o",
            "kernel.cubin",
        ]
        self.said = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True
        ).stderr

    def describe(self, value, path):
        """The type of an argument, and what is known of its value, as a launch would find them."""
        if isinstance(value, tuple):
            return type(value)(*(self.describe(v, (*path, i)) for i, v in enumerate(value)))
        if isinstance(value, int) and value == 1:
            self.constants[path] = 1
            return "constexpr"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            self.attributes[path] = [["tt.divisibility", 16]]
        if isinstance(value, torch.Tensor):
            return POINTERS[value.dtype]
        return "i32" if value < 2**31 else "i64"

    @property
    def spilt(self) -> set[int]:
        """Bytes of registers stored to and loaded from memory."""
        return set(map(int, re.findall(r"(\d+) bytes spill", self.said)))


def check(launched, dtype, folder):
    kernel, arguments, constants = launched
    built = Built(kernel, arguments, constants, launch.CONFIGS[dtype.itemsize][0], folder)
    assert built.binary
    frame = constants["FRAME"]
    if (frame.sh, frame.sw) == (1, 1):  # a full data gradient with strides has more to remember
        assert built.spilt == {0}
    products = re.findall(r"mma(?:_async)?\.sync\S*", built.ptx)
    if dtype == torch.float32:
        assert not products  # not TF32, which nobody allowed
        assert "fma.rn.f32" in built.ptx
    else:
        name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        assert products
        assert all(f"f32.{name}.{name}" in product for product in products), products


@pytest.mark.parametrize("name", ["forward", "diagonal_gradients"])
def test_diagonal_kernels_in_bfloat16(name, monkeypatch, tmp_path):
    (launched,) = (
        found
        for found in launches("diagonal", torch.bfloat16, monkeypatch, Shape())
        if found[0] is getattr(kernels, name)
    )
    check(launched, torch.bfloat16, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [32, 64, 128])
@pytest.mark.parametrize("dtype", POINTERS, ids=str)
@pytest.mark.parametrize("kind", KERNELS)
def test_every_kernel(kind, dtype, channels, monkeypatch, tmp_path):
    found = launches(kind, dtype, monkeypatch, Shape((channels, channels)))
    assert {launched[0].__name__ for launched in found} == KERNELS[kind]
    for launched in found:
        check(launched, dtype, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", KERNELS)
def test_every_shape(kind, shape, monkeypatch, tmp_path):
    for launched in launches(kind, torch.bfloat16, monkeypatch, shape):
        check(launched, torch.bfloat16, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", POINTERS, ids=str)
@pytest.mark.parametrize("kind", KERNELS)
def test_every_configuration(kind, dtype, monkeypatch, tmp_path):
    for launched in launches(kind, dtype, monkeypatch, Shape(stride=2)):
        for config in launch.CONFIGS[dtype.itemsize]:
            assert Built(*launched, config, tmp_path).binary


@pytest.fixture
def _tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
@pytest.mark.usefixtures("_tf32")
def test_tf32_where_torch_allows_it(monkeypatch, tmp_path):
    config = launch.CONFIGS[4][0]
    for launched in launches("diagonal", torch.float32, monkeypatch, Shape()):
        assert "tf32.tf32" in Built(*launched, config, tmp_path).ptx
