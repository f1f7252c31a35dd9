"""torch's linear layer with a similarity."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.layer import SimilarityLayer, fx_leaf, register
from neural_similarity.nn.similarity import DynamicSimilarity, check_type
from neural_similarity.nn.text import Similarity, SimilarityName


@register
class Linear(SimilarityLayer[nn.Linear], nn.Linear):
    r"""`torch.nn.Linear` with a learned bilinear similarity, $y = W M x + b$.

    M is C×C for C input features, which take the place of taps: a convolution of one channel whose
    kernel covers all of its input. It starts at the identity, where the layer equals
    `torch.nn.Linear`; static, it folds into W; dynamic, it is predicted from x. Paper, §1.

    Args:
        in_features: C.
        out_features: Number of outputs.
        bias: Whether to add one.
        device: Device of the parameters.
        dtype: Type of the parameters.
        similarity: As in `Conv2d`.

    Shape:
        (*n, in_features) to (*n, out_features).

    Raises:
        ValueError: `similarity` is not one of these; when called with a dynamic one, the input does
            not have C features.
    """

    plain = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: Similarity | SimilarityName | nn.Module | None = None,
    ):
        super().__init__(in_features, out_features, bias, device, dtype)
        self.with_similarity(similarity)

    def geometry(self) -> Geometry:
        return linear_geometry(self.in_features, self.out_features)

    @fx_leaf
    def forward(self, input: Tensor) -> Tensor:
        """The linear function W M `input` + b."""
        if self.similarity is None:
            return super().forward(input)
        return self.similarity(self, input)

    def static_forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        """torch's linear function with `kernel`."""
        return F.linear(x, kernel, self.bias)

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The linear function with a predicted M."""
        return dynamic_linear(x, self.weight, self.bias, similarity)


def linear_geometry(in_features: int, out_features: int) -> Geometry:
    """A linear function as a convolution: one channel, one window over all of it."""
    return Geometry(1, out_features, (in_features,), (1,), (0,), (1,), spatial=False)


@dataclass(frozen=True)
class Kernel:
    """A kernel in place of a layer: one of a layer's several, or to fold M into.

    With a static M it returns the kernel with M folded in, with a dynamic M the linear function of
    x. It is not a tuple, in which torch's FLOP counter would look for tensors.
    """

    weight: Tensor
    bias: Tensor | None = None

    def static_forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        del x
        return kernel

    def dynamic_forward(self, x: Tensor, similarity: DynamicSimilarity) -> Tensor:
        """The linear function with a predicted M."""
        return dynamic_linear(x, self.weight, self.bias, similarity)


def dynamic_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, similarity: DynamicSimilarity
) -> Tensor:
    """W M(x) x + b for x (*n, in_features), each with an M of its own.

    Raises:
        ValueError: x has another number of features, or another type than `weight`.
    """
    if x.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"`input` must be (*n, {weight.shape[1]}), in_features last, got {tuple(x.shape)}"
        )
    check_type(x, weight)
    rows = x.reshape(-1, 1, x.shape[-1])
    y = similarity.convolve(rows, weight.unsqueeze(1), bias)
    return y.reshape(*x.shape[:-1], len(weight))
