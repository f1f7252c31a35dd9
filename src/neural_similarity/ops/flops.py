"""FLOP formulas of the operators for `torch.utils.flop_counter`.

They are registered once the counter is imported, before or after the library. The library does not
import it, because it imports triton, which takes longer than all of the library.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from neural_similarity.choices import when_imported
from neural_similarity.ops import kernel as kernel
from neural_similarity.ops import similarity as similarity

Shape = Sequence[int]


def _register_formulas(counter: Any) -> None:
    operators = torch.ops.neural_similarity
    counter.register_flop_formula([operators.diagonal_conv, operators.full_conv])(_forward_flops)
    backward = [operators.diagonal_conv_backward, operators.full_conv_backward]
    counter.register_flop_formula(backward)(_backward_flops)
    counter.register_flop_formula(operators.fold_kernel)(_fold_flops)
    counter.register_flop_formula(operators.fold_kernel_backward)(_unfold_flops)


def _forward_flops(x: Shape, weight: Shape, similarity: Shape, *_: Any, **__: Any) -> int:
    return 2 * (_product_macs(weight, similarity) + _mixing_macs(x, similarity))


def _backward_flops(
    grad: Shape, x: Shape, weight: Shape, similarity: Shape, *rest: Any, **_: Any
) -> int:
    needs_x, needs_weight, needs_m = rest[5]
    products = needs_weight + (needs_x or needs_m)
    mixings = needs_weight + needs_x + needs_m
    product, mixing = _product_macs(weight, similarity), _mixing_macs(x, similarity)
    return 2 * (products * product + mixings * mixing)


def _fold_flops(kernel: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(kernel) * kernel[-1]


def _unfold_flops(_grad: Shape, kernel: Shape, _m: Shape, needs: Sequence[bool], **_: Any) -> int:
    return sum(needs) * _fold_flops(kernel)


def _product_macs(weight: Shape, similarity: Shape) -> int:
    """MACs of the product of columns and kernel."""
    return prod(weight) * similarity[0] * prod(similarity[2 - len(weight) :])


def _mixing_macs(x: Shape, similarity: Shape) -> int:
    """MACs of the product of M and patches; every block of channels has its own M."""
    return x[1] // similarity[1] * prod(similarity)


when_imported("torch.utils.flop_counter", _register_formulas)
