"""CNN-9 with every similarity, and the networks of recipes, while they are trained or used."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import oracle
from benchmarks.case import DTYPES, Placed, Subject, learn, seeded
from benchmarks.compare import Checker, Entrant, compare, forward
from benchmarks.measure import Call, Effort, macs, peak_bytes
from benchmarks.report import Group, Row
from neural_similarity import models
from neural_similarity.choices import require_least
from neural_similarity.conversion import fold
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
PLAIN, STEP, FORWARD = "plain", "step", "forward"
CHECKED = 16
"""Images that networks are checked on: enough for the statistics of batch normalisation."""

Batch = tuple[Tensor, Tensor]


def texts(names: Iterable[str]) -> dict[str, str]:
    """The similarities of these names as they are now, every field named."""
    return {name: format_similarity(KNOWN[name], complete=True) for name in names}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and at what size networks are measured."""

    runtime: Runtime
    """Device and precision; channels last."""
    batch: int = 128
    """Images."""
    width: float = 1.0
    """Factor on the number of filters."""

    def __post_init__(self) -> None:
        require_least("batch", self.batch)

    @property
    def group(self) -> Group:
        """What the rows of a comparison have in common."""
        return {"dtype": self.runtime.precision, "batch": self.batch}

    def images(self, count: int) -> Tensor:
        """Random images, placed."""
        with seeded():
            return self.runtime.place_images(torch.randn(count, CHANNELS, SIZE, SIZE))

    def checker(self) -> Checker:
        """Compares networks with their oracles."""
        with seeded():
            grad = torch.randn(CHECKED, CLASSES).to(self.runtime.device)
        return Checker(grad, DTYPES[self.runtime.precision])

    def network(self, name: str) -> nn.Module:
        """CNN-9 of the similarity called `name`, learned, or the plain one."""
        with seeded():
            return learn(models.cnn9(CLASSES, width=self.width, similarity=KNOWN.get(name)))

    def of_recipe(self, name: str) -> nn.Module:
        """The network of the recipe called `name`, one of CIFAR-10, learned."""
        recipe = RECIPES[name]
        with seeded():
            return learn(build_network(recipe, CLASSES, width=self.width * recipe.width))

    def trained(self, name: str, network: nn.Module) -> Subject:
        """A network as it is trained."""
        return Subject(
            name=name,
            module=Placed(network, self.runtime),
            inputs=(self.images(CHECKED),),
            oracle=oracle.network,
            smooth=False,
        )

    def used(self, name: str, network: nn.Module, original: nn.Module) -> Subject:
        """A network in evaluation mode, whose scores must be those of `original`."""
        twin = deepcopy(original).to(self.runtime.device).double().eval()
        return Subject(
            name=name,
            module=Placed(network, self.runtime).eval().requires_grad_(False),
            inputs=(self.images(CHECKED),),
            oracle=lambda _, x: oracle.network(twin.requires_grad_(False), x),
        )


def training(setting: Setting, similarities: Sequence[str], effort: Effort) -> list[Row]:
    """Updates of CNN-9, plain and with similarities."""
    names = (PLAIN, *similarities)
    subjects = [setting.trained(name, setting.network(name)) for name in names]
    return _updates("updates of CNN-9", setting, subjects, effort)


def recipes(setting: Setting, names: Sequence[str], effort: Effort) -> list[Row]:
    """Updates of the networks of recipes, the baseline first."""
    subjects = [setting.trained(name, setting.of_recipe(name)) for name in names]
    return _updates("updates by recipe", setting, subjects, effort)


def inference(setting: Setting, similarities: Sequence[str], effort: Effort) -> list[Row]:
    """CNN-9's forward pass in evaluation mode: plain, with similarities, static ones folded too."""
    subjects, images = [], setting.images(setting.batch)
    for name in (PLAIN, *similarities):
        network = setting.network(name)
        subjects.append(setting.used(name, network, network))
        if name.startswith("static"):
            subjects.append(setting.used(f"{name}, folded", fold(network), network))

    def call(subject: Subject) -> Call:
        return forward(subject.module, [images])

    return _compared(setting, setting.group, {FORWARD: call}, subjects, effort)


def _updates(what: str, setting: Setting, subjects: Sequence[Subject], effort: Effort) -> list[Row]:
    """Updates on one batch: no data, no log."""
    images = setting.images(setting.batch)
    labels = torch.arange(setting.batch, device=images.device) % CLASSES

    def call(subject: Subject) -> Call:
        recipe = Recipe()
        groups = parameter_groups(subject.module, weight_decay=recipe.weight_decay)
        optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
        return partial(update, subject.module, optimizer, (images, labels))

    return _compared(setting, {"what": what} | setting.group, {STEP: call}, subjects, effort)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step of gradient descent, and nothing else."""
    images, labels = batch
    loss = F.cross_entropy(model(images).float(), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def _compared(
    setting: Setting,
    group: Group,
    timed: dict[str, Callable[[Subject], Call]],
    subjects: Sequence[Subject],
    effort: Effort,
) -> list[Row]:
    checker, images = setting.checker(), setting.images(setting.batch)
    ((what, make),) = timed.items()

    def entrant(subject: Subject) -> Entrant:
        call = make(subject)
        return Entrant(
            name=subject.name,
            errors=partial(checker.errors, subject),
            calls={what: call},
            costs=lambda times: {
                "images_per_second": setting.batch / times[what].seconds,
                "peak_bytes": peak_bytes(call, images.device),
                "macs": macs(subject.module, [images]) / setting.batch,
            },
        )

    return compare(group, [entrant(subject) for subject in subjects], effort)
