"""Every method against a few independent lines, and many tasks against one at a time."""

from collections import OrderedDict
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from refusals import refusals
from tiny_classes import make_images
from torch import nn
from torch.nn import functional as F

from neural_similarity import models
from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.tasks.few_shot import Episode
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.evaluate import (
    Course,
    _by_features,
    evaluate_method,
    use_statistics,
)
from neural_similarity.lab.tasks.few_shot.heads import CosineFineTuning, CosineLinear, FineTuning
from neural_similarity.lab.tasks.few_shot.interface import Method
from neural_similarity.lab.tasks.few_shot.kshot import DiscriminativeKShot
from neural_similarity.lab.tasks.few_shot.methods import METHODS
from neural_similarity.lab.tasks.few_shot.metric import (
    FullContext,
    MatchingNet,
    NearestNeighbour,
    ProtoNet,
    squared_distances,
)
from neural_similarity.lab.tasks.few_shot.relation import RelationNet
from neural_similarity.lab.tasks.few_shot.static import StaticTuning
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.tasks.few_shot.tuning import Tuning
from neural_similarity.lab.train import choose_runtime, distributed

WAYS, SHOTS, FEATURES = 3, 2, 7
SIZES = TaskSizes(ways=WAYS, shots=SHOTS)
LABELS = torch.arange(WAYS).repeat_interleave(SHOTS)
SHORT = Tuning(epochs=3)


def features(*shape, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, FEATURES, dtype=torch.float64, generator=random)


def network(**options):
    torch.manual_seed(0)
    chosen = {"in_channels": 1, "image_size": 16, "width": 0.1} | options
    return models.build("convnet4", 5, **chosen)


def images(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 16, 16, generator=random)


def each(predict, query):
    """Apply a function of one query to every query."""
    return torch.stack([predict(q) for q in query])


def by_means(support, q):
    means = [support[LABELS == c].mean(0) for c in range(WAYS)]
    return torch.stack([-(torch.dist(q, mean) ** 2) for mean in means])


def by_the_nearest(support, q):
    near = [F.cosine_similarity(q, s, dim=0) for s in support]
    return torch.stack([max(near[2 * c], near[2 * c + 1]) for c in range(WAYS)])


def by_votes(support, q, scale):
    votes = torch.stack([scale * F.cosine_similarity(q, s, dim=0) for s in support]).exp()
    return torch.stack([votes[LABELS == c].sum() / votes.sum() for c in range(WAYS)]).log()


@pytest.mark.parametrize(
    ("method", "definition"),
    [
        (ProtoNet(nn.Identity()), by_means),
        (NearestNeighbour(nn.Identity()), by_the_nearest),
        (MatchingNet(nn.Identity(), scale=1.0), partial(by_votes, scale=1.0)),
        (MatchingNet(nn.Identity()), partial(by_votes, scale=100.0)),
    ],
)
def test_metrics_are_their_definitions_and_losses_cross_entropies(method, definition):
    support, query = features(6), features(4, seed=1)
    found = method.adapt(support, LABELS, WAYS)(query)
    torch.testing.assert_close(found, each(partial(definition, support), query))
    if not isinstance(method, NearestNeighbour):
        targets = torch.tensor([0, 1, 2, 0])
        by_hand = -found.log_softmax(1)[torch.arange(4), targets].mean()
        loss = method.loss(Episode(support, LABELS, query, targets))
        torch.testing.assert_close(loss, by_hand)


@pytest.mark.parametrize("model", ["resnet12", "resnet18", "cnn9", "convnet4", "wrn28_10"])
def test_proto_net_shrinks_what_comes_out_of_one_normalisation(model):
    """Anything else, such as one branch of a residual block, would be another embedding."""
    torch.manual_seed(0)
    net = models.build(model, 3, width=0.05, image_size=32).eval()
    plain = ProtoNet(deepcopy(net)[:-1]).eval()
    x = torch.randn(3, 3, 32, 32)
    before, after = plain.embed(x), METHODS["proto"].build(net, SIZES).eval().embed(x)
    scale = 0.1 if model in ("cnn9", "convnet4", "wrn28_10") else 1.0
    torch.testing.assert_close(after, scale * before)


def test_full_context():
    """The equations of the paper's appendix, one image at a time."""
    torch.manual_seed(0)
    context = FullContext(FEATURES, steps=2).double()
    support, query = features(6), features(4, seed=1)
    forth, back = [], []
    for read, order in ((forth, range(6)), (back, reversed(range(6)))):
        suffix = "" if read is forth else "_reverse"
        cell = nn.LSTMCell(FEATURES, FEATURES).double()
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        cell.load_state_dict({n: getattr(context.reader, f"{n}_l0{suffix}") for n in names})
        state = None
        for i in order:
            state = cell(support[i], state)
            read.append((i, state[0]))
    keys = [support[i] + dict(forth)[i] + dict(back)[i] for i in range(6)]

    def by_hand(q):
        h, c = q, torch.zeros_like(q)
        for _ in range(2):
            attention = torch.stack([h @ key for key in keys]).softmax(0)
            read = sum(a * key for a, key in zip(attention, keys, strict=True))
            h, c = context.cell(torch.cat([q, read]), (h, c))
            h = h + q
        return h

    found = context(support, query)
    torch.testing.assert_close(found[0], torch.stack(keys))
    torch.testing.assert_close(found[1], each(by_hand, query))


def relation_by_hand(numbers, x):
    """Two convolutions, nine cells and eight units."""
    (k1, b1, g1, s1, k2, b2, g2, s2, w1, c1, w2, c2) = numbers
    assert w1.shape == (8, 2 * 3 * 3)
    one, zero = torch.ones(2).double(), torch.zeros(2).double()
    y = F.batch_norm(F.conv2d(x, k1, b1, padding=1), zero, one, g1, s1).relu()
    y = F.batch_norm(F.conv2d(F.max_pool2d(y, 2), k2, b2, padding=1), zero, one, g2, s2).relu()
    y = F.adaptive_max_pool2d(y, 3).flatten(1)
    return F.linear(F.linear(y, w1, c1).relu(), w2, c2)


def test_relation_net():
    torch.manual_seed(0)
    method = RelationNet(nn.Identity(), channels=2).double().eval()
    support, query = features(6, 2, 10), features(4, 2, 10, seed=1)

    def by_hand(q):
        sums = [support[LABELS == c].sum(0) for c in range(WAYS)]
        pairs = torch.stack([torch.cat([q, s]) for s in sums])
        return relation_by_hand(method.compare.parameters(), pairs)[:, 0]

    found = method.adapt(support, LABELS, WAYS)(query)
    torch.testing.assert_close(found, each(by_hand, query))
    episode = Episode(support, LABELS, query, torch.tensor([0, 1, 2, 0]))
    wanted = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    error = ((found.sigmoid() - wanted) ** 2).mean()
    torch.testing.assert_close(method.loss(episode), error)


@pytest.mark.parametrize(
    ("model", "size", "margin", "layers"),
    [("convnet4", 16, 0, (1, 1, 1, 1)), ("cnn9", 20, 2, (3, 3, 3))],
)
def test_relation_net_embeds_by_every_layer_with_relu_and_two_pools(model, size, margin, layers):
    torch.manual_seed(0)
    source = models.build(model, 5, image_size=size, width=0.1).eval()
    method = METHODS["relation"].build(source, SIZES).eval()
    x = torch.randn(3, 3, size, size)
    maps = F.pad(x, (margin,) * 4)
    for stage, count in enumerate(layers, 1):
        for number in range(1, count + 1):
            conv, norm = source.get_submodule(f"conv{stage}_{number}")[:2]
            maps = norm(conv(maps)).relu()
        maps = F.max_pool2d(maps, 2) if stage < 3 else maps
    torch.testing.assert_close(method.embed(x), maps)
    assert method.embed(x).min() == 0


def textbook(layer, support, tuning, rate=1):
    """Fine-tuning as everybody writes it; M takes steps `rate` times as large."""
    named = dict(layer.named_parameters())
    groups = [{"params": [p for n, p in named.items() if not n.endswith(".raw")]}]
    groups += [{"params": [p for n, p in named.items() if n.endswith(".raw")], "lr": 0.01 * rate}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, dampening=0.9, weight_decay=1e-3)
    for chosen in tuning.minibatch_positions(len(support)):
        optimizer.zero_grad()
        F.cross_entropy(layer(support[chosen]), LABELS[chosen]).backward()
        optimizer.step()
    return layer


@pytest.mark.parametrize("cosine", [False, True])
def test_fine_tuning_is_the_textbooks(cosine):
    support, query = features(6), features(4, seed=1)
    weight = SHORT.first_weights(WAYS, FEATURES).double()
    if cosine:
        layer = CosineLinear(FEATURES, WAYS).double()
        first = {"weight": weight, "gain": weight.norm(dim=1)}
    else:
        layer = nn.Linear(FEATURES, WAYS).double()
        first = {"weight": weight, "bias": SHORT.first_weights(WAYS, FEATURES + 1)[:, 0].double()}
    layer.load_state_dict(first)
    kind = CosineFineTuning if cosine else FineTuning
    found = kind(nn.Identity(), SHORT).adapt(support, LABELS, WAYS)(query)
    torch.testing.assert_close(found, textbook(layer, support, SHORT)(query).detach())


def test_the_papers_tuning():
    """100 passes in mini-batches of 4, every image once in each, as the seed says."""
    chosen = list(Tuning().minibatch_positions(25))
    assert [len(part) for part in chosen] == [4, 4, 4, 4, 4, 4, 1] * 100
    for epoch in range(100):
        assert sorted(torch.cat(chosen[7 * epoch : 7 * epoch + 7]).tolist()) == list(range(25))
    weights = Tuning().first_weights(5, 800)
    assert weights.abs().max() <= 800**-0.5
    assert weights.std() == pytest.approx(800**-0.5 / 3**0.5, rel=0.05)
    for seed, same in ((0, True), (1, False)):
        other = Tuning(seed=seed)
        assert torch.equal(torch.cat([*other.minibatch_positions(25)]), torch.cat(chosen)) == same
        assert torch.equal(other.first_weights(5, 800), weights) == same


def test_cosine_linear_by_hand():
    """Gains start as the lengths of the kernels."""
    layer = CosineLinear(FEATURES, 4, scale=3.0).double()
    torch.testing.assert_close(layer.gain, layer.weight.norm(dim=1))
    assert CosineLinear(FEATURES, 4).scale == 2
    nn.init.normal_(layer.gain)
    x = features(2)
    pairs = zip(layer.gain, layer.weight, strict=True)
    by_hand = [3 * g * F.cosine_similarity(x, w[None]) for g, w in pairs]
    torch.testing.assert_close(layer(x), torch.stack(by_hand, 1))


MANY = {
    "proto": ProtoNet(nn.Identity()),
    "nearest": NearestNeighbour(nn.Identity()),
    "matching": MatchingNet(nn.Identity()),
    "context": MatchingNet(nn.Identity(), FullContext(FEATURES).double(), scale=5.0),
    "fine-tuning": FineTuning(nn.Identity(), SHORT),
    "baseline++": CosineFineTuning(nn.Identity(), SHORT),
    "relation": RelationNet(nn.Identity(), channels=2).double().eval(),
    "k-shot": DiscriminativeKShot(nn.Sequential(nn.Linear(FEATURES, 6)).double()),
}
MAPS = 2, 4


@pytest.mark.parametrize("name", MANY)
def test_many_tasks_are_as_one_by_one(name):
    method, shape = MANY[name], MAPS if name == "relation" else ()
    assert method.at_once > 1
    support, query = features(5, 6, *shape), features(5, 4, *shape, seed=1)
    together = method.adapt(support, LABELS, WAYS)(query)
    alone = [method.adapt(s, LABELS, WAYS)(q) for s, q in zip(support, query, strict=True)]
    near = 1e-8 if name == "k-shot" else 1e-12  # Newton's method ends below 1e-9.
    torch.testing.assert_close(together, torch.stack(alone), rtol=near, atol=near)


LONG = {
    "fine-tuning": FineTuning(nn.Identity(), Tuning(epochs=20)),
    "baseline++": CosineFineTuning(nn.Identity(), Tuning(epochs=20, lr=0.1)),
}


@pytest.mark.parametrize("labels", [LABELS, LABELS.flip(0), torch.tensor([0, 1, 2, 0, 1, 2])])
@pytest.mark.parametrize("name", MANY)
def test_labels_may_come_in_any_order(name, labels):
    method, shape = MANY[name], MAPS if name == "relation" else ()
    support, query = features(6, *shape), features(4, *shape, seed=1)
    order = labels.argsort(stable=True)
    if name in ("proto", "nearest", "matching", "relation", "k-shot"):
        found = method.adapt(support, labels, WAYS)(query)
        torch.testing.assert_close(found, method.adapt(support[order], LABELS, WAYS)(query))
    else:  # the order of the images counts; what is learned of them is theirs all the same
        far = features(len(labels)) + 20 * F.one_hot(labels, FEATURES)
        method = LONG.get(name, method)
        assert torch.equal(method.adapt(far, labels, WAYS)(far).argmax(1), labels)


@pytest.mark.parametrize(
    ("similarity", "name", "rate"),
    [("none", "static-nsn", 1), ("static-full", "static-nsn-rate0.1", 0.1)],
)
def test_static_tuning_is_the_textbooks(similarity, name, rate, monkeypatch):
    """M and head by torch's optimiser on a copy of the network, kernels and statistics fixed."""
    tuning = Tuning(epochs=2)
    base = network(similarity=similarity).double().eval()
    for module in base.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    method = METHODS[name].build(base, SIZES)
    monkeypatch.setattr(method, "tuning", tuning)
    support, query = images(6).double(), images(4, seed=1).double()
    found = method.adapt(support, LABELS, WAYS)(query)

    other = StaticTuning(base[:-1], base[-1].in_features, tuning)  # copied, so its own M
    head = nn.Linear(base[-1].in_features, WAYS).double()
    bias = tuning.first_weights(WAYS, head.in_features + 1)[:, 0]
    head.load_state_dict({"weight": tuning.first_weights(WAYS, head.in_features), "bias": bias})
    layer = nn.Sequential(OrderedDict(body=other.backbone.eval(), head=head))
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name.endswith(".raw") or name.startswith("head"))
    expected = textbook(layer, support, tuning, rate)(query).detach()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    moved = [m for name, m in layer.named_parameters() if name.endswith(".raw")]
    assert len(moved) == 4
    assert all(m.abs().max() > 0 for m in moved)


def episode():
    targets = torch.arange(WAYS).repeat_interleave(2)
    return Episode(images(6), LABELS, images(6, seed=1), targets)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.episodic])
@pytest.mark.parametrize("similarity", ["static-diagonal", "dynamic-diagonal"])
def test_training_by_tasks_reaches_every_parameter(name, similarity):
    method = METHODS[name].build(network(similarity=similarity), SIZES)
    method.loss(episode()).backward()
    trained = {n: p for n, p in method.named_parameters() if p.requires_grad}
    without = [n for n, p in trained.items() if p.grad is None]
    # Predictors have no gradient while their gains are 0, at the first step.
    assert [n for n in without if ".predictor." not in n] == []


@pytest.mark.parametrize("cast", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_predicts(name, cast):
    method = METHODS[name].build(network(similarity="static-diagonal"), SIZES).eval()
    assert method.statistics == METHODS[name].statistics
    support, query = images(6), images(4, seed=1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        if method.fixed_embedding:
            support, query = method.embed(support), method.embed(query)
        logits = method.adapt(support, LABELS, WAYS)(query)
    assert logits.shape == (4, WAYS)
    assert logits.isfinite().all()
    assert not logits.requires_grad


@pytest.fixture(scope="module")
def tested():
    held = make_images(5, 10)
    sizes = TaskSizes(ways=3, shots=2, queries=4)
    tasks = draw_tasks(held, sizes, 6, seed=0, data="x", part="test")
    return {"images": held, "tasks": tasks}


RUNTIME = {"preprocess": Preprocess((0.5,), (0.25,)), "runtime": choose_runtime("cpu", "fp32")}


def by_hand(method, tested, embed=lambda *parts: parts):
    """Right queries of every task, whose images are embedded by themselves."""
    found = []
    draw, sizes = tested["tasks"].draw, tested["tasks"].sizes
    for positions in zip(draw.support, draw.query, strict=True):
        images = (RUNTIME["preprocess"](tested["images"].pixels[p]) for p in positions)
        with torch.no_grad():
            support, query = embed(*images)
            logits = method.adapt(support, sizes.support_labels, sizes.ways)(query)
        found.append((logits.argmax(1) == sizes.query_labels).sum())
    return torch.stack(found)


@pytest.mark.long
@pytest.mark.parametrize("name", ["proto", "fine-tuning", "relation", "static-nsn", "anil"])
def test_the_evaluator_counts_right_queries(tested, name):
    method = METHODS[name].build(network(), SIZES)
    for part in method.modules():
        if hasattr(part, "tuning"):
            part.tuning = SHORT
    runtime = RUNTIME["runtime"].place_model(method)
    told = []
    found = evaluate_method(runtime, **tested, **RUNTIME, course=Course(progress=told.append))
    assert method.training
    each_alone = (lambda *parts: map(method.embed, parts),) if method.fixed_embedding else ()
    expected = by_hand(method.eval(), tested, *each_alone)
    assert torch.equal(found, expected)
    assert torch.equal(told[-1], expected)
    assert found.dtype == torch.int64
    course = Course(done=torch.tensor([-1, -1]))
    later = evaluate_method(runtime, **tested, **RUNTIME, course=course)
    assert later.tolist() == [-1, -1, *expected[2:]]


def test_features_come_to_the_device_of_a_process_that_embeds_none(tested, monkeypatch):
    """Two processes share 18 images, one batch: the first has none of it."""
    monkeypatch.setattr(distributed, "own_share", lambda _: slice(0, 0))
    monkeypatch.setattr(distributed, "gather_rows", lambda _: torch.ones(100, 4))
    method = SimpleNamespace(at_once=2)
    scorer = SimpleNamespace(method=method, device=torch.device("meta"), count_right=lambda s, _: s)
    found = next(_by_features(scorer, tested["images"], tested["tasks"], 0))
    assert found.is_meta


class Watching(ProtoNet):
    """Embeds, for every task or once; counts images, and notes whether it was training then.

    And whether features are compared under autocast, and their type.
    """

    def __init__(self, fixed=True):
        super().__init__(network()[:-1])
        self.fixed_embedding, self.count, self.seen, self.kinds = fixed, 0, set(), []

    def embed(self, images):
        self.count += len(images)
        self.seen.update(part.training for part in self.modules())
        return super().embed(images)

    def adapt(self, support, labels, ways):
        if self.fixed_embedding:
            self.kinds.append((torch.is_autocast_enabled("cpu"), support.dtype))
            return super().adapt(support, labels, ways)
        predict = super().adapt(self.embed(support), labels, ways)
        return lambda query: predict(self.embed(query))


@pytest.mark.parametrize(
    ("fixed", "statistics", "once"),
    [(True, "running", True), (False, "running", False), (True, "support", False)],
)
def test_nothing_trains_when_tried_and_features_are_made_once(tested, fixed, statistics, once):
    """Dropout and batch statistics would leak; modes are left as they were."""
    method = use_statistics(Watching(fixed).train(), statistics)
    method.backbone[0].eval()
    modes = [part.training for part in method.modules()]
    evaluate_method(method, **tested, **RUNTIME)
    assert method.seen == {False}
    assert method.count == (len(tested["tasks"].image_positions()) if once else 6 * 3 * (2 + 4))
    assert [part.training for part in method.modules()] == modes
    course = Course(progress=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluate_method(method, **tested, **RUNTIME, course=course)
    assert [part.training for part in method.modules()] == modes


@pytest.mark.parametrize("statistics", ["support", "transductive"])
def test_the_evaluator_uses_the_statistics_that_it_is_told(tested, statistics):
    """By hand: the support set normalises the queries, or they do so themselves."""
    method = use_statistics(ProtoNet(network()[:-1]), statistics)
    assert method.statistics == statistics
    plain = set_statistics(network()[:-1], None).train()

    def embed(support, query):
        alone = statistics == "transductive"
        return plain(support), plain(query) if alone else _normalised(plain, support, query)

    expected = by_hand(ProtoNet(nn.Identity()), tested, embed)
    assert torch.equal(evaluate_method(method, **tested, **RUNTIME), expected)


def _normalised(plain, support, query):
    """Layer by layer, queries by mean and variance of the support set."""
    for layer in plain:
        for part in layer if isinstance(layer, nn.Sequential) else [layer]:
            if isinstance(part, nn.BatchNorm2d):
                mean = support.mean((0, 2, 3), keepdim=True)
                var = support.var((0, 2, 3), correction=0, keepdim=True)
                support, query = ((x - mean) / (var + part.eps).sqrt() for x in (support, query))
            else:
                support, query = part(support), part(query)
    return query


@pytest.mark.parametrize("statistics", ["support", "transductive"])
def test_features_are_compared_in_full_precision(tested, statistics):
    """Embedding alone is in bf16, as in training and where features are kept."""
    method = use_statistics(Watching(), statistics)
    options = {"preprocess": RUNTIME["preprocess"], "runtime": choose_runtime("cpu", "bf16")}
    evaluate_method(method, **tested, **options)
    assert method.kinds == [(False, torch.float32)] * 6


class Moving(Method):
    """Names class 0 until its weight has changed, and then class 1."""

    fixed_embedding = False

    def __init__(self):
        super().__init__()
        self.named = []
        self.weight = nn.Parameter(torch.eye(3)[:, :1].clone())  # copies of views are not kept

    def adapt(self, support, _labels, _ways):
        with torch.enable_grad():
            F.linear(support.flatten(1)[:, :1], self.weight)
        with torch.no_grad():
            self.weight.copy_(torch.eye(3)[:, 1:2])

        def predict(query):
            logits = F.linear(query.flatten(1)[:, :1].abs() + 1, self.weight)
            self.named.append(logits.argmax(1).unique().item())
            return logits

        return predict


def test_autocast_keeps_no_copies_of_what_changes(tested):
    options = {"preprocess": RUNTIME["preprocess"], "runtime": choose_runtime("cpu", "bf16")}
    method = Moving()
    evaluate_method(method, **tested, **options)
    assert method.named == [1] * 6


test_what_a_method_lacks_is_named = refusals(
    (lambda: Method().adapt(images(1), LABELS[:1], 1), "Method must define adapt"),
    (lambda: Method().loss(episode()), "Method is trained by classification"),
    error=NotImplementedError,
)


def test_running_statistics_that_training_did_not_keep_are_refused():
    method = METHODS["anil"].build(network(), SIZES)
    with pytest.raises(ValueError, match='kept no running statistics, got "running"'):
        use_statistics(method, "running")
    trained = network()
    for norm in (*method.modules(), *trained.modules()):
        if isinstance(norm, nn.BatchNorm2d):
            norm.num_batches_tracked.fill_(1)
    with pytest.raises(ValueError, match="kept no running statistics"):
        use_statistics(METHODS["anil"].build(trained, SIZES), "running")
    assert use_statistics(method, "running").statistics == "running"


def test_statistics_of_torchs_own_layers_are_called_what_they_are():
    method = set_statistics(ProtoNet(network()[:-1]), "transductive")
    assert set_statistics(method, None).statistics == "running"


def test_distances_are_exact_far_from_the_origin():
    x, y = features(4).float() + 1e3, features(3, seed=1).float() + 1e3
    exact = (x.double()[:, None] - y.double()).square().sum(-1)
    torch.testing.assert_close(squared_distances(x, y).double(), exact, rtol=1e-4, atol=1e-4)


def adapted_by_support(name):
    method = use_statistics(METHODS[name].build(network(), SIZES), "support")
    method.adapt(images(6), LABELS, WAYS)


test_errors = refusals(
    (
        lambda: METHODS["relation"].build(models.build("resnet12", 5, width=0.1), SIZES),
        "`network` must be convnet4 or cnn9, whose maps are",
    ),
    (
        lambda: METHODS["static-nsn"].build(network(similarity="dynamic-diagonal"), SIZES),
        "`backbone` must have convolutions that are plain or",
    ),
    (lambda: adapted_by_support("static-nsn"), "`statistics` must be .* for static NSN.*'support'"),
    (
        lambda: adapted_by_support("relation"),
        "`statistics` must be .* for relation networks.*'supp",
    ),
)
