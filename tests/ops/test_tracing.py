"""What looks on while a layer computes: tracers, derivatives taken forward, counters of FLOPs."""

import io
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from moved import moved
from torch import fx, nn
from torch.autograd import forward_ad
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns
from neural_similarity.functional import similarity_conv2d
from neural_similarity.testing import LAYERS

# torch scripts its own formulas for derivatives taken forward, and calls scripts and traces dated.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`torch.jit.\w+` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
SMALL = {"predictor": ns.SphereNet(hidden=3)}
SIMILARITIES = [
    ns.Static(ns.Full()),
    ns.Dynamic(ns.Diagonal(), **SMALL),
    ns.Dynamic(ns.Full(), **SMALL),
    ns.Dynamic(ns.Diagonal(), predictor=ns.SphereNet(hidden=3, batch_norm=True)),
]
every = pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)


def layer_of(similarity, dtype=torch.float64):
    torch.manual_seed(0)
    return moved(ns.Conv2d(2, 3, 3, padding=1, similarity=similarity, dtype=dtype)).eval()


@pytest.mark.long
@every
def test_derivatives_taken_forward_are_those_taken_backward(similarity):
    layer = layer_of(similarity)
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    assert_close(jacfwd(layer)(x), jacrev(layer)(x))

    def by_parameters(values):
        return functional_call(layer, values, (x,))

    parameters = dict(layer.named_parameters())
    forward, backward = (jac(by_parameters)(parameters) for jac in (jacfwd, jacrev))
    assert_close(forward, backward)


@every
def test_one_direction(similarity):
    """By `torch.func.jvp` and by dual tensors, against a difference quotient."""
    layer, step = layer_of(similarity), 1e-6
    x, v = torch.randn(2, 2, 2, 5, 5, dtype=torch.float64).unbind()
    with torch.no_grad():
        quotient = (layer(x + step * v) - layer(x - step * v)) / (2 * step)
    y, tangent = jvp(layer, (x,), (v,))
    assert_close(y, layer(x))
    assert_close(tangent, quotient, atol=1e-6, rtol=1e-5)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v)))
    assert_close(dual.tangent, tangent)


def test_second_derivatives_by_forward_over_reverse():
    layer = layer_of(SIMILARITIES[1])
    x = torch.randn(1, 2, 3, 3, dtype=torch.float64)

    def energy(x):
        return layer(x).square().sum()

    assert_close(hessian(energy)(x), jacrev(jacrev(energy))(x))


@every
def test_traces_are_of_torchs_own_operations_and_run_at_other_sizes(similarity):
    layer = layer_of(similarity, torch.float32)
    traced, file = torch.jit.trace(layer, torch.randn(2, 2, 6, 6)), io.BytesIO()
    kinds = {node.kind().partition("::")[0] for node in traced.inlined_graph.nodes()}
    assert kinds == {"aten", "prim"}
    torch.jit.save(traced, file)
    file.seek(0)
    loaded, other = torch.jit.load(file), torch.randn(1, 2, 9, 7)
    assert_close(loaded(other), layer(other), rtol=1e-4, atol=1e-5)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = ns.ConvTranspose2d(2, 2, 3, similarity="static-full")
        self.head = ns.Linear(5, 4, similarity="dynamic-diagonal")
        self.memory = ns.LSTM(4, 3, similarity="static-diagonal")

    def forward(self, x):
        y, (h, _) = self.memory(input=self.head(self.up(x, output_size=[7, 5]).mean(1)))
        return y + h.mean()


@every
def test_features_of_a_converted_network(similarity):
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU()))
    converted = moved(ns.convert(network, similarity)).eval()
    extractor = extraction.create_feature_extractor(converted, {"1.0": "inner"})
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(extractor(x)["inner"], converted[1][0](converted[0](x)))


def test_the_operator_itself_forward():
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    w = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    m = torch.randn(1, 9, 3, 3, dtype=torch.float64)
    for argument in range(3):
        args = {"argnums": argument}
        forward, backward = (jac(similarity_conv2d, **args) for jac in (jacfwd, jacrev))
        assert_close(forward(x, w, m), backward(x, w, m))


def of_maps_and_angles():
    layers = [ns.SphereConv2d(2, 4, 3), ns.GlobalSimilarity(4, (3, 1)), ns.SelfAttention(4)]
    return nn.Sequential(*layers, nn.Flatten())


def before_others(similarity):
    return nn.Sequential(layer_of(similarity, torch.float32), nn.ReLU(), nn.Conv2d(3, 1, 1))


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        *((partial(before_others, one), ["0", "1", "2"]) for one in SIMILARITIES),
        (Mixed, ["up", "head", "memory"]),
        (of_maps_and_angles, ["0", "1", "2", "3"]),
    ],
)
def test_fx_records_a_layer_as_one_call_with_all_its_arguments(make, layers):
    network = moved(make().eval())
    traced = fx.symbolic_trace(network)
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert calls == layers
    x = torch.randn(2, 2, 5, 3)
    assert torch.equal(pickle.loads(pickle.dumps(traced))(x), network(x))


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
