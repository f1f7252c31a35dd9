"""How far the outputs of two networks differ."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neural_similarity.nn.modes import check_module, evaluation_mode
from neural_similarity.ops import require_tensors


@torch.no_grad()
def max_difference(model: nn.Module, other: nn.Module, example: Tensor) -> float:
    """Largest absolute difference between two networks' outputs on `example`, in evaluation mode.

    Outputs are tensors, or mappings and sequences of tensors; None in these is skipped, and
    mappings are compared key by key. Equal infinite values do not differ. Modes are restored
    afterwards.

    Raises:
        ValueError: the outputs are something else, or not of the same shapes or keys.
    """
    for name, network in (("model", model), ("other", other)):
        check_module(network, name)
    require_tensors(example=example)
    with evaluation_mode(model, other):
        outputs = [network(example) for network in (model, other)]
    _check_keys(*outputs)
    ours, theirs = (list(_output_tensors(output)) for output in outputs)
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (ours, theirs)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"`model` and `other` must have outputs of the same shapes, got {shapes}")
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.numel()]
    largest = [_largest_difference(_double_on_host(a), _double_on_host(b)) for a, b in pairs]
    return torch.stack(largest).max().item() if largest else 0.0


def _double_on_host(output: Tensor) -> Tensor:
    """A tensor on the host, in double precision, complex or not."""
    return output.cpu().to(torch.promote_types(output.dtype, torch.float64))


def _largest_difference(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().where(a != b, 0).max()


def _check_keys(ours: Any, theirs: Any) -> None:
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return
    if ours.keys() != theirs.keys():
        raise ValueError(
            "`model` and `other` must have outputs of the same keys, got "
            f"{list(ours)} and {list(theirs)}"
        )


def _output_tensors(output: Any) -> Iterator[Tensor]:
    """All tensors of an output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _output_tensors([output[key] for key in sorted(output, key=str)])
    elif isinstance(output, list | tuple):
        for part in output:
            if part is not None:
                yield from _output_tensors(part)
    else:
        raise ValueError(
            f"`model` and `other` must output tensors, or mappings and sequences of them, got "
            f"{type(output).__name__}"
        )
