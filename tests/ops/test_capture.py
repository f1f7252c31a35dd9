"""What a CUDA graph of a forward pass may not hold, found without a GPU: copies from the host."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import neural_similarity as ns
from neural_similarity import models
from neural_similarity_paper.rival_layers import RIVALS

pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.11" or torch.version.cuda is None,
    reason="torch asks for a driver even of tensors that are not there",
)
FULL = ns.Full()
STRUCTURES = [
    *(ns.Diagonal(), FULL, ns.Symmetric(), ns.PositiveSemidefinite(), ns.Select(), ns.Dilation()),
    *(ns.Sparse(), ns.Masked(FULL)),
]


class Host(TorchDispatchMode):
    """Operations that bring arrays of the host to a GPU, or wait for it."""

    def __init__(self):
        super().__init__()
        self.touched = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given, made = (
            {value.device.type for value in tree_leaves(tree) if isinstance(value, torch.Tensor)}
            for tree in ((args, kwargs), result)
        )
        waits = operation is torch.ops.aten._local_scalar_dense.default
        if waits or ("cpu" in given and "cuda" in given | made):
            self.touched.append(str(operation))
        return result


def touched_by(module, x):
    """What a forward pass of the module asks of the host, were it on a GPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        for part in module.modules():
            for values in (part._parameters, part._buffers):
                for name, value in values.items():
                    if value is not None:
                        fake = torch.empty_like(value, device="cuda")
                        is_parameter = values is part._parameters
                        values[name] = torch.nn.Parameter(fake) if is_parameter else fake
        with Host() as host:
            module.train()(torch.empty(x, device="cuda"))
    return host.touched


@pytest.mark.parametrize("kind", [ns.Static, ns.Dynamic])
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_similarities_ask_nothing_of_the_host(structure, kind):
    layer = ns.Conv2d(3, 8, 3, padding=1, similarity=kind(structure))
    assert not touched_by(layer, (4, 3, 8, 8))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(RIVALS))
def test_rivals_ask_nothing_of_the_host(name):
    assert not touched_by(models.MODELS[name](10, width=0.1), (4, 3, 32, 32))


def test_what_asks_is_found():
    class Asking(torch.nn.Module):
        def forward(self, x):
            return x[:, [0, 2]] * x.new_tensor([1.0, 2.0])[:, None, None]

    assert len(touched_by(Asking(), (4, 3, 8, 8))) >= 2
