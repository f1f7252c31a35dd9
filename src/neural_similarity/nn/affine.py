"""M as a rotation, scaling, shear or shift of the kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from neural_similarity.choices import require_flag
from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.structure import Structure, StructureModule

AffinePart = Literal["angle", "scale", "shear", "shift"]
PARTS: tuple[AffinePart, ...] = get_args(AffinePart)
_COUNTS = {"angle": 1, "scale": 2, "shear": 1, "shift": 2}


@dataclass(frozen=True, repr=False)
class Affine(Structure):
    r"""M moves the kernel's sampling grid: w' = w M is w rotated, scaled, sheared and shifted.

    $$w'(q) = \tilde w(R\,H\,S\,q + t), \quad
      R = \text{rotation}, \; H = \begin{pmatrix}1 & h\\0 & 1\end{pmatrix}, \;
      S = \begin{pmatrix}1 + s_y & 0\\0 & 1 + s_x\end{pmatrix}$$

    for taps q = (row, column) about the kernel's centre and $\tilde w$ the kernel between taps,
    bilinear, zero outside: $M_{pq} = \Lambda(p_y - y)\,\Lambda(p_x - x)$ for the place (y, x) that
    q reads, with $\Lambda(d) = \max(0, 1 - |d|)$. The raw parameters, in this order, if `parts` has
    them:

    - angle, in right angles: 1 rotates the kernel as `torch.rot90` does, and every whole number is
      exact;
    - scale s_y and s_x, of the grid, so that 1 makes the kernel half as large; -2 mirrors it,
      exactly;
    - shear h, rows moved along by columns;
    - shift t, in taps, (down, right) in the kernel that is read.

    They start at zero, where M = I; the derivative there is the mean of the one-sided ones. Spatial
    transformers (https://arxiv.org/abs/1506.02025) do this to maps. It folds like every static M.

    Attributes:
        parts: Which of "angle", "scale", "shear" and "shift" are learned; by default all,
            6 parameters.
        tied: Whether all layers built in the same `ns.sharing()`, such as those that one
            `ns.convert` converts, share their parameters; see `Shared`.

    Raises:
        ValueError: `parts` is empty or has an unknown part; or (when built) the kernel does not
            have two dimensions.
    """

    parts: AffinePart | Sequence[AffinePart] = PARTS
    tied: bool = False

    def __post_init__(self):
        require_flag("tied", self.tied)
        given: Any = (self.parts,) if isinstance(self.parts, str) else self.parts
        parts = tuple(given) if isinstance(given, list | tuple) else ()
        if not parts or any(part not in PARTS for part in parts):
            raise ValueError(f"`parts` must be some of {', '.join(PARTS)}, got {self.parts!r}")
        object.__setattr__(self, "parts", tuple(part for part in PARTS if part in parts))

    @property
    def shared(self) -> bool:
        """Whether the layers of one `ns.sharing()` share their parameters."""
        return self.tied

    def build(self, geometry: Geometry) -> StructureModule:
        if len(geometry.kernel_size) != 2:
            raise ValueError(
                f"Affine needs a kernel of two dimensions, got one of {geometry.kernel_size}"
            )
        return _Affine(cast(tuple[AffinePart, ...], self.parts), geometry.kernel_size)


class _Affine(StructureModule):
    def __init__(self, parts: tuple[AffinePart, ...], kernel_size: tuple[int, ...]):
        super().__init__(sum(_COUNTS[part] for part in parts))
        self.parts = parts
        self.kernel_size = kernel_size

    def forward(self, raw: Tensor) -> Tensor:
        """(n, scalars, *positions) to (n, K, K, *positions)."""
        numbers = self._part_numbers(raw)
        scale_y, scale_x = (1 + number for number in numbers["scale"])
        down, right = self._tap_offsets(raw)
        down, right = down * scale_y, right * scale_x
        down = down + numbers["shear"][0] * right
        cos, sin = _cos_and_sin(numbers["angle"][0])
        y = cos * down + sin * right + numbers["shift"][0]
        x = cos * right - sin * down + numbers["shift"][1]
        read_y, read_x = (tap.transpose(1, 2) for tap in self._tap_offsets(raw))
        return _hat_weight(read_y - y) * _hat_weight(read_x - x)

    def _part_numbers(self, raw: Tensor) -> dict[str, list[Tensor]]:
        """The parameters of each part, (n, 1, 1, *positions); zeros if it is not learned."""
        columns = iter(raw.unsqueeze(1).split(1, 2))
        zero = raw.new_zeros(1)
        return {
            part: [next(columns) if part in self.parts else zero for _ in range(count)]
            for part, count in _COUNTS.items()
        }

    def _tap_offsets(self, raw: Tensor) -> list[Tensor]:
        """Rows and columns of the taps about the centre, (1, 1, K, *1)."""
        sides = [
            torch.arange(size, dtype=raw.dtype, device=raw.device) - (size - 1) / 2
            for size in self.kernel_size
        ]
        grid = torch.meshgrid(*sides, indexing="ij")
        return [axis.reshape(1, 1, -1, *[1] * (raw.dim() - 2)) for axis in grid]


def _cos_and_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of an angle in right angles, exact where it is whole."""
    whole = angle.round()
    rest = (angle - whole) * (pi / 2)
    quarter = whole.remainder(4)
    cos_whole = (quarter == 0).to(angle) - (quarter == 2).to(angle)
    sin_whole = (quarter == 1).to(angle) - (quarter == 3).to(angle)
    cos, sin = rest.cos(), rest.sin()
    return cos * cos_whole - sin * sin_whole, sin * cos_whole + cos * sin_whole


def _hat_weight(distance: Tensor) -> Tensor:
    """max(0, 1 − |d|), whose derivative at its corners is the mean of both sides'.

    `relu` has derivative 0 there: from M = I, where all distances are whole, nothing would learn.
    """
    return ((distance + 1).abs() + (distance - 1).abs()) / 2 - distance.abs()
