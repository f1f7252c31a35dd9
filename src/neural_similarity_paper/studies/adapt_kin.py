"""The nearest kin of M as their authors publish them, for the studies of adaptation."""

from collections import OrderedDict
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.conversion import head_name, plan
from neural_similarity.lab.tasks.baselines import with_baseline
from neural_similarity.lab.tasks.tuned import TunedConv2d
from neural_similarity.nn import Full, Static

CODED_ATOMS, PENALTY, ROUNDS = 9, 1e-3, 10


def add_tsa(network: nn.Module) -> list[str]:
    """TSA (arXiv:2107.00358): residual adapters in the blocks, and pre-classifier alignment.

    The stem has none. The alignment is a matrix (d, d) from the features to the classifier, at
    first the identity. Code: https://github.com/VICO-UoE/URL, models/tsa.py
    """
    names = with_baseline(network, "residual", where="layer*")
    name = head_name(network)
    head = cast(nn.Linear, network.get_submodule(name))
    alignment = nn.Linear(head.in_features, head.in_features, bias=False)
    nn.init.eye_(alignment.weight)
    network.set_submodule(name, nn.Sequential(OrderedDict(alignment=alignment, classifier=head)))
    return [*names, f"{name}.alignment.weight"]


def add_coded_atoms(network: nn.Module) -> list[str]:
    """Nine atoms of each layer (arXiv:2403.00269), with coefficients by sparse coding."""
    names = [name for name, why in plan(network, Static(Full())).items() if why is None]
    for layer in map(network.get_submodule, names):
        layer.__class__ = CodedAtoms
        cast(CodedAtoms, layer).add_parameters()
    return [f"{name}.atoms" for name in names]


class CodedAtoms(TunedConv2d):
    """W + C D with atoms D (9, K), at first 0, and the fixed codes C of W: kernels are C A there.

    A's atoms have length 1, so codes have the kernels' scale. Parameters: 9 K.
    Code: https://github.com/weichennone/convnet_finetune, dcflib/layers.py
    """

    PARTS = ("atoms",)
    codes: Tensor

    def add_parameters(self) -> None:
        rows = self.weight.detach().flatten(2).flatten(0, 1)
        self.register_buffer("codes", sparse_codes(rows.double()).to(rows))
        self.atoms = nn.Parameter(rows.new_zeros(CODED_ATOMS, rows.shape[1]))

    def effective_kernel(self) -> tuple[Tensor, Tensor | None]:
        return self.weight + (self.codes @ self.atoms).view_as(self.weight), self.bias


def sparse_codes(rows: Tensor) -> Tensor:
    """Codes C (n, 9) of rows (n, K) that minimise |rows - C A|² / 2 + 0.001 |C|₁.

    Codes and unit atoms A take turns, from orthogonal atoms on; codes by shrinking steps (ISTA).
    """
    random = torch.Generator().manual_seed(0)
    start = torch.randn(rows.shape[1], CODED_ATOMS, generator=random, dtype=rows.dtype)
    atoms, codes = torch.linalg.qr(start)[0].T, rows.new_zeros(len(rows), CODED_ATOMS)
    for _ in range(ROUNDS):
        codes = _shrinking_steps(rows, atoms, codes)
        for at in range(CODED_ATOMS):
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
