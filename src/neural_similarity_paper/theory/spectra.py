r"""§5.1 on trained networks: singular values of folded kernels, and how far M moved from I.

M acts on the taps of every kernel and channel, so the product of §5.1 is $W M$ with W of
(filters·channels) × taps; the network's own view of a layer is filters × (channels·taps). Effective
ranks of both do not depend on a kernel's scale, which weight decay and batch normalisation set.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity.nn import SimilarityLayer, StaticSimilarity
from neural_similarity_paper.learned import folded_kernels
from neural_similarity_paper.statistics import mean_and_deviation
from neural_similarity_paper.theory.measures import effective_rank, nuclear_norm


@dataclass(frozen=True)
class LayerSpectra:
    """A convolution after M is folded in."""

    name: str
    filters_rank: float
    """Effective rank of filters × (channels·taps)."""
    filters_spectrum: Sequence[float]
    """Singular values of filters × (channels·taps), over the largest."""
    taps_rank: float
    """Effective rank of (filters·channels) × taps."""
    taps_spectrum: Sequence[float]
    nuclear_norm: float
    """Nuclear over Frobenius norm of filters × (channels·taps): from 1 to the root of the rank."""
    own_filters_rank: float
    """Effective rank of W alone."""
    own_taps_rank: float
    m_distance: float | None
    """‖M - I‖ over ‖I‖ in the Frobenius norm; None without a static M."""
    m_singular_values: Sequence[float] | None


@dataclass(frozen=True)
class NetworkSpectra:
    """A trained network, by the name of its run folder."""

    run: str
    layers: Sequence[LayerSpectra]


@dataclass(frozen=True)
class Spectra:
    """The networks, and means over the runs that differ in the seed alone."""

    networks: Sequence[NetworkSpectra]
    groups: dict[str, dict[str, Any]]
    """By recipe and budget: the number of `runs`, and for every scalar measure its `mean` and
    sample `deviation` by layer."""


def compute(runs: Sequence[Path]) -> Spectra:
    """Measure the last checkpoints of run folders."""
    if not runs:
        raise ValueError("`runs` must name at least one run folder, got none")
    networks = [NetworkSpectra(path.name, measure_network(ns.load(path))) for path in runs]
    groups: dict[str, list[NetworkSpectra]] = {}
    for network in networks:
        groups.setdefault(re.sub(r"-seed\d+$", "", network.run), []).append(network)
    return Spectra(networks, {name: _average_networks(group) for name, group in groups.items()})


@torch.no_grad()
def measure_network(network: nn.Module) -> list[LayerSpectra]:
    """Measure every convolution larger than 1×1; of a dynamic one, W alone."""
    return [
        _measure_layer(name, cast(nn.Conv2d, network.get_submodule(name)), kernel)
        for name, kernel in folded_kernels(network).items()
        if kernel[0, 0].numel() > 1
    ]


def _measure_layer(name: str, layer: nn.Conv2d, kernel: Tensor) -> LayerSpectra:
    m = None
    if isinstance(layer, SimilarityLayer) and isinstance(layer.similarity, StaticSimilarity):
        m = layer.similarity.full_matrix().double()
    folded, weight = kernel.double(), layer.weight.double()
    by_filters, by_taps = folded.flatten(1), folded.flatten(2).flatten(0, 1)
    return LayerSpectra(
        name=name,
        filters_rank=float(effective_rank(by_filters)),
        filters_spectrum=_singular_values(by_filters),
        taps_rank=float(effective_rank(by_taps)),
        taps_spectrum=_singular_values(by_taps),
        nuclear_norm=float(nuclear_norm(by_filters) / by_filters.norm()),
        own_filters_rank=float(effective_rank(weight.flatten(1))),
        own_taps_rank=float(effective_rank(weight.flatten(2).flatten(0, 1))),
        m_distance=None if m is None else _relative_distance(m),
        m_singular_values=None if m is None else _round_values(torch.linalg.svdvals(m)),
    )


def _relative_distance(m: Tensor) -> float:
    identity = torch.eye(m.shape[-1], dtype=m.dtype).expand_as(m)
    return float((m - identity).norm() / identity.norm())


def _singular_values(matrix: Tensor) -> list[float]:
    values = torch.linalg.svdvals(matrix)
    return _round_values(values / values[0])


def _round_values(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.flatten()]


SPECTRUM_MEASURES = (
    "filters_rank", "taps_rank", "nuclear_norm", "own_filters_rank", "own_taps_rank", "m_distance"
)  # fmt: skip


def _average_networks(group: Sequence[NetworkSpectra]) -> dict[str, Any]:
    """The means of every layer over networks that differ in the seed alone."""
    average: dict[str, Any] = {
        "runs": len(group),
        "layers": [layer.name for layer in group[0].layers],
    }
    for name in SPECTRUM_MEASURES:
        rows = [[getattr(layer, name) for layer in network.layers] for network in group]
        if None in rows[0]:
            continue
        summaries = [mean_and_deviation(values) for values in zip(*rows, strict=True)]
        average[name] = {
            "mean": [mean for mean, _ in summaries],
            "deviation": [deviation for _, deviation in summaries],
        }
    return average


def draw_result(spectra: Spectra, figure: Any) -> None:
    """Draw effective ranks of the folded kernels by layer, and the distance of M from I."""
    titles = {
        "filters_rank": "effective rank, filters × (channels·taps)",
        "taps_rank": "effective rank, (filters·channels) × taps",
        "m_distance": "‖M - I‖ ÷ ‖I‖",
    }
    figure.set_size_inches(12, 4)
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        curves = [
            _group_curve(f"{group} (n={average['runs']})", average[name], f"C{index}")
            for index, (group, average) in enumerate(spectra.groups.items())
            if name in average
        ]
        draw_curves(axes, curves, xlabel="convolution", title=title)


def _group_curve(label: str, values: dict[str, Any], colour: str) -> Curve:
    deviations = [deviation or 0 for deviation in values["deviation"]]
    look = {"yerr": deviations, "c": colour, "capsize": 2}
    return Curve(enumerate(values["mean"], 1), label, "o-", look)
