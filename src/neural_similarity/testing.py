"""The laws that a layer with a similarity must obey, for new structures, predictors and layers.

```python
@pytest.mark.parametrize("law", [law for law in ns.testing.LAWS if law != "text"])
@pytest.mark.parametrize("case", ns.testing.cases(MyStructure()), ids=str)
def test_my_structure(law, case):
    if reason := ns.testing.check(law, case):
        pytest.skip(reason)
```

"text" is a law of the library's own specs, which can be written on a command line.
"""

import io
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

from neural_similarity.choices import require_known
from neural_similarity.conversion import unconvert
from neural_similarity.nn import (
    LSTM,
    Affine,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    Diagonal,
    Dilation,
    Dynamic,
    Full,
    Linear,
    Masked,
    PositiveSemidefinite,
    Select,
    Shift,
    SimilarityLayer,
    Sparse,
    SphereNet,
    Static,
    Symmetric,
    Unshared,
    Unstructured,
    format_similarity,
    parse_similarity,
)
from neural_similarity.nn.layer import is_dynamic
from neural_similarity.nn.predictor import Predictor
from neural_similarity.nn.structure import Structure
from neural_similarity.nn.text import Similarity

STRUCTURES: dict[str, Structure] = {
    "Diagonal": Diagonal(),
    "Full": Full(),
    "Symmetric": Symmetric(),
    "PositiveSemidefinite": PositiveSemidefinite(),
    "Unstructured": Unstructured(),
    "Unshared (channels)": Unshared(Full(), channels=2),
    "Unshared (filters)": Unshared(Diagonal(), filters=2),
    "Masked": Masked(Full()),
    "Masked (continuous)": Masked(Diagonal(), continuous=True),
    "Dilation": Dilation(rate=2),
    "Sparse": Sparse(keep=5),
    "Select": Select(),
    "Shift": Unshared(Shift(), channels="each"),
    "Affine": Affine(),
}
"""A representative of every structure."""

Make = Callable[[Similarity | None], SimilarityLayer]
LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Conv1d": (lambda s: Conv1d(4, 6, 3, padding=2, dilation=2, similarity=s), (2, 4, 7)),
    "Conv2d": (lambda s: Conv2d(4, 6, (1, 3), (2, 1), (0, 1), similarity=s), (2, 4, 5, 4)),
    "Conv2d in groups": (lambda s: Conv2d(4, 6, 3, groups=2, similarity=s), (2, 4, 4, 5)),
    "Conv3d": (lambda s: Conv3d(2, 4, (1, 3, 1), padding="same", similarity=s), (2, 2, 2, 3, 2)),
    "ConvTranspose2d": (
        lambda s: ConvTranspose2d(4, 6, (1, 3), (1, 2), similarity=s),
        (2, 4, 3, 4),
    ),
    "Linear": (lambda s: Linear(5, 4, similarity=s), (2, 5)),
    "LSTM": (lambda s: LSTM(5, 5, batch_first=True, similarity=s), (2, 3, 5)),
}
"""Every layer as a function of its similarity, and the shape of an input."""


class NotApplicableError(Exception):
    """A law does not apply to a layer; the message says why."""


@dataclass(frozen=True)
class Case:
    """A layer to check: built by `make` in float64, from the same seed every time."""

    name: str
    make: Callable[[], SimilarityLayer]
    shape: tuple[int, ...]
    """The shape of the layer's input, batch first."""
    similarity: Similarity

    def __str__(self) -> str:
        return self.name

    def layer(self) -> SimilarityLayer:
        """A fresh layer.

        Raises:
            NotApplicableError: there is no such layer, as `make` says by a `ValueError`.
        """
        torch.manual_seed(0)
        try:
            return self.make().double()
        except ValueError as error:
            raise NotApplicableError(str(error)) from error

    def trained(self) -> SimilarityLayer:
        """A fresh layer with its similarity moved well away from where it starts."""
        layer = self.layer()
        torch.manual_seed(1)
        for name, parameter in layer.named_parameters():
            if name.endswith((".raw", ".gain")):
                parameter.data += 0.5 * torch.randn_like(parameter)
            elif name.endswith(".mask"):
                parameter.data += torch.rand_like(parameter) - 0.7
        return layer

    def input(self) -> Tensor:
        """Random numbers of `shape`."""
        torch.manual_seed(2)
        return torch.randn(self.shape, dtype=torch.float64)


def cases(structure: Structure, predictor: Predictor | None = None) -> tuple[Case, ...]:
    """A structure in every layer, static and predicted (by default by a small `SphereNet`)."""
    start = "identity" if structure.zero_is_identity else "released"
    kinds: dict[str, Similarity] = {"static": Static(structure)}
    if structure.dynamic:
        kinds["dynamic"] = Dynamic(structure, predictor or SphereNet(hidden=3), start)
    return tuple(
        Case(f"{kind} {name}", partial(make, similarity), shape, similarity)
        for kind, similarity in kinds.items()
        for name, (make, shape) in LAYERS.items()
    )


def check(law: str, case: Case) -> str | None:
    """Check one of `LAWS`; the reason where it does not apply.

    Raises:
        AssertionError: the law does not hold.
        ValueError: there is no law of that name.
    """
    require_known("law", law, LAWS)
    try:
        LAWS[law](case)
    except NotApplicableError as reason:
        return str(reason)
    return None


def starts_as_torchs_layer(case: Case) -> None:
    """The output is bit for bit that of the plain layer, or within 1e-10 of it where dynamic."""
    layer, x = case.layer(), case.input()
    if not case.similarity.structure.contains_identity(layer.geometry()):
        raise NotApplicableError("the structure does not contain the identity")
    for mode in (True, False):
        y, plain = _output(layer.train(mode), x), _output(unconvert(layer).train(mode), x)
        limit = 1e-10 * plain.abs().max() if is_dynamic(layer) else 0
        _require((y - plain).abs().max() <= limit, "the output is not that of the plain layer")


def loads_torchs_checkpoints(case: Case) -> None:
    """torch's state dict loads with only `similarity.*` missing, in any mode."""
    layer = case.layer()
    plain = unconvert(layer).state_dict()
    report = layer.load_state_dict(plain, strict=False)
    foreign = [key for key in report.missing_keys if not key.startswith("similarity.")]
    _require(not foreign and not report.unexpected_keys, f"keys differ: {foreign}, {report}")
    keys = layer.train().state_dict().keys()
    _require(keys == layer.eval().state_dict().keys(), "the mode changes the state's keys")


def folds(case: Case) -> None:
    """A trained static layer and the torch layer that it folds into compute the same."""
    layer, x = case.trained(), case.input()
    fused = layer.fuse()
    if is_dynamic(layer):
        _require(fused is layer, "`fuse` of a dynamic layer must return it")
        raise NotApplicableError("dynamic layers do not fold")
    ours = [m for m in fused.modules() if isinstance(m, SimilarityLayer)]
    _require(not ours, f"a similarity is left: {ours}")
    assert_close(_output(fused, x), _output(layer, x))


def has_exact_gradients(case: Case) -> None:
    """First and second derivatives by input and parameters agree with finite differences."""
    if not case.similarity.structure.exact_gradient:
        raise NotApplicableError("the gradient is a straight-through estimate")
    layer = case.trained()
    names = [name for name, _ in layer.named_parameters()]
    tensors = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return _output(layer, x, dict(zip(names, parameters, strict=True)))

    x = case.input().requires_grad_()
    _require(gradcheck(output, (x, *tensors), fast_mode=True), "first derivatives")
    _require(gradgradcheck(output, (x, *tensors), fast_mode=True), "second derivatives")


def batches_over_gradients(case: Case) -> None:
    """`vmap(func.grad)` over examples gives the gradients of a loop over them."""
    layer, x = case.trained(), case.input()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
        return _output(layer, example[None], parameters).square().sum()

    batched = vmap(grad(loss), (None, 0))(parameters, x)
    looped = [grad(loss)(parameters, example) for example in x]
    for name, values in batched.items():
        assert_close(values, torch.stack([gradients[name] for gradients in looped]))


def learns(case: Case) -> None:
    """Every parameter of a trained similarity has a gradient, finite and not all zero."""
    layer, x = case.trained(), case.input()
    _output(layer, x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        _require(bool(found.isfinite().all() and found.any()), f"{name} has gradient {found}")


def is_the_same_in_any_layout(case: Case) -> None:
    """Strided and permuted inputs, single examples, and an empty batch."""
    layer, x = case.trained(), case.input()
    y = _output(layer, x)
    assert_close(_output(layer, x.repeat_interleave(2, -1)[..., ::2]), y)
    assert_close(_output(layer, x.movedim(1, -1).contiguous().movedim(-1, 1)), y)
    assert_close(_output(layer, x[1]), y[1])
    if not isinstance(layer, nn.LSTM):  # torch's own takes no empty batch
        _require(_output(layer, x[:0]).shape == (0, *y.shape[1:]), "an empty batch has no output")


def survives_copies(case: Case) -> None:
    """`deepcopy`, `pickle` and `torch.save` give layers that compute the same."""
    layer, x = case.trained(), case.input()
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    loaded = case.layer()
    loaded.load_state_dict(torch.load(buffer))
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        _require(torch.equal(_output(copy, x), _output(layer, x)), "a copy computes otherwise")


def is_a_function_of_its_seed(case: Case) -> None:
    """Two layers of one seed have the same weights."""
    first, second = case.layer().state_dict(), case.layer().state_dict()
    _require(all(torch.equal(first[key], second[key]) for key in first), "weights differ")


@cache
def torch_autocasts_lstm() -> bool:
    """Whether `torch.nn.LSTM` runs under bfloat16 autocast: not on CPUs with AVX2 alone."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        return False
    return True


def runs_in_low_precision(case: Case) -> None:
    """bfloat16 layers and autocast give outputs of that type near those of float64."""
    layer, x = case.trained(), case.input()
    if isinstance(layer, LSTM) and not torch_autocasts_lstm():
        raise NotApplicableError("torch runs no LSTM under bfloat16 autocast on this CPU")
    y = _output(layer, x)
    low = _output(deepcopy(layer).bfloat16(), x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        cast = _output(layer.float(), x.float())
    for found in (low, cast):
        _require(found.dtype == torch.bfloat16, f"the output is {found.dtype}")
    if is_dynamic(layer) and not case.similarity.structure.exact_gradient:
        raise NotApplicableError("hard choices may differ in low precision")
    for found in (low, cast):
        _require(bool((found - y).abs().max() <= 0.1 * (1 + y.abs().max())), "far from float64")


def is_written_as_text(case: Case) -> None:
    """The spec's text gives the spec back."""
    text = format_similarity(case.similarity)
    _require(parse_similarity(text) == case.similarity, f"{text} means something else")


def exports(case: Case) -> None:
    """`torch.export` gives a program of torch's own operators that computes the same."""
    layer, x = case.trained().eval(), case.input()
    program = torch.export.export(layer, (x,))
    ours = [node for node in program.graph.nodes if "neural_similarity" in str(node.target)]
    _require(not ours, f"operators of our own: {ours}")
    assert_close(_first(program.module()(x)), _output(layer, x))


def compiles(case: Case) -> None:
    """`torch.compile` takes the layer and its gradients as one graph."""
    layer, x = case.trained(), case.input()
    if isinstance(layer, nn.LSTM) and not is_dynamic(layer):
        raise NotApplicableError("torch.compile does not support torch.nn.LSTM")
    torch.compiler.reset()
    twin = deepcopy(layer)
    dynamo = import_module("torch._dynamo.config")
    with dynamo.patch(allow_rnn=True):  # torch refuses its own LSTM, and so subclasses of it
        found = _first(torch.compile(twin, fullgraph=True, backend="aot_eager")(x))
    found.square().sum().backward()
    expected = _output(layer, x)
    expected.square().sum().backward()
    assert_close(found, expected)
    pairs = zip(twin.parameters(), layer.parameters(), strict=True)
    assert_close(*zip(*[(p.grad, q.grad) for p, q in pairs], strict=True))


Law = Callable[[Case], None]
LAWS: dict[str, Law] = {
    "identity": starts_as_torchs_layer,
    "checkpoints": loads_torchs_checkpoints,
    "folds": folds,
    "gradients": has_exact_gradients,
    "vmap": batches_over_gradients,
    "learns": learns,
    "layouts": is_the_same_in_any_layout,
    "copies": survives_copies,
    "seed": is_a_function_of_its_seed,
    "bfloat16": runs_in_low_precision,
    "text": is_written_as_text,
    "export": exports,
    "compile": compiles,
}
"""The laws by name."""
QUICK = tuple(name for name in LAWS if name not in ("export", "compile"))
"""The laws that take milliseconds."""


def _output(layer: nn.Module, x: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
    return _first(layer(x) if parameters is None else functional_call(layer, parameters, (x,)))


def _first(output: Any) -> Tensor:
    """The output; for recurrent layers the sequence without the state."""
    return output[0] if isinstance(output, tuple) else output


def _require(holds: Tensor | bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
