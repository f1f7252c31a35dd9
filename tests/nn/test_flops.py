"""torch's FlopCounterMode counts layers right, whenever it is imported and in every mode."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns
from neural_similarity.testing import LAYERS


def count(network, x):
    with FlopCounterMode(display=False) as counter:
        network(x)
    return counter.get_total_flops()


LATE = """
import torch
import neural_similarity as ns
layer = ns.Conv2d(4, 6, 3, padding=1, similarity="dynamic-diagonal")
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    layer(torch.randn(2, 4, 5, 7))
print(counter.get_total_flops())
"""


@pytest.mark.long
def test_the_counter_may_be_imported_after_the_layers():
    ran = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    positions = 2 * 5 * 7
    layer = ns.Conv2d(4, 6, 3, padding=1, similarity="dynamic-diagonal")
    norm = 9  # the predictor's sums of squares
    first, last = (p.numel() for p in layer.similarity.predictor.parameters() if p.dim() == 4)
    assert int(ran.stdout) == 2 * positions * (6 * 4 * 9 + 4 * 9 + first + norm + last)
    assert count(layer, torch.randn(2, 4, 5, 7)) == int(ran.stdout)


@pytest.mark.parametrize("kind", ["Conv2d", "Conv2d in groups"])
def test_static_layers_count_their_fold(kind):
    make, shape = LAYERS[kind]
    x = torch.randn(shape)
    layer, plain = make(ns.Static(ns.Full())), make(None)
    taps = layer.weight[0, 0].numel()
    assert count(layer, x) - count(plain, x) == 2 * layer.weight.numel() * taps


@pytest.mark.parametrize("structure", [ns.Diagonal(residual=False), ns.Full()], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("similarity", [ns.Static, ns.Dynamic])
def test_layers_are_counted_alike_without_gradients(kind, structure, similarity):
    if kind == "ConvTranspose2d" and similarity is ns.Dynamic:
        pytest.skip("transposed convolutions are static")
    make, shape = LAYERS[kind]
    options = {"init": "released"} if similarity is ns.Dynamic else {}
    layer, x = make(similarity(structure, **options)), torch.randn(shape)
    counted = count(layer, x)
    with torch.no_grad():
        assert count(layer, x) == counted
    frozen = layer.requires_grad_(False)
    assert count(frozen, x) == counted
    if kind != "LSTM":
        assert counted > 0
