"""torch's LSTM with a similarity."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_similarity.nn.geometry import Geometry
from neural_similarity.nn.layer import SimilarityLayer, fx_leaf, register
from neural_similarity.nn.linear import Kernel, linear_geometry
from neural_similarity.nn.similarity import Dynamic
from neural_similarity.nn.text import Similarity, SimilarityName

LSTMState = tuple[Tensor, Tensor]


@register
class LSTM(SimilarityLayer[nn.LSTM], nn.LSTM):
    r"""`torch.nn.LSTM` with a learned bilinear similarity in both of its products.

    $$\text{gates} = W_{ih} M_{ih}\, x_t + b_{ih} + W_{hh} M_{hh}\, h_{t-1} + b_{hh}$$

    Each layer l has two, `similarity.ih_l<l>` over the input's features and `similarity.hh_l<l>`
    over the hidden ones, like those of `Linear`. Static ones fold into torch's kernels and run as
    torch's LSTM; dynamic ones run step by step. Unidirectional, without projections. Parameters
    have `torch.nn.LSTM`'s names. Paper, §1.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the state.
        num_layers: Number of stacked layers.
        bias: Whether to add b.
        batch_first: (n, time, features) instead of (time, n, features).
        dropout: Share of outputs dropped between layers.
        bidirectional: Two directions, without a similarity only.
        proj_size: Size of the projected state, without a similarity only.
        device: Device of the parameters.
        dtype: Type of the parameters.
        similarity: As in `Conv2d`, but no module.

    Shape:
        As `torch.nn.LSTM`: (time, n, features) or (time, features) to (output, (h, c)).

    Raises:
        ValueError: the similarity, or its predictor, is a module, or there are two directions or a
            projection with a similarity; or the input is a packed sequence, or has other
            dimensions.
    """

    plain = nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: Similarity | SimilarityName | None = None,
    ):
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, device=device, dtype=dtype,
        )  # fmt: skip
        self.with_similarity(similarity)

    def build_similarity(self, similarity: Similarity | nn.Module | None) -> nn.Module | None:
        """The two similarities of every layer."""
        if similarity is None:
            return None
        if self.bidirectional or self.proj_size:
            raise ValueError(
                "`bidirectional` and `proj_size` must be False and 0 with a similarity, got "
                f"{self.bidirectional} and {self.proj_size}"
            )
        if isinstance(similarity, nn.Module):
            raise ValueError(f"`similarity` of an LSTM must be a name or spec, got {similarity!r}")
        if isinstance(similarity, Dynamic) and isinstance(similarity.predictor, nn.Module):
            raise ValueError(
                "`predictor` of an LSTM must not be a ready module, since it has several "
                f"similarities, got {similarity.predictor!r}"
            )
        geometries = lstm_geometries(self)
        return nn.ModuleDict({name: similarity.build(g) for name, g in geometries.items()})

    def geometry(self) -> Geometry:
        """The geometry of the first similarity."""
        return lstm_geometries(self)["ih_l0"]

    def similarities(self) -> dict[str, nn.Module]:
        """The similarity of every kernel, by the kernel's name."""
        parts = cast(nn.ModuleDict, self.similarity).items() if self.similarity else ()
        return {f"weight_{name}": part for name, part in parts}

    @fx_leaf
    def forward(self, input: Any, hx: LSTMState | None = None) -> Any:
        """The output at every time and the last state, from the state `hx`, zero by default."""
        if self.similarity is None:
            return super().forward(input, hx)
        if not isinstance(input, Tensor):
            raise ValueError(f"`input` must be a tensor, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(
                f"`input` must be of 2 or 3 dimensions, features last, got {tuple(input.shape)}"
            )
        if hx is not None and (not isinstance(hx, tuple | list) or len(hx) != 2):
            raise ValueError(f"`hx` must be the pair (h, c), got {type(hx).__name__}")
        if input.dim() == 2:
            return self._forward_unbatched(input, hx)
        x = input.transpose(0, 1) if self.batch_first else input
        h, c = hx or [x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)] * 2
        self.check_forward_args(input, (h, c), None)
        y, h, c = self._forward_static(x, h, c) if self.foldable() else self._forward_steps(x, h, c)
        return (y.transpose(0, 1) if self.batch_first else y), (h, c)

    def _forward_unbatched(self, x: Tensor, hx: LSTMState | None) -> tuple[Tensor, LSTMState]:
        batch = 0 if self.batch_first else 1
        state = None if hx is None else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        y, (h, c) = self.forward(x.unsqueeze(batch), state)
        return y.squeeze(batch), (h.squeeze(1), c.squeeze(1))

    def _forward_static(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """torch's LSTM with M in its kernels; x (time, n, features)."""
        kernels = {
            name: part(Kernel(getattr(self, name)), x) for name, part in self.similarities().items()
        }
        weights = [kernels.get(name, getattr(self, name)) for name in self._flat_weights_names]
        return torch.lstm(
            x, (h, c), weights, self.bias, self.num_layers, self.dropout, self.training, False,
            False,
        )  # fmt: skip

    def _forward_steps(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states: list[LSTMState] = []
        for layer in range(self.num_layers):
            inputs = self._similar_product("ih", layer, x)
            state = h[layer], c[layer]
            outputs = []
            for step in inputs:
                state = _next_state(step + self._similar_product("hh", layer, state[0]), state[1])
                outputs.append(state[0])
            states.append(state)
            x = torch.stack(outputs)
            if layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        hs, cs = zip(*states, strict=True)
        return x, torch.stack(hs), torch.stack(cs).to(x.dtype)

    def _similar_product(self, side: str, layer: int, x: Tensor) -> Tensor:
        """The product W M(x) x + b of inputs or states."""
        name = f"{side}_l{layer}"
        bias = getattr(self, f"bias_{name}") if self.bias else None
        part = cast(nn.ModuleDict, self.similarity)[name]
        return part(Kernel(getattr(self, f"weight_{name}"), bias), x)


def lstm_geometries(layer: nn.LSTM) -> dict[str, Geometry]:
    """The geometries of an LSTM's similarities by their names, torch's LSTM or ours."""
    geometries = {}
    for index in range(layer.num_layers):
        features = layer.hidden_size if index else layer.input_size
        geometries[f"ih_l{index}"] = linear_geometry(features, 4 * layer.hidden_size)
        geometries[f"hh_l{index}"] = linear_geometry(layer.hidden_size, 4 * layer.hidden_size)
    return geometries


def _next_state(gates: Tensor, c: Tensor) -> LSTMState:
    """The next (h, c) from all gates, in torch's order: input, forget, cell, output.

    Under autocast the gates and h have its type, and c keeps its own, wider one.
    """
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh()).to(gates.dtype), c
