"""Device, precision and memory layout of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import require_known
from neural_similarity.lab.train import distributed

Precision = Literal["bf16", "fp32"]
PrecisionChoice = Literal["auto", "bf16", "fp32"]
"""A precision, or "auto": the faster one of the machine."""
SCORE_PRECISION: Precision = "fp32"
"""The precision of scores, whatever that of training: exported networks compute in it."""
DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Device types; cuda:1 names one of several devices."""
WORTH = 0.8
"""On a CPU, bf16 is chosen if it takes less than this share of fp32's time."""
TRIES = 5
MOST_THREADS = 1024
"""With tens of thousands the process would crash."""


@dataclass(frozen=True)
class Runtime:
    """Device, precision and memory layout of a training or a scoring."""

    device: torch.device
    precision: Precision
    channels_last: bool

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype of sums over many steps: Apple's GPUs have no float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def place_model(self, model: nn.Module) -> nn.Module:
        model = model.to(device=self.device)
        # `Module.to` would refuse kernels of several experts, which have five dimensions.
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=self.memory_format)
        return model

    def place_images(self, images: Tensor) -> Tensor:
        return images.to(self.device).contiguous(memory_format=self.memory_format)

    def autocast(self, cache: bool = True) -> torch.autocast:
        """Autocast for a forward pass; without `cache`, parameters may change within it.

        On a GPU cast weights are never cached: a CUDA graph must cast them in every replay.
        """
        return torch.autocast(
            self.device.type,
            dtype=torch.bfloat16,
            enabled=self.precision == "bf16",
            cache_enabled=cache and self.device.type != "cuda",
        )

    def for_scores(self) -> "Runtime":
        """The runtime of scores on the same device."""
        return replace(self, precision=SCORE_PRECISION)

    def synchronize(self) -> None:
        """Wait until the device has done its work, so that times mean something."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type != "cpu":
            torch.accelerator.synchronize()


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Compute with `count` CPU threads within; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms for shapes that are new, as all batches have the same.

    Not while torch must be deterministic. Without a GPU it has no effect.
    https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark
    """
    convolutions: Any = torch.backends.cudnn
    before = convolutions.benchmark
    convolutions.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        convolutions.benchmark = before


def choose_runtime(
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    channels_last: bool = True,
    thread_count: int = 0,
) -> Runtime:
    """The runtime for `device` ("auto" takes a GPU if there is one) and `precision`.

    Precision "auto" is bf16 on GPUs that support it, and on CPUs where it makes a convolution
    faster, timed once per process on `thread_count` threads (0: torch's number); else fp32. On CPUs
    with AMX bf16 is several times faster than fp32; with AVX-512 BF16 it takes half the time on
    AMD's, and twice the time on Intel's without AMX.

    Raises:
        ValueError: the device or the precision is unknown, or torch does not find the device.
    """
    require_known("precision", precision, get_args(PrecisionChoice))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in DEVICES:
        raise ValueError(f"`device` must be auto, {', '.join(DEVICES)}, got {device!r}")
    chosen = distributed.own_device(chosen)
    count = _device_count(chosen.type)
    if (chosen.index or 0) >= count:
        what = "GPUs" if chosen.type == "cuda" else f"{chosen.type} devices"
        raise ValueError(
            f"`device` must be present, got '{chosen}', and torch finds {count} {what}"
        )
    if precision == "auto":
        precision = "bf16" if _bf16_is_fast(chosen, thread_count) else "fp32"
    return Runtime(chosen, precision, channels_last)


def _device_count(device_type: str) -> int:
    """The number of devices of a type."""
    module = getattr(torch, device_type)
    available = getattr(module, "is_available", lambda: True)  # Older torch.mps has none.
    return module.device_count() if available() else 0


def _bf16_is_fast(device: torch.device, thread_count: int) -> bool:
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    bf16, fp32 = (_convolution_seconds(d, thread_count) for d in (torch.bfloat16, torch.float32))
    return bf16 < WORTH * fp32


@cache
def _convolution_seconds(dtype: torch.dtype, thread_count: int) -> float:
    """The shortest time of a few convolutions of 64 channels on the CPU."""
    images = torch.ones(8, 64, 32, 32, dtype=dtype).contiguous(memory_format=torch.channels_last)
    kernel, seconds = torch.ones(64, 64, 3, 3, dtype=dtype), []
    with cpu_threads(thread_count):
        for _ in range(1 + TRIES):
            start = time.perf_counter()
            F.conv2d(images, kernel, padding=1)
            seconds.append(time.perf_counter() - start)
    return min(seconds)
