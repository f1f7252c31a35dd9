"""TADAM: prototypes in an embedding that the task changes, with a learned scale of distances."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from neural_similarity.lab.tasks.few_shot.batch_norm import support_first
from neural_similarity.lab.tasks.few_shot.embedding import embed_task, split_classifier
from neural_similarity.lab.tasks.few_shot.interface import Episode, Method, Predict
from neural_similarity.lab.tasks.few_shot.metric import class_means, squared_distances
from neural_similarity.nn import DynamicSimilarity
from neural_similarity.ops import promote_dtype, without_autocast

DEPTH, PENALTY = 3, 0.01
"""Layers of the residual networks, and the factor on the sum of squared strengths in the loss."""


class Tadam(Method):
    r"""Task-dependent adaptive metric (Oreshkin et al. 2018, https://arxiv.org/abs/1805.10123).

    The mean of the classes' means, in the embedding as it is, represents the task. From it, two
    small residual networks for every batch normalisation predict a scale and a shift of its output,
    $\gamma = 1 + \gamma_0\, g(\text{task})$ and $\beta = \beta_0\, h(\text{task})$ with two
    learned factors a layer that start at 0, so that the embedding starts unchanged. Support and
    queries are embedded with them; logits are $-\alpha \lVert x - c_k \rVert^2$ for class means
    $c_k$ and a learned $\alpha > 0$.

    Both are multiplied into the normalisation's own weight and bias, so that no layer is added.
    Normalisation in shortcuts changes too, in predictors of a dynamic similarity it does not. The
    original trains with classification of the base classes as an auxiliary task; here, start from a
    network pretrained on them.

    Args:
        network: Any `torch.nn.Sequential` that ends in a linear classifier, which is dropped.

    Raises:
        ValueError: the network does not end in a linear layer or has no batch normalisation to
            change.
    """

    fixed_embedding = False

    def __init__(self, network: nn.Sequential):
        super().__init__()
        self.backbone, features = split_classifier(network)
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        norms = _conditioned_norms(self.backbone).values()
        self.conditions = nn.ModuleList(_Condition(features, norm.num_features) for norm in norms)
        if not self.conditions:
            raise ValueError("`network` must have batch normalisation with a weight, got none")
        self.to(next(self.backbone.parameters()))

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        parameters = self._for_task(support, labels, ways)

        def predict(query: Tensor) -> Tensor:
            embed = partial(functional_call, self.backbone, parameters)
            parts = embed_task(embed, self.statistics, support, query)
            images, queries = (promote_dtype(part.flatten(1)) for part in parts)
            with without_autocast(query):
                means = class_means(images, labels, ways)
                return -self.log_scale.exp() * squared_distances(queries, means)

        return predict

    def loss(self, episode: Episode) -> Tensor:
        """Cross-entropy of the queries and the penalty on the learned strengths."""
        predict = self.adapt(episode.support, episode.support_labels, episode.ways)
        strengths = [c.get_parameter("strength").square().sum() for c in self.conditions]
        loss = F.cross_entropy(predict(episode.query), episode.query_labels)
        return loss + PENALTY * torch.stack(strengths).sum()

    def _for_task(self, support: Tensor, labels: Tensor, ways: int) -> dict[str, Tensor]:
        """Weight and bias of every normalisation for the task of a support set."""
        with support_first(len(support)):
            images = self.embed(support)
        parameters: dict[str, Tensor] = {}
        norms = _conditioned_norms(self.backbone).items()
        with without_autocast(images):
            task = class_means(images, labels, ways).mean(0)
            for (name, norm), condition in zip(norms, self.conditions, strict=True):
                scale, shift = condition(task)
                parameters[f"{name}.weight"] = norm.weight * scale
                parameters[f"{name}.bias"] = norm.bias * scale + shift
        return parameters


class _Condition(nn.Module):
    """Scale and shift (channels,) of a layer for a task, which is represented by (features,)."""

    def __init__(self, features: int, channels: int):
        super().__init__()
        self.scale = _ResidualLayers(features, channels)
        self.shift = _ResidualLayers(features, channels)
        self.strength = nn.Parameter(torch.zeros(2))

    def forward(self, task: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.strength
        return 1 + scale * self.scale(task), shift * self.shift(task)


class _ResidualLayers(nn.Module):
    """A linear projection, then layers that each add to what they see."""

    def __init__(self, features: int, channels: int):
        super().__init__()
        self.project = nn.Linear(features, channels)
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(DEPTH - 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        for layer in self.layers:
            x = x + layer(F.relu(x))
        return x


def _conditioned_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The batch normalisations of a network with a weight, by name."""
    predictors = [m.predictor for m in network.modules() if isinstance(m, DynamicSimilarity)]
    inside = {part for predictor in predictors for part in predictor.modules()}
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, _BatchNorm) and module.affine and module not in inside
    }
