"""Batch normalisation, and the pool and ReLU behind it in one operator where that can be."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from neural_similarity.ops.affine_relu import affine_relu
from neural_similarity.ops.native import available
from neural_similarity.ops.norm_relu import norm_relu, normalizing_line
from neural_similarity.ops.positionwise import Finish, rectified, scaled

_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def norm(spec: Any, channels: int, dims: int) -> nn.Module:
    """Batch normalisation if `spec.batch_norm`, with eps `spec.batch_norm_eps`, or nothing."""
    if not spec.batch_norm:
        return nn.Identity()
    return _NORMS[dims](channels, eps=spec.batch_norm_eps)


def rectifier(norm: nn.Module) -> Finish:
    """The ReLU, behind `norm` unless that is `torch.nn.Identity`."""
    return rectified if isinstance(norm, nn.Identity) else partial(_normalized, norm)


def fuses(norm: nn.Module, d: Tensor | None, x: Tensor) -> bool:
    """Whether `fused` can normalise d x as `norm` does.

    That is torch's own, on the CPU, with all it can have and without hooks; or of a class that
    gives its `line`, slope and offset of every channel (2, c), for a batch x.
    """
    if not isinstance(norm, _BatchNorm) or has_hooks(norm) or not available(x):
        return False
    fits = norm.num_features == x.shape[1] < x.numel()
    if hasattr(norm, "line"):
        running = [t for t in (norm.running_mean, norm.running_var) if t is not None]
        return fits and _single(norm.weight, norm.bias, *running)
    if type(norm) not in _NORMS.values() or (d is not None and not _single(d)):
        return False
    counted = norm.track_running_stats and norm.num_batches_tracked is not None
    steady = not norm.training or (counted and norm.momentum is not None)
    whole = _single(norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return fits and steady and whole


def _single(*parts: Tensor | None) -> bool:
    """Whether these are all there, float32 on the CPU."""
    return all(p is not None and p.dtype == torch.float32 and p.is_cpu for p in parts)


def fused(norm: Any, d: Tensor | None, x: Tensor, *, pool: bool = False) -> Tensor:
    """The ReLU of normalised d x, of the largest of every 2×2 window if `pool`."""
    if hasattr(norm, "line"):
        t = scaled(d, x)
        return affine_relu(None, t, norm.line(t), pool)
    if not norm.training:
        constants = norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps
        return affine_relu(d, x, normalizing_line(*constants), pool)
    z, mean, variance = norm_relu(d, x, norm.weight, norm.bias, norm.eps, pool)
    _update(norm, mean, variance, x.numel() // x.shape[1])
    return z


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the module's calls, one of its own or one of all modules."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    return any((*hooks, module._backward_pre_hooks)) or bool(_has_any_global_hook())


def _normalized(norm: nn.Module, d: Tensor | None, x: Tensor) -> Tensor:
    return fused(norm, d, x) if fuses(norm, d, x) else F.relu(norm(scaled(d, x)))


def _update(norm: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics as torch has them, of the unbiased variance."""
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
    norm.num_batches_tracked.add_(1)
