"""How many bytes a layer's operations read and write on a GPU, counted on tensors without data."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import neural_similarity as ns
from neural_similarity.ops import pointwise, sphere, triton

BATCH, CHANNELS, SIZE = 128, 64, 32


class Traffic(TorchDispatchMode):
    """The bytes of all operations' inputs and outputs; views and what is not written have none."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        schema = operation._schema
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if not (views or "empty" in schema.name):
            tensors = [t for t in tree_leaves((args, kwargs, result)) if torch.is_tensor(t)]
            self.bytes += sum(t.nbytes for t in {id(t): t for t in tensors}.values())
        return result


def megabytes(monkeypatch, *, by_kernels):
    """Of a diagonal layer in bfloat16, forward and backward."""
    if by_kernels:
        monkeypatch.setattr(triton, "declines_triton", lambda *_: None)
        for module in (pointwise, sphere):
            monkeypatch.setattr(module, "takes_maps", lambda _: True)
    layer = ns.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False, similarity="dynamic-diagonal")
    layer = layer.to("meta", torch.bfloat16).train()
    x = torch.empty(BATCH, CHANNELS, SIZE, SIZE, device="meta", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    with Traffic() as forward:
        y = layer(x)
    with Traffic() as backward:
        y.backward(torch.empty_like(y))
    return forward.bytes / 1e6, backward.bytes / 1e6


def test_kernels_let_a_diagonal_layer_move_less(monkeypatch):
    """The goals are 200 and 440 MB; a plain convolution moves 34 forward."""
    without = megabytes(monkeypatch, by_kernels=False)
    forward, backward = megabytes(monkeypatch, by_kernels=True)
    assert forward <= 200 < without[0]
    assert backward <= 440 < without[1]


def test_a_map_is_counted_once_for_every_operation_that_reads_or_writes_it():
    x = torch.empty(BATCH, CHANNELS, SIZE, SIZE, device="meta")
    with Traffic() as traffic:
        (x.relu() + x).view(-1)
    assert traffic.bytes == 5 * x.nbytes
