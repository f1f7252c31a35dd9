"""The laws, each a function of a case, and how they are checked."""

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
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
    DynamicSimilarity,
    SimilarityLayer,
    format_similarity,
    parse_similarity,
)
from neural_similarity.nn.layer import is_dynamic
from neural_similarity.testing.layer_cases import Case, NotApplicableError


def check(law: str, case: Case) -> str | None:
    """Check one of `LAWS`; return the reason if it does not apply, else None.

    Returns:
        None where the law holds, or the reason why it does not apply.

    Raises:
        AssertionError: the law does not hold.
        ValueError: there is no law of that name, or `case` is not a `Case`.
    """
    require_known("law", law, LAWS)
    if not isinstance(case, Case):
        raise ValueError(f"`case` must be a Case, as ns.testing.cases makes them, got {case!r}")
    try:
        LAWS[law](case)
    except NotApplicableError as reason:
        return str(reason)
    return None


def starts_as_torchs_layer(case: Case) -> None:
    """The output is bit for bit that of the plain layer, or within 1e-10 of it where dynamic."""
    layer, x = case.make_layer(), case.random_input()
    if not case.similarity.structure.contains_identity(layer.geometry()):
        raise NotApplicableError("the structure does not contain the identity")
    for mode in (True, False):
        y, plain = (
            _layer_output(layer.train(mode), x),
            _layer_output(unconvert(layer).train(mode), x),
        )
        limit = 1e-10 * plain.abs().max() if is_dynamic(layer) else 0
        _require_law((y - plain).abs().max() <= limit, "the output is not that of the plain layer")


def loads_torchs_checkpoints(case: Case) -> None:
    """torch's state dict loads with only `similarity.*` missing, in any mode."""
    layer = case.make_layer()
    plain = unconvert(layer).state_dict()
    report = layer.load_state_dict(plain, strict=False)
    foreign = [key for key in report.missing_keys if not key.startswith("similarity.")]
    _require_law(not foreign and not report.unexpected_keys, f"keys differ: {foreign}, {report}")
    keys = layer.train().state_dict().keys()
    _require_law(keys == layer.eval().state_dict().keys(), "the mode changes the state's keys")


def folds(case: Case) -> None:
    """A trained static layer and the torch layer that it folds into compute the same."""
    layer, x = case.trained_layer(), case.random_input()
    fused = layer.fuse()
    if is_dynamic(layer):
        _require_law(fused is layer, "`fuse` of a dynamic layer must return it")
        raise NotApplicableError("dynamic layers do not fold")
    ours = [m for m in fused.modules() if isinstance(m, SimilarityLayer)]
    _require_law(not ours, f"a similarity is left: {ours}")
    assert_close(_layer_output(fused, x), _layer_output(layer, x))


def has_exact_gradients(case: Case) -> None:
    """First and second derivatives by input and parameters agree with finite differences."""
    if not case.similarity.structure.exact_gradient:
        raise NotApplicableError("the gradient is a straight-through estimate")
    layer = case.trained_layer()
    names = [name for name, _ in layer.named_parameters()]
    tensors = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return _layer_output(layer, x, dict(zip(names, parameters, strict=True)))

    x = case.random_input().requires_grad_()
    _require_law(gradcheck(output, (x, *tensors), fast_mode=True), "first derivatives")
    _require_law(gradgradcheck(output, (x, *tensors), fast_mode=True), "second derivatives")


def batches_over_gradients(case: Case) -> None:
    """`vmap` over examples gives the outputs, and with `func.grad` the gradients, of a loop."""
    layer, x = case.trained_layer(), case.random_input()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
        return _layer_output(layer, example[None], parameters).square().sum()

    if not isinstance(layer, nn.LSTM):  # torch has no rule for its own
        looped = torch.cat([_layer_output(layer, example[None]) for example in x])
        assert_close(vmap(lambda example: _layer_output(layer, example[None])[0])(x), looped)
    batched = vmap(grad(loss), (None, 0))(parameters, x)
    looped = [grad(loss)(parameters, example) for example in x]
    for name, values in batched.items():
        assert_close(values, torch.stack([gradients[name] for gradients in looped]))


def learns(case: Case) -> None:
    """Every parameter of a trained similarity has a gradient, finite and not all zero.

    In float32 those of M are the same where the kernel is frozen.
    """
    layer, x = case.trained_layer(), case.random_input()
    _layer_output(layer, x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        _require_law(bool(found.isfinite().all() and found.any()), f"{name} has gradient {found}")
    gradients = []
    for trained in (True, False):
        frozen = deepcopy(layer).float()
        for name, parameter in frozen.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(trained or "similarity" in name)
        _layer_output(frozen, x.float()).square().sum().backward()
        gradients.append([p.grad for n, p in frozen.named_parameters() if "similarity" in n])
    assert_close(*gradients)


def is_the_same_in_any_layout(case: Case) -> None:
    """Strided and permuted inputs and single examples give the same; empty batches work."""
    layer, x = case.trained_layer(), case.random_input()
    y = _layer_output(layer, x)
    assert_close(_layer_output(layer, x.repeat_interleave(2, -1)[..., ::2]), y)
    assert_close(_layer_output(layer, x.movedim(1, -1).contiguous().movedim(-1, 1)), y)
    assert_close(_layer_output(layer, x[1]), y[1])
    if not isinstance(layer, nn.LSTM):  # torch's own takes no empty batch
        _require_law(
            _layer_output(layer, x[:0]).shape == (0, *y.shape[1:]), "an empty batch has no output"
        )


def survives_copies(case: Case) -> None:
    """`deepcopy`, `pickle` and `torch.save` give layers that compute the same."""
    layer, x = case.trained_layer(), case.random_input()
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    loaded = case.make_layer()
    loaded.load_state_dict(torch.load(buffer))
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        _require_law(
            torch.equal(_layer_output(copy, x), _layer_output(layer, x)),
            "a copy computes something else",
        )


def is_a_function_of_its_seed(case: Case) -> None:
    """Two layers built from one seed have the same weights."""
    first, second = case.make_layer().state_dict(), case.make_layer().state_dict()
    _require_law(all(torch.equal(first[key], second[key]) for key in first), "weights differ")


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
    layer, x = case.trained_layer(), case.random_input()
    if isinstance(layer, LSTM) and not torch_autocasts_lstm():
        raise NotApplicableError("torch runs no LSTM under bfloat16 autocast on this CPU")
    y = _layer_output(layer, x)
    low = _layer_output(deepcopy(layer).bfloat16(), x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        cast = _layer_output(layer.float(), x.float())
    for found in (low, cast):
        _require_law(found.dtype == torch.bfloat16, f"the output is {found.dtype}")
    if is_dynamic(layer) and not case.similarity.structure.exact_gradient:
        raise NotApplicableError("hard choices may differ in low precision")
    for found in (low, cast):
        _require_law(bool((found - y).abs().max() <= 0.1 * (1 + y.abs().max())), "far from float64")


SCALES = {
    torch.float64: (0.0, 1e-150, 1e-30, 1e-8, 1e-3, 1.0, 1e4, 1e160),
    torch.float32: (0.0, 1e-38, 1e-30, 1e-8, 1e-3, 1.0, 1e4, 2e19),
    torch.bfloat16: (0.0, 1e-38, 1e-30, 1e-8, 1e-3, 1.0, 1e4, 2e19),
    torch.float16: (0.0, 6e-8, 1e-6, 1e-3, 1.0, 1e2, 1e3, 6e4),
}
"""Scales of input for the law "finite", by type: from zero up to where M times the input fits."""


def is_finite(case: Case) -> None:
    """Output and gradients are finite if the plain layer's are and the float64 values fit.

    In four types and under autocast, at many scales of input, zero included. Near a type's largest
    number kernels are smaller, so that the plain layer's output fits.
    """
    half = (torch.bfloat16, torch.float16)
    casts = () if isinstance(case.make_layer(), LSTM) else half  # torch's refuses these on CPUs
    for dtype, cast in (*((dtype, None) for dtype in SCALES), *((torch.float32, c) for c in casts)):
        for scale in SCALES[cast or dtype]:
            layer, x = case.trained_layer().to(dtype), case.random_input() * scale
            if 2 * scale > torch.finfo(cast or dtype).max:
                x = x.clamp(-scale, scale)
                for name, parameter in layer.named_parameters():
                    parameter.data /= 1 if "similarity" in name else 64
            for name in _overflows(layer, x.to(dtype), cast):
                _require_law(False, f"{name} of {dtype}, autocast {cast}, at scale {scale}")


def _overflows(layer: SimilarityLayer, x: Tensor, cast: torch.dtype | None) -> Iterator[str]:
    """Names of outputs and gradients that overflow, though the plain layer's do not."""
    found = _derivatives(layer, x, cast)
    names = [name for name, tensor in found.items() if not tensor.isfinite().all()]
    if not names:
        return
    plain = _derivatives(unconvert(layer), x, cast)
    exact = _derivatives(deepcopy(layer).double(), x.double(), None)
    limit = torch.finfo(cast or x.dtype).max / 2
    for name in names:
        fits = exact[name].abs().max() <= limit or x.dtype == torch.float64
        if fits and all(tensor.isfinite().all() for tensor in plain.values()):
            yield name


def _derivatives(layer: nn.Module, x: Tensor, cast: torch.dtype | None) -> dict[str, Tensor]:
    """The output, and the gradients of its mean."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", cast) if cast else nullcontext():
        y = _layer_output(layer, x)
    y.to(torch.float64).mean().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()} | {"input": x.grad}
    return {"output": y} | {name: g for name, g in gradients.items() if g is not None}


def depends_on_its_input(case: Case) -> None:
    """A predicted M has more than two values over random inputs."""
    layer = case.trained_layer()
    if not is_dynamic(layer):
        raise NotApplicableError("static M depends on no input")
    if not case.similarity.structure.exact_gradient:
        raise NotApplicableError("hard choices have few values")
    for part in layer.modules():
        if isinstance(part, DynamicSimilarity):
            frame = part.geometry
            size = case.shape[2:] if frame.spatial else frame.kernel_size
            m = part.matrix(torch.randn(8, frame.in_channels, *size, dtype=torch.float64))
            values = len(m.flatten(1).round(decimals=8).unique(dim=0))
            _require_law(values > 2, f"M has {values} values over 8 inputs")


def is_written_as_text(case: Case) -> None:
    """Parsing the spec's text gives the spec back."""
    text = format_similarity(case.similarity)
    _require_law(parse_similarity(text) == case.similarity, f"{text} means something else")


def exports(case: Case) -> None:
    """`torch.export` gives a program of torch's own operators that computes the same."""
    layer, x = case.trained_layer().eval(), case.random_input()
    program = torch.export.export(layer, (x,))
    ours = [node for node in program.graph.nodes if "neural_similarity" in str(node.target)]
    _require_law(not ours, f"operators of our own: {ours}")
    assert_close(_first_output(program.module()(x)), _layer_output(layer, x))


def compiles(case: Case) -> None:
    """`torch.compile` takes the layer and its gradients as one graph."""
    layer, x = case.trained_layer(), case.random_input()
    if isinstance(layer, nn.LSTM) and not is_dynamic(layer):
        raise NotApplicableError("torch.compile does not support torch.nn.LSTM")
    torch.compiler.reset()
    twin = deepcopy(layer)
    dynamo = import_module("torch._dynamo.config")
    with dynamo.patch(allow_rnn=True):  # torch refuses its own LSTM, and so subclasses of it
        found = _first_output(torch.compile(twin, fullgraph=True, backend="aot_eager")(x))
    found.square().sum().backward()
    expected = _layer_output(layer, x)
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
    "finite": is_finite,
    "depends": depends_on_its_input,
    "text": is_written_as_text,
    "export": exports,
    "compile": compiles,
}
"""The laws by name."""
QUICK = tuple(name for name in LAWS if name not in ("finite", "export", "compile"))
"""The laws that take milliseconds."""


def _layer_output(
    layer: nn.Module, x: Tensor, parameters: dict[str, Tensor] | None = None
) -> Tensor:
    return _first_output(
        layer(x) if parameters is None else functional_call(layer, parameters, (x,))
    )


def _first_output(output: Any) -> Tensor:
    """The output; for recurrent layers the sequence without the state."""
    return output[0] if isinstance(output, tuple) else output


def _require_law(holds: Tensor | bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
