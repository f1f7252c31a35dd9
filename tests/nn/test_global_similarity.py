"""Global similarity: a matrix over the positions of a map, learned, predicted, or attention."""

import pytest
import torch
from moved import moved
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns
from neural_similarity.functional import global_attention, global_similarity

SIZE = (3, 4)
POSITIONS = 12
STRUCTURES = [
    ns.Diagonal(),
    ns.Diagonal(residual=False),
    ns.Full(),
    ns.Full(residual=False),
    ns.Symmetric(),
    ns.PositiveSemidefinite(),
    ns.Masked(ns.Full()),
    ns.Sparse(keep=POSITIONS),
    ns.Select(),
    ns.Unshared(ns.Diagonal(), channels="each"),
    ns.Unshared(ns.Full(), channels=2),
    ns.Unstructured(),
]
NAMES = ["static-diagonal", "static-full", "dynamic-diagonal", "dynamic-full"]
BLOCKS = [ns.Unshared(structure, channels=2) for structure in (ns.Diagonal(), ns.Full())]
SPECS = [*map(ns.Static, STRUCTURES), *map(ns.Dynamic, (ns.Diagonal(), ns.Full(), *BLOCKS))]
every = pytest.mark.parametrize("similarity", SPECS, ids=str)


@pytest.fixture
def x():
    return torch.randn(3, 4, *SIZE, dtype=torch.float64)


def attention(channels=4, *arguments, **options):
    return moved(ns.SelfAttention(channels, *arguments, **options).double())


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_starts_as_the_identity(similarity, dtype):
    layer = ns.GlobalSimilarity(4, SIZE, similarity, dtype=dtype)
    x = torch.randn(3, 4, *SIZE, dtype=dtype)
    assert torch.equal(layer(x), x)


class Sampling(nn.Module):
    """M[p, q] = max(0, 1 - |u_p - u_q|) max(0, 1 - |v_p - v_q|): where p looks, by an affine map.

    The bilinear sampling kernel of spatial transformers (https://arxiv.org/abs/1506.02025, Eq. 5);
    the affine map of every image is predicted from its channels' averages.
    """

    def __init__(self, geometry, scalars):
        super().__init__()
        assert scalars == POSITIONS**2
        self.localise = nn.Linear(geometry.in_channels, 6)

    def affine(self, x):
        return torch.eye(2, 3, dtype=x.dtype) + self.localise(x.mean((2, 3))).view(-1, 2, 3)

    def forward(self, x):
        height, width = SIZE
        rows, columns = torch.arange(height).to(x), torch.arange(width).to(x)
        v, u = torch.cartesian_prod(rows, columns).unbind(1)
        places = torch.stack([2 * u / (width - 1) - 1, 2 * v / (height - 1) - 1, 0 * u + 1])
        looks = self.affine(x) @ places
        across = (looks[:, 0, :, None] + 1) * (width - 1) / 2 - u
        down = (looks[:, 1, :, None] + 1) * (height - 1) / 2 - v
        m = (1 - across.abs()).clamp(min=0) * (1 - down.abs()).clamp(min=0)
        return m.flatten(1)[..., None, None]


def test_a_spatial_transformer_is_a_dynamic_global_similarity(x):
    """App. B: M_G is the sampling matrix of the grid that a network predicts from the map."""
    spec = ns.Dynamic(ns.Full(residual=False), Sampling, init="released")
    layer = ns.GlobalSimilarity(4, SIZE, spec).double()
    predictor = layer.similarity.predictor
    grid = F.affine_grid(predictor.affine(x), list(x.shape), align_corners=True)
    assert (grid.abs() > 1).any()  # It looks beyond the border, too, where there are zeros.
    y = F.grid_sample(x, grid, align_corners=True)
    assert (y - x).abs().max() > 0.1
    assert_close(layer(x), y, rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(y.square().sum(), predictor.localise.weight)
    found = torch.autograd.grad(layer(x).square().sum(), predictor.localise.weight)
    assert_close(found, expected)


@every
def test_static_is_its_matrix_on_the_flattened_map_and_dynamic_one_for_an_image(similarity, x):
    """Eq. 9: c blocks, one for every channel, all the same where they are shared."""
    layer = moved(ns.GlobalSimilarity(4, SIZE, similarity)).double()
    matrices, y = layer.matrix(x), layer(x)
    dynamic = isinstance(similarity, ns.Dynamic)
    for i, image in enumerate(x):
        m = matrices[i] if dynamic else matrices
        alone = global_similarity(image, m, blocks=layer.similarity.structure.blocks)
        for other in (alone, layer(image)):
            assert_close(other, y[i])
        m = m[..., 0, 0] if dynamic else m
        if not isinstance(similarity.structure, ns.Unstructured):
            blocked = isinstance(similarity.structure, ns.Unshared)
            m = m if m.shape[-2:] == (POSITIONS, POSITIONS) else torch.diag_embed(m)
            blocks = m if blocked else m[None]
            m = torch.block_diag(*blocks.repeat_interleave(4 // len(blocks), 0))
        assert_close(y[i].flatten(), m @ image.flatten())
    assert not (dynamic and torch.allclose(matrices[0], matrices[1]))
    assert "4, (3, 4)" in repr(layer)


def test_a_window_as_large_as_the_map(x):
    """One output position: W M_G X is the convolution with a similarity of the same M."""
    layer = moved(ns.GlobalSimilarity(4, SIZE, "static-full")).double()
    weight = torch.randn(7, 4, *SIZE, dtype=torch.float64)
    expected = ns.functional.similarity_conv2d(x, weight, layer.matrix(x))
    assert_close(F.conv2d(layer(x), weight), expected)


@pytest.mark.parametrize("similarity", NAMES)
def test_m_stays_in_float32_under_autocast(similarity):
    layer = moved(ns.GlobalSimilarity(4, SIZE, similarity))
    x = torch.randn(3, 4, *SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.matrix(x).dtype == torch.float32
        y = layer(x.bfloat16())
        assert layer(x).dtype == torch.float32
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_low_precision_rounds_the_map_once(kind):
    """Near the identity a bf16 M, or a bf16 product, would be off by more."""
    shape = (POSITIONS,) if kind == "diagonal" else (POSITIONS, POSITIONS)
    identity = torch.ones(shape) if kind == "diagonal" else torch.eye(POSITIONS)
    m = identity + 0.01 * torch.randn(shape)
    x = torch.randn(20, 5, *SIZE).bfloat16()
    truth = global_similarity(x.double(), m.double())
    with torch.autocast("cpu", torch.bfloat16):
        y = global_similarity(x, m)
    assert_close(y.double(), truth, rtol=2**-8, atol=1e-6)
    coarse = m.bfloat16()
    truth = global_similarity(x.double(), coarse.double())
    assert_close(global_similarity(x, coarse).double(), truth, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("normalize", ["softmax", "none"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("value_channels", [None, 3])
def test_attention_is_the_softmax_of_two_convolutions(normalize, fused, value_channels, x):
    layer = attention(4, 2, value_channels, normalize=normalize, fused=fused)
    kernels = [m.weight[..., 0, 0] for m in (layer.query, layer.key, layer.value)]
    g1, g2, values = (kernel @ x.flatten(2) for kernel in kernels)
    m = torch.einsum("ncp,ncq->npq", g1, g2)
    if normalize == "softmax":
        m = m.exp() / m.exp().sum(2, keepdim=True)
    assert_close(layer.matrix(x), m)
    attended = torch.einsum("npq,ncq->ncp", m, values).unflatten(2, SIZE)
    if value_channels:
        attended = F.conv2d(attended, layer.output.weight)
    assert_close(layer(x), x + layer.gain * attended)
    assert_close(layer(x[1]), layer(x)[1])


def test_attention_starts_as_the_identity_and_learns():
    layer = ns.SelfAttention(4)
    x = torch.randn(3, 4, *SIZE)
    assert torch.equal(layer(x), x)
    layer(x).square().sum().backward()
    assert layer.gain.grad != 0
    assert not torch.equal(moved(layer)(x), x)
    layer.reset_parameters()
    assert torch.equal(layer(x), x)


def test_channels_of_the_attention_by_default():
    assert ns.SelfAttention(64).query.weight.shape == (8, 64, 1, 1)
    small = ns.SelfAttention(4)
    assert small.key.weight.shape == (1, 4, 1, 1)
    assert isinstance(small.output, nn.Identity)
    assert not any(name.endswith("bias") for name in small.state_dict())


@pytest.mark.parametrize(("size", "makes_matrix"), [((11, 13), False), ((2, 3), True)])
def test_without_softmax_the_cheaper_order_is_taken(size, makes_matrix):
    query, key = torch.randn(2, 3, 7, *size, dtype=torch.float64).unbind()
    value = torch.randn(3, 9, *size, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        y = global_attention(query, key, value, normalize="none")
    q, k, v = (t.flatten(2) for t in (query, key, value))
    assert_close(y.flatten(2), ((q.mT @ k) @ v.mT).mT)
    assert_close(y.flatten(2), (q.mT @ (k @ v.mT)).mT)
    positions = size[0] * size[1]
    products = (7 + 9) * positions if makes_matrix else 2 * 7 * 9
    assert counter.get_total_flops() == 2 * 3 * positions * products


@pytest.mark.parametrize("fused", [True, False])
def test_the_layer_hands_on_which_form_to_take(fused):
    """On a CPU torch's fused kernel takes heads of one width, and has no second derivative."""
    layer = attention(8, 8, fused=fused)
    x = torch.randn(2, 8, *SIZE, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    if fused:
        with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
            gradient.sum().backward()
    else:
        gradient.sum().backward()
        assert layer.query.weight.grad.any()


@pytest.mark.parametrize("fused", [True, False])
def test_attention_under_autocast(fused):
    layer = moved(ns.SelfAttention(16, fused=fused))
    x = torch.randn(2, 16, *SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), layer(x), atol=0.1, rtol=0.05)


def test_attention_of_hyperspherical_convolutions(x):
    layer = attention(4, convolution=ns.SphereConv2d)
    assert {type(m) for m in (layer.query, layer.key, layer.value)} == {ns.SphereConv2d}
    assert layer.matrix(x).sum(2).sub(1).abs().max() < 1e-12


def test_the_device_asked_for():
    layers = [ns.GlobalSimilarity(4, SIZE, similarity, device="meta") for similarity in NAMES]
    layers += [ns.SelfAttention(4, convolution=ns.SphereConv2d, device="meta")]
    assert {p.device.type for layer in layers for p in layer.parameters()} == {"meta"}


def whole_network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        ns.SelfAttention(8),
        ns.GlobalSimilarity(8, SIZE, "static-full"),
        ns.GlobalSimilarity(8, SIZE, "dynamic-diagonal"),
        nn.Conv2d(8, 4, 3, padding=1),
    )


def test_global_similarities_are_grouped_frozen_and_skipped_as_similarities():
    network = whole_network()
    groups = {g["name"]: g["params"] for g in ns.parameter_groups(network, weight_decay=0.1)}
    assert {id(p) for p in groups["similarities"]} == {id(network[3].similarity.raw)}
    gains = network[2].gain, network[4].similarity.gain
    assert {id(p) for p in groups["undecayed"]} == {id(p) for p in gains}
    ns.freeze_backbone(network)
    assert [{p.requires_grad for p in layer.parameters()} for layer in network] == [
        {False}, {False}, {True}, {True}, {True}, {False},
    ]  # fmt: skip
    plan = ns.plan(network, "static-full")
    assert {name for name, reason in plan.items() if reason is None} == {"0", "5"}
    assert plan["2.query"] == plan["4.similarity.predictor.last"] == "is part of a similarity"
    x = torch.randn(2, 3, *SIZE)
    converted = ns.convert(network, "static-full")
    assert ns.max_difference(converted, network, x) == 0
    assert ns.max_difference(ns.fold(converted), network, x) == 0


def attend(query, key, value, **options):
    return global_attention(torch.zeros(query), torch.zeros(key), torch.zeros(value), **options)


def similar(x, similarity, dtype=torch.float32, **options):
    return global_similarity(torch.zeros(x, dtype=dtype), torch.zeros(similarity), **options)


MAP = (2, 5, 3, 4)


test_errors = refusals(
    *(
        (
            lambda shape=shape: ns.GlobalSimilarity(4, SIZE)(torch.zeros(shape)),
            r"`input` must be a map \(4, 3, 4\), batched or not, got",
        )
        for shape in ((2, 4, 4, 3), (2, 5, 3, 4), (3, 4), (1, 2, 4, 3, 4), (5, 3, 4))
    ),
    (lambda: ns.GlobalSimilarity(4, SIZE, 3), "`similarity` must be a name or spec .* got 3"),
    (lambda: ns.GlobalSimilarity(4, SIZE, "none"), "must be a name or spec .* got 'none'"),
    (lambda: ns.GlobalSimilarity(4, SIZE, "static-ful"), "nearest: static-full"),
    (lambda: ns.GlobalSimilarity(0, SIZE), r"`channels` and .* at least 1, got 0, \(3, 4\)"),
    (lambda: ns.GlobalSimilarity(4, (3, 0)), r"at least 1, got 4, \(3, 0\)"),
    (lambda: ns.GlobalSimilarity(4, (3, 4, 5)), r"at least 1, got 4, \(3, 4, 5\)"),
    (lambda: ns.SelfAttention(5, normalize="sum"), "`normalize` must be .* got 'sum'"),
    (lambda: ns.SelfAttention(0), "`channels`, .* must be at least 1, got 0, 1, 0"),
    (lambda: ns.SelfAttention(5, 0), "`channels`, .* must be at least 1, got 5, 0, 5"),
    (lambda: ns.SelfAttention(5, 2, 0), "`channels`, .* must be at least 1, got 5, 2, 0"),
    (lambda: attend(MAP, MAP, MAP, normalize="max"), "`normalize` must be .* got 'max'"),
    (lambda: attend(MAP, (2, 4, 3, 4), MAP), r"`query`, `key` and `value` must be \(n, d"),
    (lambda: attend(MAP, MAP, (2, 5, 4, 3)), r"got \(2, 5, 3, 4\), .*, \(2, 5, 4, 3\)"),
    (lambda: attend(MAP, MAP, (1, 5, 3, 4)), r"got \(2, 5, 3, 4\), .*, \(1, 5, 3, 4\)"),
    (lambda: attend(*[MAP[1:]] * 3), r"must be .* got \(5, 3, 4\), \(5, 3, 4\)"),
    (lambda: similar(MAP, 11), r"must be one of \(12,\), \(2, 12, 1, 1\), .* got \(11,\)"),
    (lambda: similar(MAP, (2, 12)), r"must be one of .*\(2, 12, 12, 1, 1\), .* got \(2, 12\)"),
    (
        lambda: ns.GlobalSimilarity(4, SIZE, ns.Static(ns.Unshared(ns.Full(), filters=2))),
        '`blocks` of a global similarity must be of "channels", got "filters"',
    ),
    (lambda: similar(MAP, 12, blocks=("filters", 5)), 'must be of "channels", got "filters"'),
    (lambda: similar(MAP, (2, 12), blocks=("channels", 2)), "must divide the 5 channels"),
    (
        lambda: similar(MAP, (2, 12), blocks=("channels", 5)),
        r"`similarity` must be one of \(5, 12\), \(2, 5, 12, 1, 1\), .* got \(2, 12\)",
    ),
    (lambda: similar(MAP, 12, torch.uint8), "`x` must have a floating-point dtype, got"),
    (lambda: similar((3, 4), 12), r"`x` must be \(n, c, h, w\) or \(c, h, w\), got \(3, 4\)"),
    (lambda: ns.SelfAttention(4).matrix(torch.zeros(4, *SIZE)), r"`x` must be \(n, c, height,"),
)
