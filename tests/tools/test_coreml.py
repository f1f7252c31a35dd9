"""Exported networks are made of operations that Core ML's converter knows."""

import pytest
import torch
from torch import nn
from torch.export import export

import neural_similarity as ns

LACKING = {"new_ones", "addcmul", "unfold"}
"""Operations of torch that coremltools 9 does not convert."""
SHORT = "Dynamic(Full(), predictor=Light())", "Dynamic(Diagonal(), predictor=Pooled())"
KINDS = ["static-full", "dynamic-diagonal", "dynamic-full", *SHORT]


def make_network(similarity):
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, dilation=2)]
    network = ns.convert(nn.Sequential(*convolutions), similarity).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    return network.requires_grad_(False), torch.randn(1, 3, 16, 16)


@pytest.mark.long
@pytest.mark.parametrize("similarity", KINDS)
def test_exported_operations_are_those_of_core_ml(similarity):
    network, x = make_network(similarity)
    nodes = export(network, (x,)).run_decompositions({}).graph.nodes
    calls = [node for node in nodes if node.op == "call_function"]
    assert {call.target.__name__.split(".")[0] for call in calls}.isdisjoint(LACKING)
    results = [call.meta.get("val") for call in calls]
    assert max(result.dim() for result in results if isinstance(result, torch.Tensor)) <= 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("similarity", KINDS)
def test_core_ml_converts(similarity, traced):
    coremltools = pytest.importorskip("coremltools", reason="in no dependency group")
    network, x = make_network(similarity)
    if traced:
        program, inputs = torch.jit.trace(network, x), [coremltools.TensorType(shape=x.shape)]
    else:
        program, inputs = export(network, (x,)).run_decompositions({}), None
    model = coremltools.convert(program, inputs=inputs, convert_to="mlprogram")
    (taken,) = model.get_spec().description.input
    assert list(taken.type.multiArrayType.shape) == list(x.shape)
