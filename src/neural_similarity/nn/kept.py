"""Folded kernels that evaluation keeps while neither W nor M has changed."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from neural_similarity.nn.modes import check_module
from neural_similarity.ops.tracing import runs_eagerly


class _Kept(NamedTuple):
    """A folded kernel, and what it was made of."""

    kernel: Tensor
    settings: Any
    numbers: Tensor
    weight: Tensor
    """Not by a weak reference, with which `torch.utils.swap_tensors` refuses W."""
    memory: Tensor
    """W's memory, held so that no other tensor gets its address."""
    version: int

    def is_current(self, weight: Tensor, dtype: torch.dtype) -> bool:
        """Whether W is the same object, memory and version, and the kernel of this dtype."""
        memory = self.memory
        return (
            self.weight is weight
            and self.version == weight._version
            and self.kernel.dtype == dtype
            and memory.data_ptr() == weight.data_ptr()
            and memory.shape == weight.shape
            and memory.stride() == weight.stride()
        )


# Outside the modules: copies, pickles, state dicts and compiled programs never see it.
_KEPT: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()


def may_keep(similarity: nn.Module, weight: Tensor) -> bool:
    """Whether the kernel that `similarity` makes of W may be kept.

    Not while training or differentiating, nor where the compiler, a tracer or `torch.func` looks
    on. On a GPU, comparing M would wait for the device. Inference tensors have no version, and
    FSDP, of `torch.distributed`, writes weights without changing theirs.
    """
    if similarity.training or torch.is_grad_enabled() or not runs_eagerly(weight):
        return False
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    ours = type(weight) is nn.Parameter and weight.device.type == "cpu"
    return alone and ours and not weight.is_inference()


def kept_kernel(
    similarity: nn.Module,
    made_of: tuple[Any, Tensor],
    weight: Tensor,
    dtype: torch.dtype,
    fold: Callable[..., Tensor],
) -> Tensor:
    """The kept kernel of a similarity if it is current, else W M, which `fold` makes.

    `made_of` has all settings and numbers that M depends on.
    """
    settings, numbers = made_of
    kept = _KEPT.get(similarity)
    if kept is not None and kept.settings == settings and kept.is_current(weight, dtype):
        if torch.equal(kept.numbers, numbers):
            return kept.kernel
    # Before folding: what changes meanwhile leaves a kernel that is not current.
    numbers, version, memory = numbers.detach().clone(), weight._version, weight.detach()
    with torch.inference_mode(False), torch.no_grad():
        kernel = fold(weight, dtype)
    if type(kernel) is Tensor:
        _KEPT[similarity] = _Kept(kernel, settings, numbers, weight, memory, version)
    return kernel


def drop_kernel(similarity: nn.Module) -> None:
    """Forget the kept kernel of a similarity."""
    _KEPT.pop(similarity, None)


def drop_kernels(model: nn.Module) -> None:
    """Forget the folded kernels that static similarities have kept in evaluation.

    In evaluation mode without gradients, a layer with a static M on the CPU keeps its folded kernel
    W M until W or M changes, or `train`, `eval` or `load_state_dict` is called: as much memory as W
    takes. Writes to W that torch does not count, through `weight.data` or a numpy array of its
    memory, need this function. `torch.distributed` and inference tensors keep nothing.

    Raises:
        ValueError: `model` is not a module.
    """
    check_module(model)
    for module in model.modules():
        drop_kernel(module)
