"""FLOP formulas of the operators for `torch.utils.flop_counter`; importing this registers them.

A module of its own because the counter imports triton, which takes longer than all of the library.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from neural_similarity.ops import diagonal as diagonal
from neural_similarity.ops import full as full

Shape = Sequence[int]
_OPERATORS = torch.ops.neural_similarity


@register_flop_formula([_OPERATORS.diagonal_conv, _OPERATORS.full_conv])
def _forward(x: Shape, weight: Shape, similarity: Shape, *_: Any, **__: Any) -> int:
    return 2 * (_product_macs(weight, similarity) + _mixing_macs(x, similarity))


@register_flop_formula([_OPERATORS.diagonal_conv_backward, _OPERATORS.full_conv_backward])
def _backward(grad: Shape, x: Shape, weight: Shape, similarity: Shape, *rest: Any, **_: Any) -> int:
    needs_x, needs_weight, needs_m = rest[5]
    products = needs_weight + (needs_x or needs_m)
    mixings = needs_weight + needs_x + needs_m
    product, mixing = _product_macs(weight, similarity), _mixing_macs(x, similarity)
    return 2 * (products * product + mixings * mixing)


def _product_macs(weight: Shape, similarity: Shape) -> int:
    """Columns times kernel."""
    return prod(weight) * similarity[0] * prod(similarity[2 - len(weight) :])


def _mixing_macs(x: Shape, similarity: Shape) -> int:
    """M times patches; every block of channels has its own."""
    return x[1] // similarity[1] * prod(similarity)
