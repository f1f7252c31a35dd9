"""LEO, TADAM and discriminative k-shot learning against their equations, written out."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from refusals import refusals
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.lab.data import load_split
from neural_similarity.lab.session import train
from neural_similarity.lab.tasks.few_shot import Episode
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator
from neural_similarity.lab.tasks.few_shot.kshot import DiscriminativeKShot, maximise_posterior
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes, draw_tasks
from neural_similarity.lab.train.journal import read_lines
from neural_similarity_paper.rival_methods.leo import Latent, Leo
from neural_similarity_paper.rival_methods.tadam import Tadam

DOUBLE = {"dtype": torch.float64}
WAYS = 3


def network(outputs=6):
    torch.manual_seed(0)
    layers = []
    for channels, filters in ((3, 4), (4, 8)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
        layers += [nn.ReLU()]
    built = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, outputs))
    for module in built.double().modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
    return built


def task(seed=1):
    generator = torch.Generator().manual_seed(seed)
    sets = (torch.randn(WAYS * n, 3, 8, 8, generator=generator, **DOUBLE) for n in (2, 3))
    support, query = ((images, torch.arange(len(images)) % WAYS) for images in sets)
    return Episode(*support, *query)


def features(method, drawn):
    method.eval()
    with torch.no_grad():
        return method.embed(drawn.support), method.embed(drawn.query)


def test_k_shot_is_the_maximum_that_a_general_optimiser_finds():
    method, drawn = DiscriminativeKShot(network()), task()
    nn.init.normal_(method.base.bias)
    support, query = features(method, drawn)
    weight, bias = method.base.weight.detach(), method.base.bias.detach()
    variance = sum((weight[:, j] - weight[:, j].mean()).square().mean() for j in range(32)) / 32
    bias_variance = (bias - bias.mean()).square().mean()
    mean = torch.cat([weight.mean(0), bias.mean()[None]])
    precision = torch.cat([torch.full((32,), 1 / variance, **DOUBLE), 1 / bias_variance[None]])
    found = mean.repeat(WAYS, 1).requires_grad_()
    optimizer = torch.optim.LBFGS([found], max_iter=500, line_search_fn="strong_wolfe",
                                  tolerance_grad=1e-10, tolerance_change=1e-14)  # fmt: skip

    def scores(x):
        return x @ found[:, :-1].mT + found[:, -1]

    def loss():
        optimizer.zero_grad()
        prior = ((found - mean).square() * precision).sum() / 2
        total = F.cross_entropy(scores(support), drawn.support_labels, reduction="sum") + prior
        total.backward()
        return total

    optimizer.step(loss)
    expected = scores(query).detach().log_softmax(-1)
    ours = method.adapt(support, drawn.support_labels, WAYS)(query).log_softmax(-1)
    assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_newtons_method_ends_at_a_zero_gradient_for_weak_and_strong_priors(scale):
    x = torch.randn(4, 8, 20, **DOUBLE)
    kernel, targets = scale * x @ x.mT, F.one_hot(torch.arange(8) % WAYS).double()
    dual = maximise_posterior(kernel, targets)
    residual = targets - (kernel @ dual).softmax(-1) - dual
    assert residual.abs().max() < 1e-9
    assert_close(dual[1], maximise_posterior(kernel[1], targets), atol=1e-8, rtol=1e-6)


def leo(**options):
    torch.manual_seed(1)
    return Leo(network(), Latent(**{"size": 3, "dropout": 0.0} | options)).double()


def leo_by_hand(method, drawn):
    """The equations of the paper with their loops, at the means."""
    support, query = features(method, drawn)
    encoded = [method.encoder.weight @ x for x in support]
    codes = []
    for way in range(WAYS):
        related = [
            method.relation(torch.cat([encoded[i], other]))
            for i in range(len(support))
            if drawn.support_labels[i] == way
            for other in encoded
        ]
        codes.append((sum(related) / len(related))[:3])
    z = torch.stack(codes)

    def decoded(z):
        return (z @ method.decoder.weight.mT)[:, :32]

    def loss(weight):
        return F.cross_entropy(support @ weight.mT, drawn.support_labels)

    for _ in range(method.latent.steps):
        z = z - method.rate * torch.autograd.grad(loss(decoded(z)), z, create_graph=True)[0]
    weight = decoded(z)
    for _ in range(method.latent.tuning_steps):
        change = torch.autograd.grad(loss(weight), weight, create_graph=True)[0]
        weight = weight - method.tuning_rate * change
    return torch.stack(codes), z, query @ weight.mT


def test_leo_is_its_equations():
    method, drawn = leo(tuning_rate=0.5, kl=0.3, encoder=10.0), task()
    support, query = features(method, drawn)
    start, end, logits = leo_by_hand(method, drawn)
    predict = method.adapt(support, drawn.support_labels, WAYS)
    assert not predict(query).requires_grad
    assert_close(predict(query), logits.detach())
    codes = method.latent_codes(support, drawn.support_labels, WAYS)
    pairs = zip(codes.mean.flatten(), codes.std.flatten(), strict=True)
    standard = torch.distributions.Normal(*torch.tensor([0.0, 1.0], **DOUBLE))
    normal, divergence = torch.distributions.Normal, torch.distributions.kl_divergence
    divergences = [divergence(normal(mean, std), standard) for mean, std in pairs]
    expected = F.cross_entropy(logits, drawn.query_labels) + method.weight_penalty()
    expected = expected + 0.3 * sum(divergences) / len(divergences)
    expected = expected + 10 * (start - end.detach()).square().mean()
    assert_close(method.loss(drawn), expected)
    parameters = [p for p in method.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(value, parameters) for value in (method.loss(drawn), expected)]
    assert_close(*gradients)


@torch.no_grad()
def test_the_decay_of_leo():
    method = leo(l2=0.1, orthogonality=0.2)
    weights = [method.encoder, method.decoder, *method.relation[::2]]
    squares = sum(float(layer.weight.square().sum()) for layer in weights)
    unlike = 0.0
    for i in range(3):
        for j in range(3):
            columns = method.decoder.weight[:, i], method.decoder.weight[:, j]
            unlike += (float(F.cosine_similarity(*columns, dim=0)) - (i == j)) ** 2 / 9
    assert method.weight_penalty().item() == pytest.approx(0.1 * squares / 2 + 0.2 * unlike)


def test_leo_draws_in_training_only_and_its_embedding_stays():
    method, drawn = leo(dropout=0.5), task()
    assert len({method.train().loss(drawn).item() for _ in range(3)}) == 3
    assert len({method.eval().loss(drawn).item() for _ in range(3)}) == 1
    assert not method.train().backbone.training
    before = copy.deepcopy(method.backbone.state_dict())
    method.loss(drawn).backward()
    assert all(p.grad is None for p in method.backbone.parameters())
    assert all(torch.equal(before[k], v) for k, v in method.backbone.state_dict().items())
    assert method.rate.grad.abs().min() > 0
    assert method.tuning_rate.grad.abs().max() > 0


def tadam(similarity=None, strength=0.0):
    torch.manual_seed(1)
    built = network()
    if similarity is not None:
        built = ns.convert(built, similarity)
    method = Tadam(built).double().eval()
    nn.init.constant_(method.log_scale, math.log(0.5))
    for condition in method.conditions:
        nn.init.normal_(condition.strength, std=strength)
    return method


def prototype_logits(support, query, labels):
    means = [support[labels == way].mean(0) for way in range(WAYS)]
    return torch.stack([-0.5 * (query - mean).square().sum(1) for mean in means], 1)


def test_tadam_is_scale_and_shift_behind_every_normalisation():
    method, drawn = tadam(strength=0.5), task()
    support, _ = features(method, drawn)
    labels = drawn.support_labels
    mean = torch.stack([support[labels == way].mean(0) for way in range(WAYS)]).mean(0)
    norms = [m for m in method.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    plain = copy.deepcopy(method.backbone)
    hooked = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm, condition in zip(hooked, method.conditions, strict=True):
        parts = []
        nets = condition.scale, condition.shift
        for net, strength in zip(nets, condition.strength, strict=True):
            x = net.project(mean)
            for layer in net.layers:
                x = x + layer(x.relu())
            parts.append(strength * x)
        gamma, beta = 1 + parts[0][:, None, None], parts[1][:, None, None]
        norm.register_forward_hook(lambda _, __, y, gamma=gamma, beta=beta: gamma * y + beta)
    assert len(norms) == 2
    expected = prototype_logits(plain(drawn.support), plain(drawn.query), labels)
    assert_close(method.adapt(drawn.support, labels, WAYS)(drawn.query), expected)
    penalty = sum(c.strength.square().sum() for c in method.conditions)
    loss = F.cross_entropy(expected, drawn.query_labels) + 0.01 * penalty
    assert_close(method.loss(drawn), loss)
    method.train().loss(drawn).backward()
    learned = [*method.conditions.parameters(), method.log_scale]
    assert all(p.grad is not None and p.grad.any() for p in learned)


@pytest.mark.parametrize("statistics", ["running", "support", None])
def test_no_query_of_tadam_sees_another(statistics):
    method, drawn = set_statistics(tadam(strength=0.5), statistics), task()
    predict = method.adapt(drawn.support, drawn.support_labels, WAYS)
    together = predict(drawn.query)
    others = torch.cat([drawn.query[:1], 30 * torch.randn_like(drawn.query)])
    assert_close(predict(others)[:1], together[:1])
    transductive = set_statistics(method, "transductive")
    predict = transductive.adapt(drawn.support, drawn.support_labels, WAYS)
    assert (predict(others)[:1] - predict(drawn.query)[:1]).abs().max() > 1e-3


def test_tadam_leaves_the_normalisation_of_predictors_alone():
    predictor = ns.SphereNet(hidden=3, batch_norm=True)
    method = tadam(ns.Dynamic(predictor=predictor), strength=0.5)
    norms = [m for m in method.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 6
    assert [c.scale.project.out_features for c in method.conditions] == [4, 8]


def test_autocast_leaves_what_follows_the_embedding_in_full_precision():
    method, drawn = leo().float().eval(), task()
    support, query = (x.float() for x in features(leo(), drawn))
    logits = method.adapt(support, drawn.support_labels, WAYS)(query)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(method.adapt(support, drawn.support_labels, WAYS)(query), logits)
        loss = method.loss(drawn._replace(support=drawn.support.float(), query=drawn.query.float()))
    assert loss.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        predict = tadam().float().adapt(drawn.support.float(), drawn.support_labels, WAYS)
        assert predict(drawn.query.float()).dtype == torch.float32


test_errors = refusals(
    (lambda: DiscriminativeKShot(network(1)), "at least two base classes .*, got 1"),
    (lambda: DiscriminativeKShot(network()[:-1]), "ends in a torch.nn.Linear"),
    (lambda: Leo(network()[:-1]), "ends in a torch.nn.Linear"),
    (lambda: Tadam(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))), "must have batch norm"),
)


def test_leo_draws_codes_and_classifiers_in_training(monkeypatch):
    """Every draw one standard deviation above its mean, by hand; gradients go through draws."""
    method, drawn = leo(steps=1, tuning_steps=0, kl=0.0, encoder=0.0), task()
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    shown, asked = features(method, drawn)
    codes = method.latent_codes(shown, drawn.support_labels, WAYS)

    def decoded(z):
        mean, spread = (z @ method.decoder.weight.mT).chunk(2, 1)
        return mean + spread.exp() - 1 + (2 / (WAYS + 32)) ** 0.5

    z = codes.mean + codes.std
    loss = F.cross_entropy(shown @ decoded(z).mT, drawn.support_labels)
    z = z - method.rate * torch.autograd.grad(loss, z, create_graph=True)[0]
    expected = F.cross_entropy(asked @ decoded(z).mT, drawn.query_labels) + method.weight_penalty()
    parts = [method.encoder, method.relation, method.decoder]
    learned = [method.rate, *(p for part in parts for p in part.parameters())]
    found = method.train().loss(drawn)
    assert_close(found, expected)
    assert_close(*(torch.autograd.grad(loss, learned) for loss in (found, expected)))


def test_leo_drops_features_before_the_encoder_and_before_the_classifier(monkeypatch):
    """Without draws, and with codes that no feature changes, nothing else is random."""
    method, drawn = leo(dropout=0.5), task()
    seen, _ = features(method, drawn)
    codes = [method.train().latent_codes(seen, drawn.support_labels, WAYS).mean for _ in range(2)]
    assert not torch.equal(*codes)
    nn.init.zeros_(method.encoder.weight)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    assert len({method.train().loss(drawn).item() for _ in range(3)}) == 3


SMALL = FewShotRecipe(
    dataset="embedded",
    **{"width": 0.1, "steps": 60, "drops": (), "lr": 3e-3, "batch_size": 32, "ways": 3},
    **{"queries": 5, "crop": 1, "flip": False, "precision": "fp32", "threads": 1, "log_every": 10},
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "model", "steps"),
    [("k-shot", "resnet34", 0), ("tadam", "resnet12", 40), ("leo", "wrn28_10", 30)],
)
def test_deep_methods_learn_on_the_backbones_of_their_papers(tmp_path, method, model, steps):
    """On real images of 28 pixels: the backbone names base classes, then come tasks of them."""
    run = train(replace(SMALL, model=model), out=tmp_path / model, device="cpu")
    if steps:
        recipe = replace(SMALL, model=model, method=method, steps=steps, start=str(run.path))
        run = train(recipe, out=tmp_path / method, device="cpu")
        losses = [line["loss"] for line in read_lines(run.metrics) if "loss" in line]
        assert losses[-1] < losses[0]
    split = load_split("embedded", tmp_path)
    facts = {"seed": 0, "data": split.digest, "part": "test"}
    tasks = draw_tasks(split.test, TaskSizes(ways=3), 40, **facts)
    evaluation, _ = Evaluator(method=method, device="cpu")(run, split, tasks)
    assert evaluation.summary["accuracy"] > 1 / 3 + 0.3
