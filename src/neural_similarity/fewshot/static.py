"""Static NSN (§7.2): on the support set, M of every layer is learned beside the classifier."""

from copy import deepcopy

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from neural_similarity.convert import convert
from neural_similarity.fewshot.batch_norm import set_statistics
from neural_similarity.fewshot.method import Method, Predict
from neural_similarity.fewshot.tuning import Tuning, descend
from neural_similarity.nn import StaticSimilarity
from neural_similarity.nn.text import Similarity
from neural_similarity.ops.window import promoted, without_autocast


class StaticTuning(Method):
    """A network trained without similarity gets M = I in every layer; M and a new head are learned.

    The kernels stay, and so do the statistics of batch normalisation. Weight decay pulls M to the
    identity. 36 numbers besides the head for CNN-4 and a diagonal M. As M is learned from a few
    images at a time, "support" statistics are none to learn it by.

    Args:
        backbone: Embeds images, is copied; static similarities that it has already are learned.
        features: Length of its embedding.
        tuning: The gradient descent.
        similarity: What a backbone without similarities gets.

    Raises:
        ValueError: every convolution of the backbone has another similarity.
    """

    fixed_embedding = False

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        tuning: Tuning | None = None,
        *,
        similarity: Similarity | str = "static-diagonal",
    ):
        super().__init__()
        has_some = any(isinstance(module, StaticSimilarity) for module in backbone.modules())
        self.backbone = deepcopy(backbone) if has_some else convert(backbone, similarity)
        self.features = features
        self.tuning = tuning or Tuning()
        if not self._matrices():
            raise ValueError(
                "`backbone` must have convolutions that are plain or of static similarity for "
                "static NSN, got none; fine-tuning of a dynamic one is dynamic NSN"
            )
        set_statistics(self, "running")

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        """As `Method.adapt`.

        Raises:
            ValueError: `statistics` is "support".
        """
        if self.statistics == "support":
            raise ValueError(
                '`statistics` must be "running" or "transductive" for static NSN, which learns '
                f"from a few images at a time, got {self.statistics!r}"
            )
        backbone = self.backbone if self.statistics != "running" else _settled(self.backbone)
        matrices = self._matrices()
        like = promoted(next(iter(matrices.values())))
        weight = self.tuning.first_weights(ways, self.features).to(like)
        bias = self.tuning.first_weights(ways, self.features + 1)[:, 0].to(like)
        values = [p.detach().clone().requires_grad_() for p in (*matrices.values(), weight, bias)]

        def scores(images: Tensor, values: list[Tensor]) -> Tensor:
            *own, weight, bias = values
            replaced = dict(zip(matrices, own, strict=True))
            features = functional_call(backbone, replaced, (images,)).flatten(1)
            with without_autocast(features):
                return F.linear(promoted(features), weight, bias)

        def loss(chosen: Tensor) -> Tensor:
            return F.cross_entropy(scores(support[chosen], values), labels[chosen])

        descend(values, loss, len(support), self.tuning)
        learned = [p.detach() for p in values]
        return lambda query: scores(query, learned)

    def _matrices(self) -> dict[str, Tensor]:
        """The raw numbers of every M by the names that they have in the backbone."""
        return {
            f"{name}.raw": module.raw
            for name, module in self.backbone.named_modules()
            if isinstance(module, StaticSimilarity)
        }


def _settled(network: nn.Module) -> nn.Module:
    """A copy in evaluation, whose normalisation by constants is torch's: a block has it fused."""
    return set_statistics(deepcopy(network), None).eval().requires_grad_(False)
