"""Comparison of an operator's value and gradients with the same function in float64."""

import torch

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
"""Of `error`."""


def in_float64(tensors):
    """Copies to differentiate by; None stays."""
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def gradients(z, tensors, grad, **options):
    """Of z by those of `tensors` that there are."""
    return torch.autograd.grad(z, [t for t in tensors if t is not None], grad, **options)


def error(found, right):
    """Norm of the difference over the norm of what is right."""
    right = right.detach()
    return float((found.detach().double() - right).norm() / right.norm())
