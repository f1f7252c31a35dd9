"""Layers of other authors, from clones of their repositories or as the paper's house defines them.

None of their code is here: `module_at` imports it by path. Settings are those of the authors' own
networks for ImageNet.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import KERNEL, PADDING
from neural_similarity_paper.rival_layers import CondConv2d, DeformableConv2d, RivalLayer

WARM_UP = 100
"""Updates in which a temperature falls: a tenth of the shortest training, as the authors'."""
Widths = Sequence[tuple[int, int]]
"""Channels and filters of 3×3 convolutions."""


@dataclass(frozen=True)
class Rival:
    """Layers that take the places of a network's convolutions."""

    build: Callable[..., list[nn.Module]]
    """A layer for each of the widths, of the authors' module where there is one."""
    repository: str = ""
    """On GitHub; its clone has the repository's name."""
    file: str = ""

    def layers(self, code: Path, widths: Widths) -> list[nn.Module]:
        """New layers.

        Raises:
            ImportError: a library is missing.
            OSError: there is no such clone in the folder `code`.
        """
        if not self.repository:
            return self.build(widths)
        module = module_at(self.folder(code) / self.file)
        with redirect_stdout(StringIO()):  # FDConv prints as it is made.
            return self.build(module, widths)

    def folder(self, code: Path) -> Path:
        """The clone in the folder `code`."""
        return code / self.repository.partition("/")[2]

    def origin(self, code: Path) -> str:
        """Repository and commit of the clone, or that the layer is defined here."""
        if not self.repository:
            return "this repository"
        command = ["git", "-C", str(self.folder(code)), "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{self.repository} {found.stdout.strip() or 'without a commit'}"


def module_at(path: Path) -> ModuleType:
    """The module in a file, imported with stand-ins for the parts of mmcv that layers use."""
    if not path.is_file():
        raise FileNotFoundError(f"`code` must hold {path.name} at {path}")
    spec: Any = spec_from_file_location(f"rival_{path.stem}", path)
    module = module_from_spec(spec)
    with _mmcv():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _mmcv() -> Iterator[None]:
    """Within, `mmcv.cnn` can be imported; mmcv 1, which the layers need, has no build for us."""
    if find_spec("mmcv") is not None:
        yield
        return
    parts: Any = ModuleType("mmcv.cnn")
    parts.ConvModule, parts.CONV_LAYERS = _ConvModule, _Registry()
    names = {"mmcv": ModuleType("mmcv"), "mmcv.cnn": parts}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


RELU = {"type": "ReLU"}


class _ConvModule(nn.Sequential):
    """mmcv's block of a convolution and, where asked for, batch normalisation and ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        *,
        conv_cfg: None = None,
        norm_cfg: dict[str, str] | None = None,
        act_cfg: dict[str, str] | None = None,
    ):
        if conv_cfg or norm_cfg not in (None, {"type": "BN"}) or act_cfg not in (None, RELU):
            raise ValueError(f"no stand-in for mmcv's ConvModule of {norm_cfg}, {act_cfg}")
        bias = norm_cfg is None
        super().__init__(
            nn.Conv2d(in_channels, out_channels, kernel_size, stride, bias=bias),
            *([nn.BatchNorm2d(out_channels)] if norm_cfg else []),
            *([nn.ReLU(inplace=True)] if act_cfg else []),
        )


class _Registry:
    """mmcv's registry of layers, which keeps nothing."""

    def register_module(self) -> Callable[[type], type]:
        return lambda layer: layer


class Annealed(nn.Module):
    """A layer whose temperature falls in a line from `first` to `last` in its first updates."""

    updates: Tensor
    """How many there were: in the checkpoint, because the temperature is not."""

    def __init__(self, layer: nn.Module, first: float, last: float):
        super().__init__()
        self.layer, self.first, self.last, self.share = layer, first, last, -1.0
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        share = min(1.0, self.updates.item() / WARM_UP)
        if share != self.share:
            self.share = share
            for part in self.layer.modules():
                update: Any = getattr(part, "update_temperature", lambda _: None)
                update(self.first + (self.last - self.first) * share)
        self.updates += self.training
        return self.layer(x)


def _each(layer: type[RivalLayer], widths: Widths) -> list[nn.Module]:
    return [layer(*pair, KERNEL, padding=PADDING) for pair in widths]


def _odconv(module: Any, widths: Widths, kernels: int) -> list[nn.Module]:
    make = partial(module.ODConv2d, kernel_size=KERNEL, padding=PADDING, kernel_num=kernels)
    return [Annealed(make(*pair), 30, 1) for pair in widths]


def _kernel_warehouse(module: Any, widths: Widths, ratio: int) -> list[nn.Module]:
    """Layers of as many filters share a warehouse, as those of a ResNet's stage do."""
    manager = module.Warehouse_Manager(cell_num_ratio=ratio, sharing_range=("layer", "conv"))
    found = [
        manager.reserve(
            *pair, KERNEL, padding=PADDING, bias=False,
            warehouse_name=f"stage{pair[1]}_layer{number}_conv0",
        )
        for number, pair in enumerate(widths)
    ]  # fmt: skip
    manager.store()
    manager.allocate(nn.ModuleList(found))
    found[0].add_module("warehouse", manager)  # So that the network has its parameters, once.
    return [Annealed(layer, 1, 0) for layer in found]


def _involution(module: Any, widths: Widths, kernel: int) -> list[nn.Module]:
    """It mixes no channels: a 1×1 convolution does so before it, as in the authors' ResNets."""
    return [
        nn.Sequential(nn.Conv2d(*pair, 1, bias=False), module.involution(pair[1], kernel, 1))
        for pair in widths
    ]


def _fdconv(module: Any, widths: Widths) -> list[nn.Module]:
    """Of 64 kernels, or as many as filters: their frequencies are to be divided among them."""
    make = partial(module.FDConv, kernel_size=KERNEL, padding=PADDING, bias=False)
    return [make(*pair, kernel_num=min(64, pair[1])) for pair in widths]


ODCONV = "OSVAI/ODConv", "modules/odconv.py"
WAREHOUSE = "OSVAI/KernelWarehouse", "modules/kernel_warehouse.py"
INVOLUTION = "d-li14/involution", "cls/mmcls/models/utils/involution_naive.py"
RIVALS = {
    "condconv-4": Rival(partial(_each, CondConv2d)),
    "odconv-1": Rival(partial(_odconv, kernels=1), *ODCONV),
    "odconv-4": Rival(partial(_odconv, kernels=4), *ODCONV),
    "kernelwarehouse-1": Rival(partial(_kernel_warehouse, ratio=1), *WAREHOUSE),
    "kernelwarehouse-4": Rival(partial(_kernel_warehouse, ratio=4), *WAREHOUSE),
    "fdconv": Rival(_fdconv, "Linwei-Chen/FDConv", "FDConv_detection/mmdet_custom/FDConv.py"),
    "involution-3": Rival(partial(_involution, kernel=3), *INVOLUTION),
    "involution-7": Rival(partial(_involution, kernel=7), *INVOLUTION),
    "deformable": Rival(partial(_each, DeformableConv2d)),
}
"""All of them by name."""


def origins(code: Path) -> dict[str, str]:
    """Where the layers come from, by name."""
    return {name: rival.origin(code) for name, rival in RIVALS.items()}
