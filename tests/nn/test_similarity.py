"""A network computes with the weights and settings that it has now, whatever wrote them."""

from functools import partial
from inspect import isclass, signature

import numpy as np
import pytest
import torch
from moved import moved
from torch import nn, optim
from torch.optim import swa_utils
from torch.testing import assert_close

import neural_similarity as ns

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))
SPECS = {
    "Full": ns.Static(ns.Full()),
    "Select": ns.Static(ns.Select()),
    "Shift": ns.Static(ns.Unshared(ns.Shift(), channels="each")),
    "dynamic": ns.Dynamic(ns.Diagonal()),
}


def network_of(spec):
    layers = ns.Conv2d(4, 6, 3, similarity=spec), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return moved(nn.Sequential(*layers, ns.Linear(6, 5, similarity=spec))).eval()


@torch.no_grad()
def evaluate(network):
    return network(X)


def step(kind, network, **options):
    parameters = [p for p in network.parameters() if kind is not optim.Muon or p.dim() == 2]
    optimizer = kind(parameters, lr=0.02, **options)

    def loss():
        optimizer.zero_grad()
        value = network(X).square().sum()
        value.backward()
        for parameter in parameters if kind is optim.SparseAdam else ():
            parameter.grad = parameter.grad.to_sparse()
        return value

    optimizer.step(loss)


def optimizers():
    """Every optimiser of torch, also as `foreach` and `fused`."""
    for name, kind in vars(optim).items():
        if isclass(kind) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer:
            yield pytest.param(partial(step, kind), id=name)
            for option in signature(kind).parameters:
                if option in ("foreach", "fused"):
                    change = partial(step, kind, **{option: True})
                    yield pytest.param(change, id=f"{name}-{option}")


def write_in_place(parameter):
    with torch.no_grad():
        parameter.mul_(2)


def write_data(parameter):
    parameter.data.mul_(2)


def write_by_numpy(parameter):
    parameter.detach().numpy()[...] *= np.float32(2)


def copy_storage(parameter):
    parameter.untyped_storage().copy_((2 * parameter.detach()).untyped_storage())


def exchange_memory(parameter):
    for _ in range(2):  # The allocator may hand out the first memory again.
        parameter.data = parameter.data + 1


def swap_tensors(parameter):
    torch.utils.swap_tensors(parameter, nn.Parameter(2 * parameter.detach()))


def load(network, **options):
    state = network.state_dict().items()
    network.load_state_dict({name: torch.randn_like(tensor) for name, tensor in state}, **options)


def to_each(write):
    return pytest.param(lambda network: [*map(write, network.parameters())], id=write.__name__)


WRITES = [
    *map(to_each, (write_in_place, write_data, write_by_numpy)),
    *map(to_each, (copy_storage, exchange_memory, swap_tensors)),
    pytest.param(load, id="load_state_dict"),
    pytest.param(partial(load, assign=True), id="load_state_dict-assign"),
]


def assert_current(network, spec, before):
    """The output is that of the same weights in a new network, and not what it was."""
    twin = network_of(spec)
    twin.load_state_dict({name: value.clone() for name, value in network.state_dict().items()})
    assert torch.equal(evaluate(network), evaluate(twin))
    assert not torch.equal(evaluate(network), before)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("change", [*optimizers(), *WRITES])
def test_evaluation_is_that_of_a_new_copy(change, spec):
    network = network_of(spec)
    before = evaluate(network)
    change(network)
    assert_current(network, spec, before)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_evaluation_after_writes_to_shared_memory(spec, tmp_path):
    network, memory = network_of(spec), []
    for index, parameter in enumerate(network.parameters()):
        file = str(tmp_path / str(index))
        mine, other = (torch.from_file(file, True, parameter.numel()) for _ in range(2))
        parameter.data = mine.view_as(parameter).copy_(parameter.detach())
        memory.append(other)  # A mapping of its own, as another process has.
    before = evaluate(network)
    for other in memory:
        other.mul_(2)
    assert_current(network, spec, before)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("kind", ["avg_fn", "multi_avg_fn"])
@pytest.mark.parametrize("average", ["ema", "swa"])
def test_evaluation_of_averaged_weights(average, kind, spec):
    network = network_of(spec)
    mean = getattr(swa_utils, f"get_{average}_{kind}")()
    averaged = swa_utils.AveragedModel(network, **{kind: mean})
    for _ in range(2):
        before = evaluate(averaged)
        step(optim.SGD, network, fused=True)
        averaged.update_parameters(network)
        assert_current(averaged.module, spec, before)


def exchange_structure(layer):
    diagonal = type(layer.similarity.spec.structure) is ns.Diagonal
    spec = ns.Diagonal(residual=False) if diagonal else ns.Full(residual=False)
    layer.similarity.structure = spec.build(layer.geometry())


def set_residual(layer):
    layer.similarity.structure.residual = False


@pytest.mark.parametrize("kind", [kind for kind in ns.nn.SIMILARITIES if kind != "none"])
@pytest.mark.parametrize("change", [exchange_structure, set_residual])
def test_settings_of_a_structure(change, kind):
    layer = moved(ns.Conv2d(4, 6, 3, similarity=kind)).eval()
    before = evaluate(layer)
    change(layer)
    m = layer.similarity.matrix(*[X] if kind.startswith("dynamic") else [])
    m = m if kind.startswith("dynamic") else m[None, ..., None, None].expand(2, *m.shape, 4, 3)
    y = evaluate(layer)
    assert_close(y, ns.functional.similarity_conv2d(X, layer.weight, m, layer.bias))
    assert not torch.equal(y, before)
