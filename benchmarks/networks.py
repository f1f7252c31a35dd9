"""CNN-9 with every similarity, networks of recipes, and others: while trained or used."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from benchmarks import oracle
from benchmarks.case import DTYPES, Placed, Subject, learn, seeded
from benchmarks.compare import Entrant, compare, entrant, forward
from benchmarks.measure import Call, Effort, Timing, macs, peak_bytes
from benchmarks.oracle import Checker
from benchmarks.replays import clock_of
from benchmarks.report import Group, Row
from neural_similarity import models
from neural_similarity.conversion import convert, fold
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.recipes.studies import CHEAPER
from neural_similarity.lab.train.recipe import Recipe
from neural_similarity.lab.train.run import build_network
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.nn import SIMILARITIES, format_similarity
from neural_similarity.regularize import parameter_groups

CLASSES, CHANNELS, SIZE = 10, 3, 32
PREDICTORS = {
    name.removeprefix("cifar10-"): RECIPES[name].similarity
    for name in ("cifar10-dynamic-dns", *CHEAPER)
}
"""Diagonal M by the predictor of the tables, and by cheaper ones."""
KNOWN = {name: spec for name, spec in SIMILARITIES.items() if spec is not None} | PREDICTORS
"""Every similarity that CNN-9 is measured with."""
CONVERTED = ("static-full", "dynamic-diagonal")
"""What whole networks are converted to."""
PLAIN, STEP, FORWARD = "plain", "step", "forward"
CHECKED = 16
"""Images that networks are checked on: enough for the statistics of batch normalisation."""


def texts(names: Iterable[str]) -> dict[str, str]:
    """The similarities of these names as they are now, every field named."""
    return {name: format_similarity(KNOWN[name], complete=True) for name in names}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and at what size networks are measured."""

    runtime: Runtime
    """Device, precision and layout."""
    batch: int = 128
    width: float = 1.0
    """Factor on the number of filters."""
    size: int = SIZE
    """Height and width of images."""
    rounding: float = 0.0
    """See `Checker`: a bias before a convolution and batch normalisation has no other gradient."""

    @property
    def group(self) -> Group:
        """What the rows of a comparison have in common."""
        return {"dtype": self.runtime.precision, "batch": self.batch}

    def images(self, count: int) -> Tensor:
        """Random images, placed."""
        with seeded():
            return self.runtime.place_images(torch.randn(count, CHANNELS, self.size, self.size))

    def checker(self) -> Checker:
        """Compares networks with their oracles."""
        with seeded():
            grad = torch.randn(CHECKED, CLASSES).to(self.runtime.device)
        return Checker(grad, DTYPES[self.runtime.precision], self.rounding)

    def network(self, name: str) -> nn.Module:
        """CNN-9 of the similarity called `name`, learned, or the plain one."""
        similarity = None if name == PLAIN else KNOWN[name]
        with seeded():
            return learn(models.cnn9(CLASSES, width=self.width, similarity=similarity))

    def of_recipe(self, name: str) -> nn.Module:
        """The network of the recipe called `name`, one of CIFAR-10, learned."""
        recipe = RECIPES[name]
        with seeded():
            return learn(build_network(recipe, CLASSES, width=self.width * recipe.width))

    def subject(self, name: str, network: nn.Module) -> Subject:
        """A network, checked on a few images."""
        return Subject(
            name=name,
            module=Placed(network, self.runtime),
            inputs=(self.images(CHECKED),),
            oracle=oracle.network,
            smooth=not network.training,
        )


def training(setting: Setting, similarities: Sequence[str], effort: Effort) -> list[Row]:
    """Updates of CNN-9, plain and with similarities."""
    found = {name: setting.network(name) for name in (PLAIN, *similarities)}
    return _updates("updates of CNN-9", setting, found, effort)


def recipes(setting: Setting, names: Sequence[str], effort: Effort) -> list[Row]:
    """Updates of the networks of recipes, the baseline first."""
    found = {name: setting.of_recipe(name) for name in names}
    return _updates("updates by recipe", setting, found, effort)


def whole(what: str, setting: Setting, make: Callable[[], nn.Module], effort: Effort) -> list[Row]:
    """Updates of any network, plain and converted."""
    found = {}
    for name in (PLAIN, *CONVERTED):
        with seeded():
            network = make()
            found[name] = network if name == PLAIN else learn(convert(network, name))
    return _updates(what, setting, found, effort)


def inference(setting: Setting, similarities: Sequence[str], effort: Effort) -> list[Row]:
    """CNN-9's forward pass in evaluation mode: plain, with similarities, static ones folded too."""
    subjects, images = [], setting.images(setting.batch)
    for name in (PLAIN, *similarities):
        network = setting.network(name).eval().requires_grad_(False)
        subjects.append(setting.subject(name, network))
        if name.startswith("static"):
            folded = setting.subject(f"{name}, folded", fold(network).requires_grad_(False))
            subjects.append(replace(folded, oracle=_scores(subjects[-1].module)))

    def call(subject: Subject) -> Call:
        return forward(subject.module, [images])

    return _compared(setting, setting.group, (FORWARD, call), subjects, effort)


def _scores(original: nn.Module) -> Callable[..., Tensor]:
    """What a network must compute in the original's place."""
    twin = deepcopy(original).double()
    return lambda _, x: oracle.network(twin, x)


def _updates(
    what: str, setting: Setting, found: Mapping[str, nn.Module], effort: Effort
) -> list[Row]:
    """Updates on one batch: no data, no log."""
    subjects = [setting.subject(name, network) for name, network in found.items()]
    images = setting.images(setting.batch)
    labels = torch.arange(setting.batch, device=images.device) % CLASSES

    def call(subject: Subject) -> Call:
        recipe = Recipe()
        groups = parameter_groups(subject.module, weight_decay=recipe.weight_decay)
        optimizer = SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
        return partial(update, subject.module, optimizer, (images, labels))

    return _compared(setting, {"what": what} | setting.group, (STEP, call), subjects, effort)


def update(model: nn.Module, optimizer: Optimizer, batch: Sequence[Tensor]) -> None:
    """One step of gradient descent, and nothing else."""
    images, labels = batch
    loss = F.cross_entropy(model(images).float(), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def _compared(
    setting: Setting,
    group: Group,
    timed: tuple[str, Callable[[Subject], Call]],
    subjects: Sequence[Subject],
    effort: Effort,
) -> list[Row]:
    checker, images = setting.checker(), setting.images(setting.batch)
    (what, make), clock = timed, clock_of(images.device)

    def enter(subject: Subject) -> Entrant:
        call = make(subject)

        def costs(times: Mapping[str, Timing]) -> dict[str, float | None]:
            return {
                "images_per_second": setting.batch / times[what].seconds,
                "host_seconds": clock and clock.host_seconds(call),
                "peak_bytes": peak_bytes(call, images.device),
                "macs": macs(subject.module, [images]) / setting.batch,
            }

        return entrant(subject, checker, {what: call}, costs)

    return compare(group, [enter(subject) for subject in subjects], effort, clock)


def _efficientnet() -> nn.Module:
    import timm  # The other networks need no timm.

    # Without dropout: two copies must compute the same.
    return timm.create_model("tf_efficientnet_lite0", num_classes=CLASSES, drop_rate=0.0)


class UNet(nn.Module):
    """Two 3×3 convolutions at each of four sizes on the way down, and on the way up again.

    Scores are averages over positions (https://arxiv.org/abs/1505.04597 has one for each).
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)):
        super().__init__()
        sides = (CHANNELS, *widths)
        self.down = nn.ModuleList(map(_pair, sides, widths))
        self.up = nn.ModuleList(_pair(high + low, low) for low, high in pairwise(widths))
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            maps.append(x)
        for block, beside in zip(self.up[::-1], maps[-2::-1], strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), beside], 1))
        return self.head(x).mean((2, 3))


def _pair(channels: int, filters: int) -> nn.Sequential:
    layers = []
    for width in (channels, filters):
        layers += [nn.Conv2d(width, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "ResNet-18": partial(models.build, "resnet18", CLASSES),
    "EfficientNet-Lite0": _efficientnet,
    "U-Net": UNet,
}
"""What people have, to be converted."""
