"""Layers of other authors beside ours: on the same maps, and in one network, with its error."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import networks, subjects
from benchmarks.authors import RIVALS, Rival, Widths
from benchmarks.case import Case, Placed, Subject, moved, seeded
from benchmarks.compare import cpu_clock
from benchmarks.networks import CONVERTED
from benchmarks.options import Names, Options
from benchmarks.oracle import Checker, Errors, error_of
from benchmarks.report import Row
from neural_similarity import models
from neural_similarity.lab import session
from neural_similarity.lab.cli.commands import require_known_name
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train.recipe import TrainingRecipe
from neural_similarity.lab.train.run import build_network, read_facts
from neural_similarity.models.building import ConvBlock
from neural_similarity_paper.tables.records import budget_name

SHAPES = ((64, 28), (128, 14))
"""Channels and size of maps of the layers."""
LAYERS = {name: CONVERTED.get(name, name) for name in ("static-full", "dynamic-full", *CONVERTED)}
"""Our layers, by name."""
OURS = ("cnn", "static-uns", "dynamic-dns", "light-diagonal", "light-full", "pooled")
"""Recipes of CIFAR-10 whose networks are beside the rivals', the plain one first."""
SEED = 1


@dataclass(frozen=True, kw_only=True)
class RivalOptions(Options):
    """What `python -m benchmarks rivals` takes."""

    code: Path = Path("rivals")
    """Folder of clones of the authors' repositories."""
    train: Names = ()
    """Names to train first, unless `runs` has them: of rivals, or recipes without cifar10-."""
    budget: float = 1 / 64
    """Share of the recipes' steps in trainings."""
    runs: Path = Path("runs/rivals")
    """Folder of the trainings; errors are shown of those that are finished."""
    data: Path = Path("data")
    """Folder of the data sets."""


def rivals(options: Options) -> Iterator[Row]:
    """Layers of other authors beside ours; networks of them with errors on CIFAR-10."""
    if not isinstance(options, RivalOptions):
        raise TypeError(f"`options` must be RivalOptions, got {options!r}")
    recipes = {name: RECIPES[f"cifar10-{name}"] for name in OURS}
    recipes |= {name: _recipe(name, options.code) for name in RIVALS}
    for name in options.train:
        require_known_name("train", name, recipes)
        _train(recipes[name], _folder(options, name), options)
    for case in options.cases():
        for channels, size in SHAPES:
            yield from _layer_rows(replace(case, channels=channels, size=size), options)
        yield from _network_rows(case, recipes, options)


def _layer_rows(case: Case, options: RivalOptions) -> Iterator[Row]:
    """Rows of one layer of each."""
    case = replace(case, size=4) if options.quick else case
    layers, absent = _layers(options.code, [(case.channels, case.channels)])
    chosen = [
        subjects.torch_layer(case),
        *(subjects.our_layer(case, f"ours, {name}", text) for name, text in LAYERS.items()),
        *(_subject(case, name, layer) for name, (layer,) in layers.items()),
    ]
    words = {"what": "one layer"}
    rows = subjects.compared_rows(words, case, chosen, cpu_clock(case), _errors)
    yield from rows
    yield from (Row(group=rows[0].group, name=name, problem=absent[name]) for name in absent)


def _layers(code: Path, widths: Widths) -> tuple[dict[str, list[nn.Module]], dict[str, str]]:
    """The rivals' layers, and why others are absent."""
    found, absent = {}, {}
    for name, rival in RIVALS.items():
        try:
            with seeded():
                found[name] = rival.layers(code, widths)
        except (ImportError, OSError) as error:
            absent[name] = f"not run: {error}"
    return found, absent


def _subject(case: Case, name: str, layer: nn.Module) -> Subject:
    module, inputs = Placed(layer, case.runtime), (case.operands.x,)
    return Subject(name=name, module=module, inputs=inputs, oracle=outputs_alone, may_fail=True)


def outputs_alone(module: nn.Module, x: Tensor) -> Tensor:
    """What a layer of other authors must compute: of every image the same as without the others."""
    return torch.cat([module(image) for image in x.split(1)])


def _errors(checker: Checker, one: Subject) -> Errors:
    """Ours against the definition; a rival's, some of which have no float64, alone."""
    if one.oracle is not outputs_alone:
        return checker.errors(one)
    module = deepcopy(one.module).eval()
    with torch.no_grad():
        expected = outputs_alone(module, *one.inputs).double()
        return {checker.dtype: error_of(module(*one.inputs), expected)}


def _network_rows(
    case: Case, recipes: dict[str, TrainingRecipe], options: RivalOptions
) -> Iterator[Row]:
    """Updates of CNN-9 of each, beside the error on the test set where it was trained."""
    absent = _layers(options.code, [(64, 64)])[1]
    names = [name for name in recipes if name not in absent]

    def build(_: Case, name: str) -> nn.Module:
        with seeded():
            return moved(build_network(recipes[name], networks.CLASSES))

    def errors(checker: Checker, one: Subject) -> Errors:
        return _errors(checker, replace(one, oracle=outputs_alone) if one.name in RIVALS else one)

    what = f"updates of CNN-9; errors at budget {budget_name(options.budget)}"
    for row in networks.updates(what, case, build, names, errors, cpu_clock(case)):
        error = _test_error(_folder(options, row.name))
        yield row if error is None else replace(row, costs=row.costs | {"test_error": error})


def _recipe(name: str, code: Path) -> TrainingRecipe:
    """The recipe of `cifar10-cnn` with a rival's layers, whose network it makes known."""
    model = f"cnn9_{name}"
    models.MODELS[model] = partial(with_rival, RIVALS[name], code)
    return replace(RECIPES["cifar10-cnn"], model=model)


def with_rival(
    rival: Rival,
    code: Path,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1.0,
    similarity: None = None,
) -> nn.Module:
    """CNN-9 with a rival's layers but for the first convolution, as in the authors' ResNets."""
    sizes = {"in_channels": in_channels, "image_size": image_size, "width": width}
    network = models.cnn9(num_classes, **sizes, similarity=similarity)
    blocks: list[Any] = [block for block in network if isinstance(block, ConvBlock)][1:]
    widths = [(block[0].in_channels, block[0].out_channels) for block in blocks]
    for block, layer in zip(blocks, rival.layers(code, widths), strict=True):
        block[0] = layer
    return network


def _folder(options: RivalOptions, name: str) -> Path:
    return (
        options.runs / f"{name.replace(', ', '-').replace(' ', '-')}-{budget_name(options.budget)}"
    )


def _train(recipe: TrainingRecipe, path: Path, options: RivalOptions) -> None:
    """Train a network once, in bf16 on one thread as the records at reduced budgets."""
    if path.exists():
        session.resume(path, data_root=options.data)
        return
    recipe = replace(recipe, seed=SEED, precision="bf16", threads=1)
    session.train(recipe, name=path.name, budget=options.budget, out=path, data_root=options.data)


def _test_error(path: Path) -> float | None:
    """In percent; None where there is no finished run."""
    summary = path / "summary.json"
    return read_facts(summary)["test_error_percent"] if summary.exists() else None
