"""Static NSN (§7.2): M of every layer and a classifier are learned on the support set."""

from copy import deepcopy

from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import require_positive
from neural_similarity.conversion import convert
from neural_similarity.lab.tasks.few_shot.batch_norm import set_statistics
from neural_similarity.lab.tasks.few_shot.interface import Method, Predict
from neural_similarity.lab.tasks.few_shot.tuning import Tuning, descend_loss
from neural_similarity.nn import Similarity, SimilarityName, StaticSimilarity
from neural_similarity.ops import promote_dtype, without_autocast


class StaticTuning(Method):
    """A network trained without similarity gets M = I in every layer; M and a new head are learned.

    The kernels and the statistics of batch normalisation are frozen. Weight decay pulls M to the
    identity. In CNN-4 a diagonal M adds 36 parameters to those of the head. M is learned in small
    batches, whose statistics are not the support set's, so "support" is refused. The backbone is
    copied; static similarities that it already has are learned, with `rate` as a factor on their
    step size alone.

    Raises:
        ValueError: every convolution of the backbone has another similarity, or `rate` is not
            positive.
    """

    fixed_embedding = False

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        tuning: Tuning | None = None,
        *,
        similarity: Similarity | SimilarityName = "static-diagonal",
        rate: float = 1.0,
    ):
        super().__init__()
        require_positive("rate", rate)
        self.rate = rate
        self.backbone = (
            deepcopy(backbone) if _static_similarities(backbone) else convert(backbone, similarity)
        )
        self.features = features
        self.tuning = tuning or Tuning()
        if not _static_similarities(self.backbone):
            raise ValueError(
                "`backbone` must have convolutions that are plain or of static similarity for "
                "static NSN, got none; fine-tuning of a dynamic one is dynamic NSN"
            )
        set_statistics(self, "running")

    def adapt(self, support: Tensor, labels: Tensor, ways: int) -> Predict:
        if self.statistics == "support":
            raise ValueError(
                '`statistics` must be "running" or "transductive" for static NSN, which learns '
                f"from a few images at a time, got {self.statistics!r}"
            )
        backbone = self._copy_for_task()
        matrices = [values for values in backbone.parameters() if values.requires_grad]
        like = promote_dtype(matrices[0])
        first = self.tuning.first_linear(ways, self.features)
        weight, bias = (values.to(like).requires_grad_() for values in first)
        learned = [*matrices, weight, bias]

        def scores(images: Tensor) -> Tensor:
            features = backbone(images).flatten(1)
            with without_autocast(features):
                return F.linear(promote_dtype(features), weight, bias)

        def loss(chosen: Tensor) -> Tensor:
            return F.cross_entropy(scores(support[chosen]), labels[chosen])

        factors = [self.rate] * len(matrices) + [1.0, 1.0]
        descend_loss(learned, loss, len(support), self.tuning, factors)
        for values in learned:
            values.requires_grad_(False)
        return scores

    def _copy_for_task(self) -> nn.Module:
        """A copy for one task, in which only the entries of M are learned."""
        copied = deepcopy(self.backbone)
        if self.statistics == "running":  # By torch's own layers, which a block fuses.
            copied = set_statistics(copied, None).eval()
        copied.requires_grad_(False)
        for similarity in _static_similarities(copied):
            similarity.raw.requires_grad_()
        return copied


def _static_similarities(network: nn.Module) -> list[StaticSimilarity]:
    return [module for module in network.modules() if isinstance(module, StaticSimilarity)]
