"""Registering operators for every device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Operator = Callable[..., Any]


def register_operator(
    name: str, schema: str, body: Operator, fake: Operator, vmap: Operator | None = None
) -> Operator:
    """The operator `neural_similarity::name`.

    Not by `torch.library.custom_op`, whose wrapper imports the compiler at first use, for seconds.
    """
    qualified = f"neural_similarity::{name}"
    torch.library.define(qualified, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(qualified, "default", body)
    torch.library.register_fake(qualified, fake)
    if vmap is not None:
        torch.library.register_vmap(qualified, vmap)
    return getattr(torch.ops.neural_similarity, name).default


def batch_first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """`tensor` with the vmapped dimension first, repeated where it had none."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
