"""The LSTM: torch's with a similarity in both of its products."""

import pytest
import torch
import torch.nn.utils.prune
from moved import moved
from refusals import refusals
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.testing import torch_autocasts_lstm

NAMES = [name for name in ns.SIMILARITIES if name != "none"]
OPTIONS = [{}, {"num_layers": 3, "bias": False}, {"num_layers": 2, "batch_first": True}]
everywhere = pytest.mark.parametrize("options", OPTIONS, ids=str)


def lstm(similarity, **options):
    return ns.LSTM(3, 4, similarity=similarity, dtype=torch.float64, **options)


def torchs(layer, **options):
    """torch's LSTM with the kernels of `layer`."""
    plain = nn.LSTM(3, 4, dtype=torch.float64, **options)
    own = {key: value for key, value in layer.state_dict().items() if "similarity" not in key}
    plain.load_state_dict(own)
    return plain


def sequence():
    return torch.randn(5, 2, 3, dtype=torch.float64)


def batch_sequence(options):
    return sequence().transpose(0, 1) if options.get("batch_first") else sequence()


def state(layers, *batch):
    return tuple(torch.randn(layers, *batch, 4, dtype=torch.float64) for _ in range(2))


@pytest.mark.parametrize("similarity", NAMES)
@pytest.mark.parametrize("batch_first", [True, False])
def test_unbatched_sequences(similarity, batch_first):
    layer = moved(lstm(similarity, num_layers=2, batch_first=batch_first))
    x, (h, c) = sequence()[:, 0], state(2)
    batch = 0 if batch_first else 1
    batched = layer(x.unsqueeze(batch), (h.unsqueeze(1), c.unsqueeze(1)))[0]
    assert_close(layer(x, (h, c))[0], batched.squeeze(batch))
    y, (h, c) = layer(x)
    assert (y.shape, h.shape, c.shape) == ((5, 4), (2, 4), (2, 4))
    plain = ns.unconvert(layer)
    plain_y, state_of_plain = plain(x)
    shapes = [t.shape for t in (plain_y, *state_of_plain)]
    assert shapes == [y.shape, h.shape, c.shape]


def by_hand(layer, x, hx, matrices):
    """Step by step; `matrices(name, input)` gives the product's (K, K)."""
    outputs, ends = list(x.transpose(0, 1) if layer.batch_first else x), []
    for index in range(layer.num_layers):
        h, c = hx[0][index], hx[1][index]
        for time, value in enumerate(outputs):
            gates = 0.0
            for kind, operand in (("ih", value), ("hh", h)):
                name = f"{kind}_l{index}"
                weight = getattr(layer, f"weight_{name}")
                products = [weight @ matrices(name, row) @ row for row in operand]
                gates = gates + torch.stack(products) + getattr(layer, f"bias_{name}", 0)
            i, f, g, o = gates.split(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs[time] = h
        ends.append((h, c))
    y = torch.stack(outputs, 1 if layer.batch_first else 0)
    return y, tuple(torch.stack(part) for part in zip(*ends, strict=True))


@everywhere
@pytest.mark.parametrize("structure", [ns.Diagonal(), ns.Full()], ids=str)
def test_dynamic_products_have_a_matrix_for_every_input(structure, options):
    layer = moved(lstm(ns.Dynamic(structure, ns.SphereNet(hidden=3)), **options))
    x, hx = batch_sequence(options), state(layer.num_layers, 2)

    def matrix(name, row):
        m = layer.similarity[name].matrix(row.view(1, 1, -1))[0, ..., 0]
        return torch.diag(m) if m.dim() == 1 else m

    assert_close(layer(x, hx), by_hand(layer, x, hx, matrix))


def test_dropout_between_layers_as_in_torchs():
    static = lstm("static-full", num_layers=3, dropout=0.5)
    dynamic = lstm("dynamic-full", num_layers=3, dropout=0.5)
    dynamic.load_state_dict(ns.unconvert(static).state_dict(), strict=False)
    plain = torchs(static, num_layers=3, dropout=0.5)
    x = sequence()
    results = []
    for layer in (plain, static, dynamic):
        torch.manual_seed(1)
        results.append(layer(x)[0])
        assert_close(layer.eval()(x)[0], plain.eval()(x)[0])
        plain.train()
    assert torch.equal(results[1], results[0])
    assert_close(results[2], results[0])
    assert not torch.equal(static.train()(x)[0], static(x)[0])


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-full"])
def test_dropout_of_everything_leaves_the_biases(similarity):
    """At a share of 1 the second layer sees zeros only."""
    layer = moved(lstm(similarity, num_layers=2, dropout=1.0))
    assert torch.equal(layer(sequence())[0], layer(torch.randn(5, 2, 3).double())[0])


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-full"])
def test_states_of_the_wrong_size_are_refused_as_by_torchs(similarity):
    layer = lstm(similarity)
    for given in (layer, torchs(layer)):
        with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 2, 4\), got"):
            given(sequence(), state(1, 1))
        with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
            given(sequence()[..., :2])


def test_a_packed_sequence_is_refused():
    packed = pack_sequence([sequence()[:3, 0], sequence()[:2, 0]])
    with pytest.raises(ValueError, match="`input` must be a tensor, got PackedSequence"):
        lstm("static-full")(packed)
    layer = lstm(None)
    assert torch.equal(layer(packed)[0].data, torchs(layer)(packed)[0].data)


STATIC = ns.LSTM(3, 4, similarity="static-full")
test_errors = refusals(
    (lambda: lstm(nn.Identity()), r"of an LSTM must be a name or spec, got Identity\(\)"),
    (
        lambda: lstm(ns.Dynamic(predictor=nn.Identity())),
        "`predictor` of an LSTM must not be a ready module",
    ),
    (
        lambda: lstm(ns.Static(ns.Unshared(ns.Full(), channels=3))),
        "must divide the 1 channels, got 3",
    ),
    (lambda: STATIC(torch.ones(3)), r"`input` must be of 2 or 3 dimensions, .* got \(3,\)"),
    (lambda: lstm("dynamic-diagonal")(torch.ones(3)), r"of 2 or 3 dimensions, .* got \(3,\)"),
    (lambda: STATIC(torch.ones(5, 2, 3), torch.zeros(1, 2, 4)), r"the pair \(h, c\), got Tensor"),
    (lambda: STATIC(torch.ones(5, 2, 3), (torch.zeros(1, 2, 4),)), r"the pair \(h, c\), got tuple"),
)


def test_torchs_arguments_in_torchs_order():
    arguments = (4, 3, 1, True, False, 0.0, True, 2)
    ours, torchs = ns.LSTM(*arguments), nn.LSTM(*arguments)
    assert (ours.bidirectional, ours.proj_size) == (torchs.bidirectional, torchs.proj_size)
    shapes = [{n: p.shape for n, p in lstm.named_parameters()} for lstm in (ours, torchs)]
    assert shapes[0] == shapes[1]
    with pytest.raises(ValueError, match="`bidirectional` and `proj_size` must be False and 0"):
        ns.LSTM(4, 3, bidirectional=True, similarity="static-full")


@pytest.mark.parametrize("layer", [ns.LSTM, ns.ConvTranspose2d])
def test_hooks_of_a_similarity_run(layer):
    sizes = (3, 4, 2)[: 2 if layer is ns.LSTM else 3]
    network = layer(*sizes, similarity="static-full")
    parts = [part for part in network.modules() if hasattr(part, "raw")]
    for part in parts:
        torch.nn.utils.prune.random_unstructured(part, "raw", amount=0.5)
    x = torch.randn(2, 3, 3) if layer is ns.LSTM else torch.randn(2, 3, 3, 3)
    for _ in range(2):
        y = network(x)
        (y[0] if isinstance(y, tuple) else y).sum().backward()
    assert all(part.raw_orig.grad.any() for part in parts)


@pytest.mark.skipif(not torch_autocasts_lstm(), reason="torch autocasts no LSTM on this CPU")
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_states_are_of_the_outputs_type_under_autocast(similarity):
    layer = ns.LSTM(3, 4, num_layers=2, similarity=similarity)
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, c) = layer(torch.randn(5, 2, 3))
        plain, (hp, cp) = nn.LSTM(3, 4)(torch.randn(5, 2, 3))
    assert (y.dtype, h.dtype, c.dtype) == (plain.dtype, hp.dtype, cp.dtype)
