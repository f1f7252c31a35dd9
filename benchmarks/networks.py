"""CNN-9 with every similarity, networks of recipes, and others: while trained or used."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from benchmarks import oracle
from benchmarks.case import Case, Placed, Subject, fixed_seed, move_similarities
from benchmarks.compare import Entrant, compare, forward_call
from benchmarks.measure import Call, Clock, macs
from benchmarks.options import Options
from benchmarks.oracle import Checker
from benchmarks.report import Group, Row
from neural_similarity import models
from neural_similarity.conversion import convert, fold
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Recipe
from neural_similarity.lab.train.run import build_network
from neural_similarity.nn import SIMILARITIES, format_similarity
from neural_similarity.nn.text import required_similarity
from neural_similarity.regularize import parameter_groups
from neural_similarity_paper.recipes import FAMILIES
from neural_similarity_paper.tables import TABLES

CLASSES = 10
PREDICTORS = {
    name.removeprefix("cifar10-"): RECIPES[name].similarity
    for name in ("cifar10-dynamic-dns", *FAMILIES["cheaper"][1])
}
"""Diagonal M by the predictor of the tables, and by cheaper ones."""
KNOWN = {name: spec for name, spec in SIMILARITIES.items() if spec is not None} | PREDICTORS
"""Every similarity that CNN-9 is measured with."""
SLOW = "cifar10-deformable"
"""Takes minutes on a CPU."""
COMPARED = tuple(
    dict.fromkeys(
        row.recipe
        for table in ("4", "1", "2", "3", "costs", "rivals")
        for row in TABLES[table].all_rows
        if (recipe := RECIPES[row.recipe]).dataset == "cifar10"
        and recipe.optimizer == "sgd"
        and recipe.sphere_decay is None
        and row.recipe != SLOW
    )
)
"""Recipes of tables whose networks are CNN-9 and whose updates are those timed, the plain first."""
CONVERTED = {
    "static-full": "static-full",
    "dynamic-diagonal": "dynamic-diagonal",
    "dynamic-full": "dynamic-full",
    "pooled-diagonal": "Dynamic(Diagonal(), predictor=Pooled())",
    "pooled-full": "Dynamic(Full(), predictor=Pooled())",
    "light-diagonal": "Dynamic(Diagonal(), predictor=Light())",
    "light-full": "Dynamic(Full(), predictor=Light())",
}
"""Similarities of whole networks, by name."""
FOLDED = ", folded"
PLAIN, STEP, FORWARD = "plain", "step", "forward"
CHECKED = 16
"""Images that networks are checked on: enough for the statistics of batch normalisation."""


def texts_of(names: Iterable[str]) -> dict[str, str]:
    """The similarities of these names as they are now, every field named."""
    return {name: format_similarity(KNOWN[name], complete=True) for name in names}


def cnn9(case: Case, name: str) -> nn.Module:
    """CNN-9 of the similarity called `name`, learned, or the plain one."""
    similarity = None if name == PLAIN else KNOWN[name]
    with fixed_seed():
        return move_similarities(models.cnn9(CLASSES, width=case.width, similarity=similarity))


def of_recipe(case: Case, name: str) -> nn.Module:
    """The network of the recipe called `name`, one of CIFAR-10, learned."""
    recipe = RECIPES[name]
    with fixed_seed():
        return move_similarities(build_network(recipe, CLASSES, width=case.width * recipe.width))


def converted_network(case: Case, name: str) -> nn.Module:
    """The network of the case, plain, converted or folded."""
    with fixed_seed():
        network = NETWORKS[case.kind]()
        if name == PLAIN:
            return network
        text = CONVERTED[name.removesuffix(FOLDED)]
        network = move_similarities(convert(network, required_similarity(text)))
        return fold(network) if name.endswith(FOLDED) else network


def subject_of(case: Case, name: str, network: nn.Module) -> Subject:
    """A network, checked on a few images."""
    return Subject(
        name=name,
        module=Placed(network, case.runtime),
        inputs=(case.images(CHECKED),),
        oracle=oracle.network,
        smooth=not network.training,
    )


def checker_of(case: Case) -> Checker:
    """Compares networks with their oracles."""
    with fixed_seed():
        grad = torch.randn(CHECKED, CLASSES).to(case.runtime.device)
    return Checker(grad, case.dtype)


def training(options: Options) -> Iterator[Row]:
    """Updates of CNN-9, plain and with similarities."""
    for case in options.cases():
        yield from updates("updates of CNN-9", case, cnn9, (PLAIN, *options.similarity))


def recipes(options: Options) -> Iterator[Row]:
    """Updates of the networks of the tables."""
    for case in options.cases():
        yield from updates("updates by recipe", case, of_recipe, COMPARED)


def whole_networks(options: Options) -> Iterator[Row]:
    """Updates of whole networks, plain and converted, in both layouts."""
    names = ("U-Net",) if options.quick else options.network
    for case in options.cases(names, nchw=True):
        what = f"updates of {case.kind}, {case.layout}"
        yield from updates(
            what, case, converted_network, (PLAIN, "static-full", "dynamic-diagonal")
        )


def inference(options: Options) -> Iterator[Row]:
    """CNN-9 plain, static, folded and dynamic."""
    for case in options.cases():
        images = case.images(case.batch)
        found = list(_inference_subjects(case, (PLAIN, *options.similarity)))
        calls = [forward_call(one.module, [images]) for one in found]
        pairs = zip(found, calls, strict=True)
        yield from compared_networks(group_of(case), case, FORWARD, pairs)


def _inference_subjects(case: Case, names: Iterable[str]) -> Iterator[Subject]:
    for name in names:
        network = cnn9(case, name).eval().requires_grad_(False)
        original = subject_of(case, name, network)
        yield original
        if name.startswith("static"):
            folded = subject_of(case, f"{name}, folded", fold(network).requires_grad_(False))
            twin = deepcopy(original.module).double()
            yield replace(folded, oracle=lambda _, x, twin=twin: oracle.network(twin, x))


def updates(
    what: str,
    case: Case,
    build: Callable[[Case, str], nn.Module],
    names: Iterable[str],
) -> list[Row]:
    """Updates of networks on one batch: no data, no log."""
    images = case.images(case.batch)
    labels = torch.arange(case.batch, device=images.device) % CLASSES
    subjects = [subject_of(case, name, build(case, name)) for name in names]

    def call(module: nn.Module) -> Call:
        recipe = Recipe()
        groups = parameter_groups(module, weight_decay=recipe.weight_decay)
        optimizer = SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
        return partial(update, module, optimizer, (images, labels))

    pairs = [(one, call(one.module)) for one in subjects]
    return compared_networks(group_of(case, what), case, STEP, pairs)


def group_of(case: Case, what: str = "") -> Group:
    """What networks of a case have in common."""
    group: Group = {"dtype": case.runtime.precision, "batch": case.batch}
    return {"what": what} | group if what else group


def update(model: nn.Module, optimizer: Optimizer, batch: Sequence[Tensor]) -> None:
    """One step of gradient descent, and nothing else."""
    images, labels = batch
    loss = F.cross_entropy(model(images).float(), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def compared_networks(
    group: Group,
    case: Case,
    what: str,
    pairs: Iterable[tuple[Subject, Call]],
    clock: Clock | None = None,
) -> list[Row]:
    """Subjects and the calls that are timed of them."""
    check, images = checker_of(case), case.images(case.batch)

    def enter(one: Subject, call: Call) -> Entrant:
        return Entrant(
            name=one.name,
            errors=partial(check.errors, one),
            calls={what: call},
            costs={"macs": lambda: macs(one.module, [images]) / case.batch},
            speeds={"images_per_second": case.batch},
        )

    return compare(group, [enter(*pair) for pair in pairs], case, clock)


def _of_timm(name: str) -> nn.Module:
    import timm  # The other networks need no timm.

    # Without dropout: two copies must compute the same.
    return timm.create_model(name, num_classes=CLASSES, drop_rate=0.0)


class UNet(nn.Module):
    """Two 3×3 convolutions at each of four sizes on the way down, and on the way up again.

    Scores are averages over positions (https://arxiv.org/abs/1505.04597 has one for each).
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)):
        super().__init__()
        sides = (Case.channels, *widths)
        self.down = nn.ModuleList(map(_pair, sides, widths))
        self.up = nn.ModuleList(_pair(high + low, low) for low, high in pairwise(widths))
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            maps.append(x)
        for block, beside in zip(self.up[::-1], maps[-2::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), beside], 1))
        return self.head(x).mean((2, 3))


def _pair(channels: int, filters: int) -> nn.Sequential:
    layers = []
    for width in (channels, filters):
        layers += [nn.Conv2d(width, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "ResNet-18": partial(models.build, "resnet18", CLASSES),
    "CNN-9": partial(models.cnn9, CLASSES),
    "EfficientNet-Lite0": partial(_of_timm, "tf_efficientnet_lite0"),
    "U-Net": UNet,
    "ResNet-50": partial(models.build, "resnet50", CLASSES),
    "EfficientNet-B0": partial(_of_timm, "efficientnet_b0"),
    "ConvNeXt-T": partial(_of_timm, "convnext_tiny"),
}
"""What people have, to be converted."""
