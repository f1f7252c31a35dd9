"""What M adds to whole networks, inference and training, and to the smallest layer: CPU time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.optim import SGD

from benchmarks import subjects
from benchmarks.case import Subject
from benchmarks.compare import cpu_clock, forward_call
from benchmarks.measure import Call, python_frames
from benchmarks.networks import (
    CLASSES,
    CONVERTED,
    FOLDED,
    FORWARD,
    PLAIN,
    STEP,
    compared_networks,
    converted_network,
    group_of,
    subject_of,
    update,
)
from benchmarks.options import Options
from benchmarks.oracle import outcome, trained
from benchmarks.report import Row

CHECKED_SIZE = 32
"""Height and width of the images that networks are checked on, in float64."""
LAYERS = (
    (8, (1, 8), "one layer of 8 channels on 1×8×8×8"),
    (32, (1, 7), "one layer of 32 channels on 1×32×7×7"),
    (32, (8, 32), "one layer of 32 channels"),
)
"""Channels, batch and size of single layers, and what they are called."""


@dataclass(frozen=True)
class Part:
    """A network at a size, and what it is compared with."""

    network: str
    what: str
    dtype: str
    batch: int
    size: int
    names: tuple[str, ...]


CHEAP = ("pooled-diagonal", "pooled-full", "light-diagonal", "light-full")
PARTS = (
    *(
        Part("ResNet-18", FORWARD, "fp32", batch, size, ("static-full", f"static-full{FOLDED}"))
        for batch, size in ((1, 96), (1, 224), (8, 224))
    ),
    Part("ResNet-18", STEP, "bf16", 2, 160, ("static-full", "pooled-full")),
    Part("CNN-9", STEP, "bf16", 256, 32, CHEAP[1:]),
    Part("ResNet-18", STEP, "bf16", 8, 160, ("static-full", "dynamic-diagonal")),
    *(
        Part("ResNet-18", what, "fp32", 8, 160, ("dynamic-diagonal", *CHEAP))
        for what in (FORWARD, STEP)
    ),
    *(
        Part("EfficientNet-B0", what, "fp32", 8, 160, ("dynamic-diagonal", *CHEAP))
        for what in (FORWARD, STEP)
    ),
    *(
        Part(network, STEP, "bf16", 2, 160, ("static-full", "dynamic-diagonal", *CHEAP[1:3]))
        for network in ("ResNet-50", "ConvNeXt-T")
    ),
)
"""What is measured; each with the networks of the same batch."""


def price(options: Options) -> Iterator[Row]:
    """Whole networks with cheap similarities, and the smallest layer, in CPU time."""
    yield from _layer_rows(options)
    for part in PARTS:
        if options.dtype in ("both", part.dtype) and part.network in options.network:
            yield from _network_rows(options, part)


def _layer_rows(options: Options) -> Iterator[Row]:
    """A layer whose time is the host's, and one whose memory is told."""
    for channels, (batch, size), what in LAYERS[: 1 if options.quick else None]:
        own = replace(options, dtype="fp32", batch=(batch,), size=(size,))
        case = replace(next(own.cases(("diagonal",))), channels=channels)
        both = [subjects.torch_layer(case), subjects.our_layer(case)]
        both += [subjects.our_layer(case, name, CONVERTED[name]) for name in CHEAP if batch == 1]
        rows = subjects.compared_rows({"what": what}, case, both, cpu_clock(case))
        for row, one in zip(rows, both, strict=False):
            call = partial(outcome, one.module, one.inputs, trained(one.module), case.operands.grad)
            yield replace(row, costs=row.costs | {"frames": python_frames(call)})


def _network_rows(options: Options, part: Part) -> list[Row]:
    """A quick part has small images."""
    size = 32 if options.quick else part.size
    own = replace(options, dtype=part.dtype, batch=(part.batch,), size=(size,))
    case = next(own.cases((part.network,)))
    images = case.images(case.batch)

    def enter(name: str) -> tuple[Subject, Call]:
        """Inference, or an update by plain gradient descent with momentum."""
        network = converted_network(case, name)
        if part.what == FORWARD:
            network.eval().requires_grad_(False)
        one = subject_of(replace(case, size=CHECKED_SIZE), name, network)
        if part.what == FORWARD:
            return one, forward_call(one.module, [images])
        labels = torch.arange(len(images), device=images.device) % CLASSES
        optimizer = SGD(one.module.parameters(), lr=0.01, momentum=0.9)
        return one, partial(update, one.module, optimizer, (images, labels))

    group = group_of(case, f"{part.what} of {part.network}") | {"size": case.size}
    pairs = [enter(name) for name in (PLAIN, *part.names)]
    return compared_networks(group, case, part.what, pairs, cpu_clock(case))
