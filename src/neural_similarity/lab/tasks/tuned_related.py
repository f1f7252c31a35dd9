"""The methods closest to M, as their authors publish them: TSA, and atoms with sparse codes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.lab.tasks.tuned import ResidualAdapter, TunedConv2d, TunedLayer

CODED_ATOMS, PENALTY, ROUNDS = 9, 1e-3, 10


class StemlessAdapter(ResidualAdapter):
    """TSA (arXiv:2107.00358): adapters but in the first convolution, and `AlignedLinear`.

    Parameters: O C/g, and d² for d features. Code: https://github.com/VICO-UoE/URL
    """


class AlignedLinear(TunedLayer, nn.Linear):
    """W A y + b with a matrix A (d, d) of the features y, at first I: TSA's alignment."""

    PARTS = ("alignment",)

    def add_parameters(self) -> None:
        self.alignment = nn.Parameter(torch.eye(self.in_features).to(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.linear(input, self.alignment))

    def plain_layer(self) -> nn.Module:
        bias, place = self.bias, {"device": self.weight.device, "dtype": self.weight.dtype}
        sizes: Any = self.in_features, self.out_features, bias is not None
        layer = nn.utils.skip_init(nn.Linear, *sizes, **place)
        layer.weight, layer.bias = nn.Parameter(self.weight @ self.alignment), bias
        return layer


class CodedAtoms(TunedConv2d):
    """W + C D with the atoms D (9, K), at first 0: filter-subspace tuning (arXiv:2403.00269).

    The codes C of W are fixed and sparse: kernels are C A there. A's atoms have length 1, so codes
    have the kernels' scale. At most K atoms. Parameters: 9 K.
    Code: https://github.com/weichennone/convnet_finetune
    """

    PARTS = ("atoms",)
    codes: Tensor

    def add_parameters(self) -> None:
        rows = self.weight.detach().flatten(2).flatten(0, 1)
        codes = sparse_codes(rows.double())
        self.register_buffer("codes", codes.to(rows))
        self.atoms = nn.Parameter(rows.new_zeros(codes.shape[1], rows.shape[1]))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        return self.weight + (self.codes @ self.atoms).view_as(self.weight), self.bias


def sparse_codes(rows: Tensor) -> Tensor:
    """Codes C (n, m) of rows (n, K) that minimise |rows - C A|² / 2 + 0.001 |C|₁, m = min(9, K).

    Codes and unit atoms A take turns, from orthogonal atoms on; codes by shrinking steps (ISTA).
    """
    random = torch.Generator().manual_seed(0)
    start = torch.randn(rows.shape[1], CODED_ATOMS, generator=random, dtype=rows.dtype)
    atoms = torch.linalg.qr(start)[0].T.to(rows)
    codes = rows.new_zeros(len(rows), len(atoms))
    for _ in range(ROUNDS):
        codes = _shrinking_steps(rows, atoms, codes)
        for at in range(len(atoms)):
            rest = rows - codes @ atoms + codes[:, at, None] * atoms[at]
            moved = codes[:, at] @ rest
            if moved.norm() > 0:
                atoms[at] = moved / moved.norm()
    return _shrinking_steps(rows, atoms, codes)


def _shrinking_steps(rows: Tensor, atoms: Tensor, codes: Tensor, steps: int = 20) -> Tensor:
    bound = torch.linalg.matrix_norm(atoms @ atoms.T, 2)
    for _ in range(steps):
        codes = F.softshrink(
            codes - (codes @ atoms - rows) @ atoms.T / bound, float(PENALTY / bound)
        )
    return codes
