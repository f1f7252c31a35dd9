"""Batch normalisation inside predictors, and the ReLU behind it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.ops.norm_relu import available, norm_relu
from neural_similarity.ops.positionwise import Finish, rectified, scaled

_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def norm(spec: Any, channels: int, dims: int) -> nn.Module:
    """Batch normalisation if `spec.batch_norm`, with eps `spec.batch_norm_eps`, or nothing."""
    if not spec.batch_norm:
        return nn.Identity()
    return _NORMS[dims](channels, eps=spec.batch_norm_eps)


def rectifier(norm: nn.Module) -> Finish:
    """The ReLU, behind batch normalisation where `norm` is one."""
    return partial(_normalized, norm) if isinstance(norm, _BatchNorm) else rectified


def _normalized(norm: _BatchNorm, d: Tensor | None, x: Tensor) -> Tensor:
    if not _learns(norm) or x.numel() <= x.shape[1] or not available(d, x):
        return F.relu(norm(scaled(d, x)))
    z, mean, variance = norm_relu(d, x, norm.weight, norm.bias, norm.eps)
    _update(norm, mean, variance, x.numel() // x.shape[1])
    return z


def _learns(norm: _BatchNorm) -> bool:
    """Whether it is torch's own, on the CPU, training, with all it can have, nobody listening."""
    parts = norm.weight, norm.bias, norm.running_mean, norm.running_var
    whole = all(p is not None and p.dtype == torch.float32 and p.is_cpu for p in parts)
    hooks = norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks
    silent = not any((*hooks, norm._backward_pre_hooks))
    trains = norm.training and norm.momentum is not None
    return type(norm) in _NORMS.values() and trains and whole and silent


def _update(norm: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics as torch has them, of the unbiased variance."""
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
    norm.num_batches_tracked.add_(1)
