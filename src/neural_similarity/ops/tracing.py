"""Detecting exporters, tracers, compilers and function transforms."""

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad


def only_torch_ops() -> bool:
    """Whether only torch's own operations may run, whatever they cost.

    True in `torch.export` and `torch.jit.trace`, whose programs run without this package, and in
    forward-mode differentiation (`torch.func.jvp`, `jacfwd`, `hessian`), for which the operators
    here have no formula.
    """
    if torch.compiler.is_exporting():
        return True
    if torch.compiler.is_compiling():
        return False
    return torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0


def runs_eagerly(x: Tensor) -> bool:
    """Whether an opaque operation in C may run: outside compile, export and functorch.

    False under a compiler, tracer or transform of `torch.func`, for subclasses of tensors, and for
    a batch of gradients (`is_grads_batched`).
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if type(x) not in (Tensor, nn.Parameter) or is_legacy_batchedtensor(x):
        return False
    return not only_torch_ops()
