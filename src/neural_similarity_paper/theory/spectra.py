r"""§5.1 on trained networks: singular values of folded kernels, and how far M moved from I.

M acts on the taps of every kernel and channel, so the product of §5.1 is $W M$ with W of
(filters·channels) × taps; the network's own view of a layer is filters × (channels·taps). Effective
ranks of both do not depend on a kernel's scale, which weight decay and batch normalisation set.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.lab.train.plots import Curve, draw_curves
from neural_similarity.nn import SimilarityLayer, StaticSimilarity
from neural_similarity_paper.learned import folded_kernels, four_digits
from neural_similarity_paper.statistics import mean_and_deviation
from neural_similarity_paper.theory.measures import effective_rank, nuclear_norm, relative_distance

LayerMeasures = list[dict[str, Any]]
"""Measures of the layers of a network."""


def compute(runs: Sequence[Path]) -> dict[str, Any]:
    """Measure the last checkpoints of run folders, averaged where they differ in the seed alone.

    Of every group, by recipe and budget, there is the number of `runs`, and for every scalar
    measure its `mean` and sample `deviation` by layer.
    """
    if not runs:
        raise ValueError("`runs` must name at least one run folder, got none")
    networks = [{"run": path.name, "layers": measure_network(ns.load(path))} for path in runs]
    groups: dict[str, list[LayerMeasures]] = {}
    for network in networks:
        name = re.sub(r"-seed\d+$", "", network["run"])
        groups.setdefault(name, []).append(network["layers"])
    averages = {name: _average_networks(group) for name, group in groups.items()}
    return {"networks": networks, "groups": averages}


@torch.no_grad()
def measure_network(network: nn.Module) -> LayerMeasures:
    """Measure every convolution larger than 1×1; of a dynamic one, W alone."""
    return [
        _measure_layer(name, cast(nn.Conv2d, network.get_submodule(name)), kernel)
        for name, kernel in folded_kernels(network).items()
        if kernel[0, 0].numel() > 1
    ]


def _measure_layer(name: str, layer: nn.Conv2d, kernel: Tensor) -> dict[str, Any]:
    """Measures of a convolution after M is folded in; `own` ones are of W alone."""
    distance = singular = None
    if isinstance(layer, SimilarityLayer) and isinstance(layer.similarity, StaticSimilarity):
        m = layer.similarity.full_matrix().double()
        distance = relative_distance(m, torch.eye(m.shape[-1], dtype=m.dtype).expand_as(m))
        singular = four_digits(torch.linalg.svdvals(m))
    folded, weight = kernel.double(), layer.weight.double()
    by_filters, by_taps = folded.flatten(1), folded.flatten(2).flatten(0, 1)
    return {
        "name": name,
        "filters_rank": float(effective_rank(by_filters)),
        "filters_spectrum": _singular_values(by_filters),
        "taps_rank": float(effective_rank(by_taps)),
        "taps_spectrum": _singular_values(by_taps),
        # Nuclear over Frobenius norm: from 1 to the root of the rank.
        "nuclear_norm": float(nuclear_norm(by_filters) / by_filters.norm()),
        "own_filters_rank": float(effective_rank(weight.flatten(1))),
        "own_taps_rank": float(effective_rank(weight.flatten(2).flatten(0, 1))),
        "m_distance": distance,
        "m_singular_values": singular,
    }


def _singular_values(matrix: Tensor) -> list[float]:
    """Singular values, over the largest."""
    values = torch.linalg.svdvals(matrix)
    return four_digits(values / values[0])


SPECTRUM_MEASURES = (
    "filters_rank", "taps_rank", "nuclear_norm", "own_filters_rank", "own_taps_rank", "m_distance"
)  # fmt: skip


def _average_networks(group: Sequence[LayerMeasures]) -> dict[str, Any]:
    """The means of every layer over networks that differ in the seed alone."""
    average: dict[str, Any] = {"runs": len(group), "layers": [layer["name"] for layer in group[0]]}
    for name in SPECTRUM_MEASURES:
        by_layer = [[layer[name] for layer in layers] for layers in zip(*group, strict=True)]
        if any(None in values for values in by_layer):
            continue
        means, deviations = zip(*map(mean_and_deviation, by_layer), strict=True)
        average[name] = {"mean": list(means), "deviation": list(deviations)}
    return average


def draw_result(spectra: dict[str, Any], figure: Any) -> None:
    """Draw effective ranks of the folded kernels by layer, and the distance of M from I."""
    titles = {
        "filters_rank": "effective rank, filters × (channels·taps)",
        "taps_rank": "effective rank, (filters·channels) × taps",
        "m_distance": "‖M - I‖ ÷ ‖I‖",
    }
    figure.set_size_inches(12, 4)
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        curves = []
        for index, (group, average) in enumerate(spectra["groups"].items()):
            if name in average:
                reach = [deviation or 0 for deviation in average[name]["deviation"]]
                look = {"yerr": reach, "c": f"C{index}", "capsize": 2}
                points, label = (
                    enumerate(average[name]["mean"], 1),
                    f"{group} (n={average['runs']})",
                )
                curves.append(Curve(points, label, "o-", look))
        draw_curves(axes, curves, xlabel="convolution", title=title)
