"""Relation networks: the comparison of two images is learned with their embedding."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.few_shot.interface import Episode, Predict
from neural_similarity.lab.tasks.few_shot.metric import Metric, class_members
from neural_similarity.models import conv_block
from neural_similarity.ops import promote_dtype

HIDDEN, CELLS = 8, 3


class RelationNet(Metric):
    """A network on the maps of a query and of a class scores how well the two go together.

    Two convolutions with batch norm, ReLU and pool, then 8 units and a sigmoid; a class is the sum
    of its support maps; the squared error to 1 and 0 is minimised. Sung et al., 2018
    (https://arxiv.org/abs/1711.06025). Convolutions are padded and the last pool leaves 3×3 cells
    whatever the size of the maps, as in the original for 84 pixels. Training in bf16 also compares
    in bf16, which is most of the work; evaluation compares in float32.
    """

    at_once = 2

    def __init__(self, backbone: nn.Module, channels: int):
        super().__init__(backbone)
        self.compare = nn.Sequential(
            conv_block(nn.Conv2d(2 * channels, channels, 3, padding=1), pool=True),
            conv_block(nn.Conv2d(channels, channels, 3, padding=1)),
            nn.AdaptiveMaxPool2d(CELLS),
            nn.Flatten(),
            nn.Linear(channels * CELLS**2, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, 1),
        )

    def embed(self, images: Tensor) -> Tensor:
        return promote_dtype(self.backbone(images))

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        if self.statistics == "support":
            raise ValueError(
                '`statistics` must be "running" or "transductive" for relation networks, which '
                f"normalise pairs of a class and a query, got {self.statistics!r}"
            )
        members = class_members(labels, ways).to(support)
        classes = (members @ support.flatten(-3)).unflatten(-1, support.shape[-3:])

        def predict(query: Tensor) -> Tensor:
            pairs = _class_query_pairs(classes, query)
            return promote_dtype(self.compare(pairs.flatten(0, -4))).view(pairs.shape[:-3])

        return predict

    def loss(self, episode: Episode) -> Tensor:
        support, labels, query, targets = self.embed_episode(episode)
        scores = self.adapt(support, labels, episode.ways)(query)
        wanted = F.one_hot(targets, episode.ways).to(scores)
        return F.mse_loss(scores.sigmoid(), wanted)


def _class_query_pairs(classes: Tensor, query: Tensor) -> Tensor:
    """Maps (..., q, ways, 2 * channels, h, w): every query's joined with every class's."""
    *lead, ways, channels, height, width = classes.shape
    shape = (*lead, query.shape[-4], ways, channels, height, width)
    both = query.unsqueeze(-4).expand(shape), classes.unsqueeze(-5).expand(shape)
    return torch.cat(both, -3)
