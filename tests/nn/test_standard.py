"""The layer of a standard predictor as one operator, beside the same layer made of its parts."""

import sys
from contextlib import contextmanager, nullcontext
from copy import deepcopy

import pytest
import torch
from moved import moved
from problems import KINDS, PROBLEMS, ids
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, jvp, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils.checkpoint import checkpoint

import neural_similarity as ns
from neural_similarity.nn import similarity as module
from neural_similarity.ops import layer as one

both_kinds = pytest.mark.parametrize("kind", KINDS)
both_predictors = pytest.mark.parametrize("predictor", [ns.SphereNet(), ns.Pooled()], ids=str)
LONG = pytest.mark.long
EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}


@contextmanager
def by_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "takes_layer", lambda *_: False)
        yield


def is_one(layer, x):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        run = module.predicted_conv
        patch.setattr(module, "predicted_conv", lambda *parts: (calls.append(1), run(*parts))[1])
        layer(x)
    return bool(calls)


OF_TORCH = {"padding", "padding_mode", "bias", "dtype"}


def layer_for(kind, channels=(4, 6), kernel=3, *geometry, **options):
    named = {name: options.pop(name) for name in OF_TORCH & options.keys()}
    spec = ns.Dynamic(ns.Diagonal() if kind == "diagonal" else ns.Full(), **options)
    return moved(ns.Conv2d(*channels, kernel, *geometry, similarity=spec, **named))


def maps(*size):
    return torch.randn(*(size or (2, 4, 6, 5))).requires_grad_()


def results(layer, x, grad):
    """The output, and the gradients of all that requires one."""
    inputs = [t for t in (x, *layer.parameters()) if t.requires_grad]
    y = layer(x)
    return y, *torch.autograd.grad(y, inputs, grad)


def compare(layer, x, strides=True, dtype=None, slack=1e-6):
    """The operator errs no more than twice as much as its parts, and has their memory formats.

    Where few numbers are summed the parts may be exact by chance: `slack` is for these.
    """
    grad = torch.randn_like(layer(x))
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        assert is_one(layer, x)
        found = results(layer, x, grad.to(dtype))
        with by_parts():
            assert not is_one(layer, x)
            parts = results(layer, x, grad.to(dtype))
    wide = x.detach().double().requires_grad_(x.requires_grad)
    right = results(deepcopy(layer).double(), wide, grad.double())
    for mine, other, exact in zip(found, parts, right, strict=True):
        assert (mine - exact).norm() <= 2 * (other - exact).norm() + slack * exact.norm()
        assert mine.dtype == other.dtype
        assert mine.is_contiguous() == other.is_contiguous() or not strides


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@both_kinds
@both_predictors
def test_equals_its_parts(predictor, kind, layout, dtype):
    layer = layer_for(kind, (4, 6), 3, 1, 1, dtype=dtype, predictor=predictor)
    x = torch.randn(2, 4, 7, 6, dtype=dtype).to(memory_format=layout).requires_grad_()
    # Parts fold one M an image into kernels whose gradient is not channels-last.
    folded = layout == torch.channels_last and predictor == ns.Pooled()
    compare(layer.to(memory_format=layout), x, strides=not folded)


@both_kinds
@both_predictors
@pytest.mark.parametrize("problem", PROBLEMS, ids=ids)
def test_geometries(problem, predictor, kind):
    geometry = problem.kernel_size, *problem.geometry
    layer = layer_for(kind, problem.channels, *geometry, predictor=predictor)
    x, _ = problem.operands()
    if problem.channels[0] == 1 and predictor == ns.Pooled():
        assert not is_one(layer, x.float())
    elif layer.groups == 1 and x.numel():
        slack = 3e-6 if predictor == ns.Pooled() and problem.kernel_size == (1, 1) else 1e-6
        compare(layer, x.float().requires_grad_(), slack=slack)
    else:  # of fewer channels than C takes one group at a time
        assert is_one(layer, x.float()) == (
            0 < x.numel() and problem.channels[0] == len(layer.weight)
        )


@both_predictors
@pytest.mark.parametrize("options", [{"padding": "same"}, {"padding_mode": "circular"}], ids=str)
def test_inputs_that_are_padded_first(options, predictor):
    layer = layer_for("diagonal", **{"padding": 1, **options}, predictor=predictor)
    if predictor == ns.Pooled() and "padding_mode" in options:  # averages leave padding out
        assert not is_one(layer, maps())
    else:
        compare(layer, maps(), strides=False)


@both_kinds
@pytest.mark.parametrize(
    "predictor",
    [
        ns.SphereNet(normalize="input"),
        ns.SphereNet(hidden=5, last_kernel_size=1, eps=1.0),
        ns.Light(),
        ns.Light(reduction=1),
        ns.Pooled(),
        ns.Pooled(hidden=5),
    ],
    ids=str,
)
def test_predictors(predictor, kind):
    for geometry in ((), (2, 1), (1, 2, 2)):
        compare(layer_for(kind, (4, 6), 3, *geometry, predictor=predictor), maps())
    for channels, groups in (((8, 16), 2), ((4, 4), 4)):  # one by one, and together
        layer = layer_for(kind, channels, 3, 1, 1, 1, groups, predictor=predictor)
        compare(layer, maps(2, channels[0], 5, 6))


@both_predictors
@pytest.mark.parametrize(("kind", "size"), [(ns.Conv1d, (5,)), (ns.Conv3d, (3, 4, 5))])
def test_dimensions(kind, size, predictor):
    layer = kind(2, 3, 3, padding=1, bias=False, similarity=ns.Dynamic(ns.Full(), predictor))
    compare(moved(layer), maps(2, 2, *size))


@both_kinds
@both_predictors
def test_frozen_parts(predictor, kind):
    """The input alone, M and the backbone, and every parameter alone."""
    layer = layer_for(kind, predictor=predictor)
    names = {name for name, _ in layer.named_parameters()}
    backbone = {"weight", "bias"}
    for trained in (set(), backbone, names - backbone, *({name} for name in names)):
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(name in trained)
        compare(layer, maps().requires_grad_(not trained))


@both_kinds
@both_predictors
def test_autocast_errs_as_little_as_the_parts(predictor, kind):
    layer = layer_for(kind, predictor=predictor)
    slack = 2e-3 if predictor == ns.Pooled() else 1e-6
    compare(layer, maps(2, 4, 8, 9), strides=False, dtype=torch.bfloat16, slack=slack)


@both_predictors
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15, 1e30])
def test_extreme_inputs(scale, predictor):
    layer = layer_for("diagonal", predictor=predictor)
    x = (scale * torch.randn(2, 4, 6, 5)).requires_grad_()
    grad = torch.randn_like(layer(x))
    found = results(layer, x, grad)
    with by_parts():
        right = results(layer, x, grad)
    for mine, other in zip(found, right, strict=True):
        size = other.nan_to_num(0, 0, 0).abs().max().item()
        assert_close(mine, other, rtol=1e-4, atol=1e-5 * size, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision")
@pytest.mark.parametrize(
    "predictor",
    [ns.SphereNet(hidden=2, last_kernel_size=1), ns.Light(), ns.Pooled(hidden=2)],
    ids=str,
)
@both_kinds
def test_derivatives_of_both_orders(kind, predictor):
    channels = 1 + (predictor == ns.Pooled(hidden=2))
    layer = layer_for(kind, (channels, 2), (2, 1), predictor=predictor)
    names = [name for name, _ in layer.named_parameters()]

    def output(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    x = maps(2, channels, 3, 2)
    assert is_one(layer, x)
    given = x, *(p.detach().requires_grad_() for p in layer.parameters())
    coarse = {"eps": 1e-2, "atol": 2e-2, "rtol": 2e-2, "nondet_tol": 1e-5, "fast_mode": True}
    assert gradcheck(output, given, **coarse)
    assert gradgradcheck(output, given, **coarse)


@both_predictors
def test_second_derivatives_of_a_kernel_used_twice(predictor):
    layer, x = layer_for("full", (2, 2), 3, 1, 1, predictor=predictor), maps(1, 2, 3, 3)
    inputs = [x, *layer.parameters()]

    def second():
        loss = layer(layer(x).tanh()).square().sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in first), inputs)

    found = second()
    with by_parts():
        assert_close(found, second(), rtol=1e-4, atol=1e-2)


@both_predictors
@pytest.mark.parametrize("create_graph", [False, True])
def test_batches_of_gradients(create_graph, predictor):
    layer, x = layer_for("diagonal", (2, 3), predictor=predictor), maps(1, 2, 3, 3)
    batched, looped = (
        torch.autograd.functional.jacobian(layer, x, vectorize=way, create_graph=create_graph)
        for way in (True, False)
    )
    assert_close(batched, looped)


@pytest.mark.filterwarnings(r"ignore:`torch.jit.\w+` is deprecated:FutureWarning")
@both_predictors
def test_transforms_take_the_parts(predictor):
    layer = layer_for("full", predictor=predictor).requires_grad_(False)
    x = torch.randn(2, 3, 4, 6, 5)
    y = layer(x[0])
    assert_close(vmap(layer)(x)[0], y)
    value, tangent = jvp(layer, (x[0],), (x[1],))
    assert_close(value, y)
    _, right = jvp(layer.double(), (x[0].double(),), (x[1].double(),))
    assert_close(tangent.double(), right, rtol=1e-4, atol=1e-4)


@both_predictors
def test_checkpointed_and_in_place(predictor):
    layer, x = layer_for("diagonal", bias=False, predictor=predictor), maps()
    y = nn.functional.relu(checkpoint(layer, x, use_reentrant=False), inplace=True)
    grad = torch.randn_like(y)
    right = torch.autograd.grad(layer(x).relu(), x, grad)
    assert_close(torch.autograd.grad(y, x, grad), right, **EXACT)


def hooked(layer):
    layer.similarity.predictor.last.register_forward_hook(lambda *_: None)


def parametrised(layer):
    nn.utils.parametrizations.weight_norm(layer.similarity.predictor.last)


class Lin(nn.Linear):
    pass


def replaced(layer):
    predictor = layer.similarity.predictor
    wider = nn.Conv2d(64, 9, 3, padding=2, dilation=2)
    predictor.last = Lin(64, 9) if isinstance(predictor.last, nn.Linear) else wider


def overridden(layer):
    predictor = layer.similarity.predictor
    predictor.forward = type(predictor).forward.__get__(predictor)


@both_predictors
@pytest.mark.parametrize("change", [hooked, parametrised, replaced, overridden])
def test_changed_predictors_run_their_modules(change, predictor):
    layer = layer_for("diagonal", predictor=predictor)
    assert is_one(deepcopy(layer), maps())
    change(layer)
    assert not is_one(layer, maps())


def test_global_hooks_and_dispatch_modes_see_the_modules():
    with BaseTorchDispatchMode():
        assert not is_one(layer_for("diagonal"), maps())
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    try:
        layer_for("diagonal")(maps())
    finally:
        handle.remove()
    assert nn.Conv2d in seen


@pytest.mark.parametrize(
    "options",
    [
        {"predictor": ns.CNN()},
        {"predictor": ns.Pooled(bound=None)},
        {"predictor": ns.Light(bound=None)},
        {"predictor": ns.SphereNet(batch_norm=True)},
        {"predictor": ns.SphereNet(resolution=2)},
        {"predictor": ns.SphereNet(per_image=True)},
        {"predictor": ns.SphereNet(bounded=True)},
        {"predictor": ns.SphereNet(normalize="both", angle="linear")},
        {"init": "released"},
    ],
    ids=str,
)
def test_other_similarities_are_made_of_their_parts(options):
    assert not is_one(layer_for("diagonal", **options), maps())


def operators(layer, x):
    """Both registered operators with arguments for them."""
    similarity = layer.similarity
    spec, operands = similarity.spec.predictor, (x, layer.weight, None)
    found = similarity.frame, spec, similarity.predictor, similarity.structure, similarity.gain
    parts = module.standard_parts(*found, operands)
    parts = [t if t is None else t.detach() for t in parts]
    values = one._plain_values(similarity.frame)
    y, *kept = one._forward_op(*parts, *values)
    needs = [True, True, False, False, True, True, True, True]
    backward = (torch.randn_like(y), *parts, *kept, *values, needs)
    return (one._forward_op, (*parts, *values)), (one._backward_op, backward)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@both_predictors
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "test",
    ["test_schema", "test_faketensor", pytest.param("test_aot_dispatch_dynamic", marks=LONG)],
)
def test_registration_is_complete(test, layout, predictor):
    layer = layer_for("diagonal", (4, 6), 3, 1, 1, predictor=predictor).to(memory_format=layout)
    x = torch.randn(2, 4, 7, 6).to(memory_format=layout)
    for operator, arguments in operators(layer, x):
        torch.library.opcheck(operator, arguments, test_utils=test)


@pytest.mark.parametrize("kind", ["diagonal", pytest.param("full", marks=LONG)])
@both_predictors
def test_compiled_layers_are_one_node(predictor, kind):
    layer, x, nodes = layer_for(kind, predictor=predictor), maps(), []

    def note(graph, _):
        called = [n.target for n in graph.graph.nodes if n.op == "call_function"]
        nodes.append([t for t in called if isinstance(t, torch._ops.OpOverload)])
        return make_boxed_func(graph.forward)

    grad = torch.randn_like(layer(x))
    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    y = compiled(x)
    found = torch.autograd.grad(y, [x, *layer.parameters()], grad)
    for mine, other in zip((y, *found), results(layer, x, grad), strict=True):
        assert_close(mine, other, **EXACT)
    assert nodes == [[one._forward_op], [one._backward_op]]


def saved_floats(layer, x):
    """Numbers that are kept for backward at every position, without the parameters."""
    kept = []
    with saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        layer(x)
    own = {p.data_ptr() for p in layer.parameters()}
    sizes = {t.data_ptr(): t.numel() for t in kept if t.data_ptr() not in own}
    return sum(sizes.values()) / x[:, 0].numel()


def test_memory_for_backward():
    layer, x = layer_for("diagonal", (32, 32), 3, 1, 1), maps(2, 32, 8, 8)
    assert saved_floats(layer, x) == 32 + 64 + 9 + 1
    with by_parts():
        assert saved_floats(layer, x) == 32 + 64 + 9 + 1 + 9
    layer = layer_for("full", (32, 32), 3, 1, 1, predictor=ns.Pooled())
    an_image = 32 + 64 + 81 + 1
    assert saved_floats(layer, x) == 32 + an_image / 64


def own_calls(layer, x):
    """How many of the library's Python functions forward and backward call."""
    found = []

    def note(frame, event, _):
        if event == "call" and "neural_similarity" in frame.f_code.co_filename:
            found.append(frame.f_code.co_qualname)

    layer(x).sum().backward()
    sys.setprofile(note)
    try:
        layer(x).sum().backward()
    finally:
        sys.setprofile(None)
    return len(found)


@both_predictors
def test_python_calls(predictor):
    layer = layer_for("diagonal", (8, 8), 3, 1, 1, predictor=predictor)
    x = maps(1, 8, 8, 8)
    calls = own_calls(layer, x)
    with by_parts():
        assert calls < own_calls(layer, x)
    assert calls <= 55


@pytest.mark.parametrize("predictor", [ns.SphereNet(), ns.Pooled(), ns.Light()], ids=str)
@pytest.mark.parametrize("change", [-1, 1])
def test_parts_that_do_not_fit_are_not_one_operator(change, predictor, monkeypatch):
    """C would read and write beyond them."""
    layer, x, calls = layer_for("diagonal", padding=1, predictor=predictor), maps(), []
    assert is_one(layer, x)
    monkeypatch.setattr(module, "predicted_conv", lambda *_: calls.append(1))
    for name, parameter in layer.similarity.named_parameters():
        for axis in range(parameter.dim()):
            other, size = deepcopy(layer), list(parameter.shape)
            size[axis] += change
            owner, _, attribute = name.rpartition(".")
            part = other.similarity.get_submodule(owner)
            setattr(part, attribute, nn.Parameter(torch.randn(size)))
            with pytest.raises((ValueError, RuntimeError)):
                other(x)
    assert not calls


@both_predictors
def test_a_single_position_with_an_expanded_gradient(predictor):
    layer, x = layer_for("full", predictor=predictor), maps(2, 4, 3, 3)
    grad = torch.ones(1, 1, 1, 1).expand(2, 6, 1, 1)
    assert_close(results(layer, x, grad), results(layer, x, grad.contiguous()), **EXACT)
