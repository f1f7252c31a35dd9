"""`nsim models` and `nsim data`: the networks and the data sets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import tyro

from neural_similarity import models as networks
from neural_similarity.conversion import fold
from neural_similarity.lab import data as datasets
from neural_similarity.lab.cli.commands import print_table, require_known_name, say_json
from neural_similarity.lab.cli.parsing import parse_options
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.train.progress import count_bar
from neural_similarity.models import macs, parameters
from neural_similarity.nn import SIMILARITIES, parse_similarity

MODELS_DESCRIPTION = """List the networks with every similarity at their usual image sizes.

Parameters are those that are trained. MACs are the multiply-adds of convolutions, linear layers
and matrix products for one image, after static similarities are folded into the kernels.

examples:
  nsim models
  nsim models cnn10 cnn10_plus
  nsim models resnet18 --similarity none dynamic-diagonal"""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """Options of `nsim models`."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME...")] = ()
    """Networks; the default is all."""
    similarity: tuple[str, ...] = tuple(SIMILARITIES)
    """Similarities, each a name or a text such as "Static(Symmetric())"."""
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        for text in self.similarity:
            parse_similarity(text)


@dataclass(frozen=True, kw_only=True)
class DataSetOptions:
    """Options of `nsim data`."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """The data set to download or verify."""
    data: Path = Path("data")
    """Folder of the data sets; of imagenet and folder the data set itself."""
    source: Path | None = None
    """Folder of images/ and lists *.csv, as Mini-ImageNet is passed around, to make an imagenet of
    in --data: 100 images of every class in val, the others in train."""


def models(args: Sequence[str]) -> int:
    """Print the networks with every similarity, their parameters and multiplications."""
    description = MODELS_DESCRIPTION
    options = parse_options(
        ModelsOptions, args, prog="nsim models", description=description, flags=True
    )
    for name in options.names:
        require_known_name("network", name, networks.MODELS)
    rows = [
        _model_row(name, text)
        for name in options.names or networks.MODELS
        for text in options.similarity
        if text == "none" or name not in networks.WITHOUT_SIMILARITY
    ]
    if options.json:
        say_json([row._asdict() for row in rows])
        return 0
    columns = ("name", "classes", "image", "similarity", "parameters", "MACs")
    texts = [[f"{part:,}" if isinstance(part, int) else part for part in row] for row in rows]
    print_table(columns, texts, wraps="similarity")
    return 0


class _ModelRow(NamedTuple):
    """What a network with a similarity costs."""

    name: str
    classes: str
    image: str
    similarity: str
    parameters: int
    macs: int


def _model_row(name: str, similarity: str) -> _ModelRow:
    """What a network with a similarity costs."""
    classes, channels, size = networks.usual_sizes(name)
    # Shapes tell what a named similarity costs; the fold of others, as of a selection, looks at
    # their numbers.
    with torch.device("meta" if similarity in SIMILARITIES else "cpu"):
        model = networks.build(name, classes, similarity=similarity)
    multiplications = macs(fold(model, dynamic="keep"), channels, size, size)
    image = f"{channels}x{size}x{size}"
    return _ModelRow(name, f"{classes}", image, similarity, parameters(model), multiplications)


def data(args: Sequence[str]) -> int:
    """Download or verify a data set and print its sizes."""
    names = (*datasets.OURS, *datasets.IN_PLACE)
    description = (
        "Download a data set, or verify the one that is there, and print its sizes.\n\n"
        f"data sets: {', '.join(names)}\n\nexamples:\n"
        "  nsim data cifar10 --data data\n  nsim data imagenet --data ILSVRC2012\n"
        "  nsim data imagenet --source data/mini-imagenet --data data/mini-imagenet-100"
    )
    options = parse_options(DataSetOptions, args, prog="nsim data", description=description)
    require_known_name("data set", options.name, names)
    path = options.data
    if options.source is not None:
        if options.name != "imagenet":
            raise UsageError(f"--source is for the data set imagenet, got {options.name}")
        datasets.lay_out(options.source, path)
    if options.name not in datasets.IN_PLACE:
        with count_bar("bytes") as progress:
            path = datasets.download_dataset(options.name, options.data, progress=progress)
    dataset = datasets.load_dataset(options.name, root=options.data)
    channels, height, width = dataset.train.shape
    sys.stdout.write(
        f"{dataset.name} in {path}: {len(dataset.train):,} training and {len(dataset.test):,} test "
        f"images of {channels}x{height}x{width}, {len(dataset.train.classes)} classes\n"
    )
    return 0
