"""The smallest kernel: whether it can be compiled and launched tells whether Triton works."""

from typing import Any

import torch
import triton


@triton.jit
def nothing():
    pass


def launch(device: torch.device) -> None:
    """Compile and launch it; without a tensor, so that no memory can be short."""
    options: dict[str, Any] = {"enable_fp_fusion": True}  # Else Triton 3.9 warns.
    with torch.cuda.device(device):
        nothing[(1,)](**options)
