"""A new classifier on a fixed embedding: fine-tuning, and its cosine form Baseline++.

With a dynamic similarity in the network, fine-tuning is the paper's dynamic NSN: its filters change
with the image, and the classifier alone is learned (§7.2).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.few_shot.interface import Method, Predict
from neural_similarity.lab.tasks.few_shot.tuning import Tuning, descend_loss
from neural_similarity.ops import unit_vectors

SCALE = 2.0
"""Scale of cosines as logits, for up to 200 classes (Chen et al., 2019)."""


class CosineLinear(nn.Module):
    r"""Scores $s\, g_c \cos(x, w_c)$ with a learned gain $g_c$ of every class.

    Chen et al., 2019, A Closer Look at Few-shot Classification (https://arxiv.org/abs/1904.04232).

    Shape:
        (..., in_features) to (..., out_features).
    """

    def __init__(self, in_features: int, out_features: int, scale: float = SCALE):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.gain = nn.Parameter(self.weight.detach().norm(dim=1))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return cosine_scores(x, [self.weight, self.gain], self.scale)


class FineTuning(Method):
    r"""A new linear classifier, learned from the support set by gradient descent.

    Minimises the mean cross-entropy of logits $W f(x) + b$ over the support set, in $W$ and $b$
    alone; $f$ is the embedding. Paper, §7.2 and App. A.
    """

    at_once = 50

    def __init__(self, backbone: nn.Module, tuning: Tuning | None = None):
        super().__init__()
        self.backbone = backbone
        self.tuning = tuning or Tuning()

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        first = self._initial_parameters(ways, support.shape[-1])
        parameters = [
            p.to(support).expand(*support.shape[:-2], *p.shape).clone().requires_grad_()
            for p in first
        ]

        def loss(chosen: Tensor) -> Tensor:
            scores = self._head_logits(support[..., chosen, :], parameters)
            targets = labels[chosen].expand(scores.shape[:-1])
            total = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum")
            return total / len(chosen)

        descend_loss(parameters, loss, support.shape[-2], self.tuning)
        learned = [p.detach() for p in parameters]
        return lambda query: self._head_logits(query, learned)

    def _initial_parameters(self, ways: int, features: int) -> list[Tensor]:
        return list(self.tuning.first_linear(ways, features))

    def _head_logits(self, x: Tensor, parameters: list[Tensor]) -> Tensor:
        """Logits (..., ways) of features (..., d)."""
        weight, bias = parameters
        return x @ weight.mT + bias.unsqueeze(-2)


class CosineFineTuning(FineTuning):
    r"""Baseline++: fine-tuning of a `CosineLinear`, logits $s\, g_c \cos(f(x), w_c)$.

    Chen et al., 2019 (https://arxiv.org/abs/1904.04232).
    """

    def _initial_parameters(self, ways: int, features: int) -> list[Tensor]:
        weight = self.tuning.first_weights(ways, features)
        return [weight, weight.norm(dim=1)]

    def _head_logits(self, x: Tensor, parameters: list[Tensor]) -> Tensor:
        return cosine_scores(x, parameters, SCALE)


def cosine_scores(x: Tensor, parameters: list[Tensor], scale: float) -> Tensor:
    """Scaled cosines (..., n, classes) of x (..., n, d), weights (..., classes, d), with gains."""
    weight, gain = parameters
    unit = unit_vectors(weight, -1) * gain.unsqueeze(-1)
    return scale * (unit_vectors(x, -1) @ unit.mT)
