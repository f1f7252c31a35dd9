"""Layers with a few parameters that adapt them: baselines of similarity, by other authors.

Every one starts at the pretrained layer, whose outputs stay the same bit for bit. Most merge into
kernels, as static M does. With a convolution of C channels in g groups, O filters and K taps, its
kernel is a matrix W of (O·C/g) x K wherever atoms or M act on it from the right.
"""

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.choices import import_optional
from neural_similarity.nn import Conv2d

BLOCK = 4
"""Filters in each block of diag-OFT, LyCORIS's default."""
ATOMS = 6
"""Filter atoms that are learned, at most as many as a kernel has taps."""
REDUCTION = 8
"""Channels for each of a Conv-Adapter's own, its authors' default."""
SCORE, THRESHOLD = 0.01, 0.005
"""Piggyback's first scores, and what one must exceed for its weight to stay."""


class TunedLayer(nn.Module, ABC):
    """A layer with a few new parameters, at whose first values it computes the same as before."""

    PARTS: ClassVar[tuple[str, ...]]
    """Names of the new parameters."""
    ADDED: ClassVar[tuple[str, ...]] = ()
    """Names of those that add to the kernel, and are changed by as much as it is."""

    @abstractmethod
    def add_parameters(self) -> None:
        """Add the new parameters to a layer that was plain so far."""

    def plain_layer(self) -> nn.Module | None:
        """The layer that computes the same without them, or None where there is none."""
        return None


class TunedConv2d(TunedLayer, nn.Conv2d):
    """A convolution whose kernel and bias are computed from its own and the new parameters."""

    @abstractmethod
    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        """The kernel and bias of the layer."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, *self.effective_kernel())

    def plain_layer(self) -> nn.Module:
        """The layer with that kernel and bias, and with the M that acts on them, if any."""
        similarity = getattr(self, "similarity", None)
        kind = nn.Conv2d if similarity is None else Conv2d
        layer = nn.utils.skip_init(
            kind, self.in_channels, self.out_channels, self.kernel_size,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
            padding_mode=self.padding_mode, device=self.weight.device, dtype=self.weight.dtype,
        )  # fmt: skip
        kernel, bias = self.effective_kernel()
        layer.weight = nn.Parameter(kernel)
        layer.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        return layer.with_similarity(similarity) if isinstance(layer, Conv2d) else layer


class ScaleShift(TunedConv2d):
    """s (W * x + b) + t with s, t of each filter: SSF (Lian et al., arXiv:2210.08823).

    Parameters: 2 O. Starts at s = 1, t = 0. Code: https://github.com/dongzelian/SSF
    """

    PARTS = ("scale", "shift")

    def add_parameters(self) -> None:
        self.scale = nn.Parameter(self.weight.new_ones(self.out_channels))
        self.shift = nn.Parameter(self.weight.new_zeros(self.out_channels))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        kernel = self.weight * self.scale[:, None, None, None]
        return kernel, self.shift if self.bias is None else self.bias * self.scale + self.shift


class Turned(TunedConv2d):
    """R W, R orthogonal within blocks of filters: diag-OFT (Qiu et al., arXiv:2306.07280).

    As in LyCORIS, R = (I + Q)(I - Q)^-1 with Q = B - Bᵀ, and B (blocks, size, size) starts at 0.
    Parameters: 4 O. Code: https://github.com/KohakuBlueleaf/LyCORIS
    """

    PARTS = ("blocks",)
    lycoris = partial(import_optional, "lycoris.functional.diag_oft", "diag-OFT", "baselines")

    def add_parameters(self) -> None:
        self.blocks = nn.Parameter(self.lycoris().weight_gen(self.weight, BLOCK)[0].to(self.weight))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        # Pinned, as other backends round differently.
        change = self.lycoris().diff_weight(self.weight, self.blocks, None, backend="torch")
        return self.weight + change, self.bias


class FilterAtoms(TunedConv2d):
    """W + (W V) D with the atoms D (m, K), m = 6: filter-subspace tuning (arXiv:2403.00269).

    The coefficients W V are fixed; V (K, m) are the first m eigenvectors of Wᵀ W. D starts at 0.
    With m = K, D = Vᵀ (M - I) gives the kernel W M of static full M, and V is orthogonal: gradient
    descent takes the same steps. The authors take m = 9 and coefficients by sparse coding.
    Parameters: m K. Code: https://github.com/weichennone/convnet_finetune
    """

    PARTS = ("atoms",)
    directions: Tensor

    def add_parameters(self) -> None:
        directions = self._main_directions(ATOMS)
        self.register_buffer("directions", directions)
        self.atoms = nn.Parameter(torch.zeros_like(directions.T))

    def _main_directions(self, count: int) -> Tensor:
        rows = self.weight.detach().flatten(2).flatten(0, 1).double()
        vectors = torch.linalg.eigh(rows.T @ rows).eigenvectors  # the largest come last
        return vectors[:, -count:].flip(1).to(self.weight)

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        change = self.weight.flatten(2) @ (self.directions @ self.atoms)
        return self.weight + change.view_as(self.weight), self.bias


class ResidualAdapter(TunedConv2d):
    """W * x + A x with a matrix A (O, C/g): task-specific adapters, TSA (arXiv:2107.00358).

    A x sees the pixel below the centre of the kernel, so A adds to the central tap. Starts at
    A = 0; the authors' at 1e-4 I. Parameters: O C/g. Code: https://github.com/VICO-UoE/URL
    """

    PARTS = ADDED = ("central",)

    def add_parameters(self) -> None:
        self.central = nn.Parameter(self.weight.new_zeros(self.weight.shape[:2]))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        matrix = self.central if self.central.dim() == 2 else self.central.diag()
        rows, columns = self.kernel_size
        right, below = columns - 1 - columns // 2, rows - 1 - rows // 2
        sides = (columns // 2, right, rows // 2, below)
        return self.weight + F.pad(matrix[:, :, None, None], sides), self.bias


class ResidualVector(ResidualAdapter):
    """W * x + a x with a number for each channel: the vector form of TSA (arXiv:2107.00358).

    A matrix where W does not have as many filters as channels, as in the authors' code.
    Parameters: O, or O C/g where that is a matrix. Code: https://github.com/VICO-UoE/URL
    """

    def add_parameters(self) -> None:
        super().add_parameters()
        if self.weight.shape[0] == self.weight.shape[1]:
            self.central = nn.Parameter(self.weight.new_zeros(self.out_channels))


class Lora(TunedConv2d):
    """W + B A, B (O, r), A (r, C/g·K): LoRA (arXiv:2106.09685) of rank r = 1, the least.

    B starts at 0, A as the weight of a linear layer. Without groups it is PEFT's.
    Parameters: K C/g + O. Code: https://github.com/huggingface/peft
    """

    PARTS = ("factor_a", "factor_b")

    def factor_sizes(self) -> tuple[int, int, int]:
        """The rows of B, the columns of B, which are the rows of A, and the columns of A."""
        return self.out_channels, 1, self.weight[0].numel()

    def add_parameters(self) -> None:
        rows, inner, columns = self.factor_sizes()
        self.factor_a = nn.Parameter(self.weight.new_empty(inner, columns))
        self.factor_b = nn.Parameter(self.weight.new_zeros(rows, inner))
        nn.init.kaiming_uniform_(self.factor_a, a=math.sqrt(5))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        change = (self.factor_b @ self.factor_a).view(self.weight.shape)
        return self.weight + change, self.bias


class LoraC(Lora):
    """W + view(B A), B (kh O/g, kh r), A (kh r, kw C): LoRA-C (arXiv:2410.16954) of rank r = 1.

    Starts as LoRA. Parameters: 9 r (C + O/g) for 3x3 taps.
    Code: https://github.com/alexyyds2024/lora-C
    """

    RANK: ClassVar[int] = 1

    def factor_sizes(self) -> tuple[int, int, int]:
        """The sizes of the factors, see `Lora`."""
        (rows, columns), filters = self.kernel_size, self.out_channels // self.groups
        return rows * filters, rows * self.RANK, columns * self.in_channels


class LoraC4(LoraC):
    """LoRA-C of rank 4, see `LoraC`."""

    RANK = 4


class Piggyback(TunedConv2d):
    """W · 1[r > 0.005] with a score r of every weight, 0.01 at first: Piggyback (arXiv:1801.06519).

    Scores get the gradient of their mask, as in the authors' code. A task stores one bit for each
    weight. Parameters: O C/g K. Code: https://github.com/arunmallya/piggyback
    """

    PARTS = ("scores",)

    def add_parameters(self) -> None:
        self.scores = nn.Parameter(torch.full_like(self.weight, SCORE))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        mask = (self.scores > THRESHOLD) + (self.scores - self.scores.detach())
        return self.weight * mask, self.bias


def _beside_m(x: Tensor, kernel: Tensor, bias: Tensor, *window: Any) -> Tensor:
    """F.conv2d without M, which acts on the one convolution of `F` in a layer, the layer's own."""
    return torch.ops.aten.conv2d(x, kernel, bias, *window)


class ConvAdapter(TunedLayer, nn.Conv2d):
    """W * x + s (P relu(G * x + b) + c): Conv-Adapter (arXiv:2208.07463) beside every convolution.

    G has W's taps and w = C/8 filters in as many groups, P is 1x1, s a gain of each filter. Because
    of the rectifier it cannot be merged. P and c start at 0; the authors' P is random, so that the
    network changes at once. Parameters: K C + w + w O + 2 O.
    Code: https://github.com/Hhhhhhao/Conv-Adapter
    """

    PARTS = ("gather", "gather_bias", "spread", "spread_bias", "gain")

    def add_parameters(self) -> None:
        widest = max(1, self.in_channels // REDUCTION)
        width = next(w for w in range(widest, 0, -1) if self.in_channels % w == 0)
        size = width, self.in_channels // width, *self.kernel_size
        self.gather = nn.Parameter(self.weight.new_empty(size))
        self.gather_bias = nn.Parameter(self.weight.new_empty(width))
        nn.init.kaiming_uniform_(self.gather, a=math.sqrt(5))
        bound = self.gather[0].numel() ** -0.5
        nn.init.uniform_(self.gather_bias, -bound, bound)
        self.spread = nn.Parameter(self.weight.new_zeros(self.out_channels, width, 1, 1))
        self.spread_bias = nn.Parameter(self.weight.new_zeros(self.out_channels))
        self.gain = nn.Parameter(self.weight.new_ones(self.out_channels, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._reversed_padding_repeated_twice, self.padding_mode), (0, 0)
        window = self.stride, padding, self.dilation
        hidden = _beside_m(x, self.gather, self.gather_bias, *window, len(self.gather)).relu()
        change = _beside_m(hidden, self.spread, self.spread_bias)
        return super().forward(input) + self.gain * change


class FeatureModulation(TunedLayer, nn.Conv2d):
    """y + f * y + c with y = W * x + b, f (O, 1, 3, 3) depthwise: AdaFM (arXiv:1904.08118).

    Starts at f = 0, c = 0. At the border f sees zeros around y, so that no kernel computes the same
    and it cannot be merged. Parameters: 10 O. Code: https://github.com/hejingwenhejingwen/AdaFM
    """

    PARTS = ("filter", "shift")

    def add_parameters(self) -> None:
        self.filter = nn.Parameter(self.weight.new_zeros(self.out_channels, 1, 3, 3))
        self.shift = nn.Parameter(self.weight.new_zeros(self.out_channels))

    def forward(self, input: Tensor) -> Tensor:
        y, groups = super().forward(input), self.out_channels
        return y + _beside_m(y, self.filter, self.shift, (1, 1), (1, 1), (1, 1), groups)


class Film(TunedLayer, nn.BatchNorm2d):
    """s y + t of every normalised y, s and t of each channel: FiLM as in FiT (arXiv:2206.08671).

    The same networks as by training the normalisation's own gains and shifts, by other steps. FiT's
    classifier, discriminant analysis, is not part of it. Parameters: 2 O. Starts at s = 1, t = 0.
    Code: https://github.com/cambridge-mlg/fit
    """

    PARTS = ("scale", "shift")

    def add_parameters(self) -> None:
        self.scale = nn.Parameter(torch.ones_like(self.weight))
        self.shift = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        scale, shift = (part[:, None, None] for part in (self.scale, self.shift))
        return super().forward(input) * scale + shift

    def plain_layer(self) -> nn.Module:
        layer: Any = deepcopy(self)
        layer.weight.mul_(self.scale)
        layer.bias.mul_(self.scale).add_(self.shift)
        del layer.scale, layer.shift
        layer.__class__ = nn.BatchNorm2d
        return layer


class TurnedInput(TunedLayer, nn.Conv2d):
    """A first convolution of images that are turned by an angle, in right angles, from 0 on.

    The trivial baseline of `ns.Affine("angle")`; bilinear, zero outside. No kernel computes the
    same, so it cannot be merged. Parameters: 1, in the first layer.
    """

    PARTS = ("angle",)

    def add_parameters(self) -> None:
        self.angle = nn.Parameter(self.weight.new_zeros(1))

    def forward(self, input: Tensor) -> Tensor:
        cos, sin = (f(self.angle * math.pi / 2) for f in (torch.cos, torch.sin))
        rows = torch.stack([torch.cat([cos, -sin, 0 * cos]), torch.cat([sin, cos, 0 * cos])])
        grid = F.affine_grid(rows.expand(len(input), 2, 3), list(input.shape), align_corners=False)
        return super().forward(F.grid_sample(input, grid.to(input), align_corners=False))
