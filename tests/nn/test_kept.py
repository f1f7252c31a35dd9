"""Kept folded kernels: evaluation folds once, and no kernel is ever stale."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from moved import moved
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity.nn import kept, similarity
from neural_similarity.nn.structure import FullModule

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))


def layer_of(spec="static-full"):
    return moved(ns.Conv2d(4, 6, 3, similarity=spec)).eval()


@pytest.fixture
def layer():
    layer = layer_of()
    with torch.no_grad():
        layer(X)
    return layer


def expected(layer, x=X):
    """The plain convolution in float64, by kernels that are never kept."""
    m = layer.similarity.full_matrix().double()
    kernel = (layer.weight.double().flatten(2) @ m).view(layer.weight.shape)
    return nn.functional.conv2d(x.double(), kernel, layer.bias.double()).float()


def assert_current(layer):
    with torch.no_grad():
        assert_close(layer(X), expected(layer))


def folds(layer, x=X):
    """How often a call of `layer` folds."""
    count = []
    with pytest.MonkeyPatch.context() as patch:
        fold = similarity.fold_kernel
        patch.setattr(
            similarity, "fold_kernel", lambda *a, **k: (count.append(1), fold(*a, **k))[1]
        )
        with torch.no_grad():
            layer(x)
    return len(count)


def test_evaluation_without_gradients_folds_once(layer):
    assert folds(layer) == folds(layer) == 0
    assert_current(layer)
    with torch.inference_mode():
        layer(X)
    assert folds(layer) == 0


def step(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    layer(X).square().sum().backward()
    optimizer.step()


def step_by_foreach(layer):
    layer(X).square().sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.02, foreach=True).step()


def other_state(layer):
    return {name: torch.randn_like(value) for name, value in layer.state_dict().items()}


def write_m_unseen(layer):
    layer.similarity.raw.data.add_(1)


def write_m_by_numpy(layer):
    layer.similarity.raw.detach().numpy()[0] += 1


@torch.no_grad()
def write_in_place(layer):
    layer.weight[0, 0].mul_(3)


def exchange_memory(layer):
    layer.weight.data = torch.randn_like(layer.weight)


def exchange_memory_twice(layer):
    """The allocator may hand out the first memory again."""
    for _ in range(2):
        layer.weight.data = layer.weight.data + 1


def turn_memory(layer):
    layer.weight.data = layer.weight.data.transpose(2, 3)


def exchange_weight(layer):
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def exchange_structure(layer):
    layer.similarity.structure = ns.Full(residual=False).build(layer.geometry())


def exchange_similarity(layer):
    layer.with_similarity("static-diagonal")
    moved(layer)


CHANGES = [
    step, step_by_foreach, write_m_unseen, write_m_by_numpy, write_in_place, exchange_memory,
    exchange_memory_twice, turn_memory, exchange_weight, exchange_structure, exchange_similarity,
    lambda layer: layer.load_state_dict(other_state(layer)),
    lambda layer: layer.load_state_dict(other_state(layer), assign=True),
    lambda layer: layer.similarity.load_state_dict({"raw": torch.randn(81)}),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_kernel_is_stale(layer, change):
    with torch.no_grad():
        before = layer(X)
    change(layer)
    assert_current(layer)
    with torch.no_grad():
        assert not torch.equal(layer(X), before)


class Scaled(FullModule):
    """A structure of a user, with a setting that only it knows."""

    scale = 1.0

    def forward(self, raw):
        return super().forward(raw) * self.scale


def scaled(structure):
    structure.scale = 2.0


@pytest.mark.parametrize("name", ["static-full", "static-diagonal", "of a user"])
@pytest.mark.parametrize(
    "change",
    [
        lambda structure: setattr(structure, "residual", False),
        lambda structure: structure.register_forward_hook(lambda _m, _x, m: 2 * m),
        scaled,
    ],
    ids=["residual", "hook", "setting"],
)
def test_settings_and_hooks_of_a_structure(name, change):
    layer = layer_of("static-full" if name == "of a user" else name)
    if name == "of a user":
        layer.similarity.structure = Scaled(9, True)
    with torch.no_grad():
        layer(X)
    change(layer.similarity.structure)
    assert_current(layer)


@pytest.mark.parametrize("whole", [False, True], ids=["swap_tensors", "load_state_dict"])
def test_parameters_can_be_swapped(layer, whole):
    other = layer_of()
    torch.nn.init.normal_(other.weight)
    if whole:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            layer.load_state_dict(other.state_dict())
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        assert_close(layer.weight, other.weight)
    else:
        torch.utils.swap_tensors(layer.weight, other.weight)
    assert_current(layer)


def test_other_parameters_in_a_functional_call(layer):
    other = other_state(layer)
    twin = layer_of()
    twin.load_state_dict(other)
    with torch.no_grad():
        assert_close(functional_call(layer, other, (X,)), expected(twin))
    assert_current(layer)


def test_a_mask_of_the_structure():
    layer = layer_of(ns.Static(ns.Masked(ns.Full())))
    assert_current(layer)
    layer.similarity.structure.mask.data[1] = -1
    assert_current(layer)


def test_a_change_in_another_thread(layer):
    thread = threading.Thread(target=write_in_place, args=(layer,))
    thread.start()
    thread.join()
    assert_current(layer)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))],
    ids=["deepcopy", "pickle"],
)
def test_copies_have_kernels_of_their_own(layer, copied):
    twin = copied(layer)
    write_in_place(twin)
    assert_current(twin)
    assert_current(layer)
    stored = pickle.dumps(layer)
    ns.drop_kernels(layer)
    assert pickle.dumps(layer) == stored


def test_layers_of_one_similarity():
    first, second = layer_of(), layer_of()
    second.similarity = first.similarity
    for layer in (first, second, first):
        assert_current(layer)


def test_gradients_flow_in_evaluation(layer):
    layer(X).sum().backward()
    assert layer.weight.grad is not None
    assert layer.similarity.raw.grad is not None
    write_in_place(layer)
    with torch.no_grad():
        y = layer(X)
    assert_close(layer(X), y)


def test_inference_tensors_keep_nothing():
    with torch.inference_mode():
        layer = layer_of()
        layer(X)
        layer.weight.mul_(2)  # No version counts this.
        assert_close(layer(X), expected(layer))
    assert layer.similarity not in kept._KEPT


def test_a_kernel_kept_in_inference_mode_serves_gradients_of_the_input():
    layer = layer_of().requires_grad_(False)
    with torch.inference_mode():
        layer(X)
    x = X.clone().requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    "drop",
    [
        lambda layer: layer.train().eval(),
        lambda layer: layer.eval(),
        lambda layer: layer.load_state_dict(layer.state_dict()),
        lambda layer: layer.double().float(),
        lambda layer: ns.drop_kernels(nn.Sequential(layer)),
    ],
    ids=["train", "eval", "load_state_dict", "to", "drop_kernels"],
)
def test_kernels_are_dropped(layer, drop):
    assert layer.similarity in kept._KEPT
    drop(layer)
    assert layer.similarity not in kept._KEPT


def test_writes_that_nothing_sees_need_drop_kernels(layer):
    layer.weight.detach().numpy()[:] = np.float32(2)
    ns.drop_kernels(layer)
    assert_current(layer)


def test_kept_kernels_end_with_their_layer():
    before = len(kept._KEPT)
    layer = layer_of()
    assert_current(layer)
    assert len(kept._KEPT) == before + 1
    del layer
    assert len(kept._KEPT) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_kernels_of_its_type(layer, dtype):
    with torch.no_grad(), torch.autocast("cpu", dtype):
        y = layer(X)
        kernel = layer.similarity.fold(layer.weight)
        assert torch.equal(y, layer.static_forward(X, kernel))
        assert folds(layer) == 0
    assert_current(layer)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_memory_formats(layer, layout):
    assert_current(layer.to(memory_format=layout))


def test_compiled_programs_keep_nothing(layer):
    ns.drop_kernels(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.no_grad():
        compiled(X)
        assert layer.similarity not in kept._KEPT
        write_in_place(layer)
        assert_close(compiled(X), expected(layer))


def test_exported_programs_hold_no_kept_kernel(layer):
    with torch.no_grad():
        program = torch.export.export(layer, (X,))
    state = {name: torch.randn_like(value) for name, value in program.state_dict.items()}
    layer.load_state_dict(state)
    for name, value in program.state_dict.items():
        value.data.copy_(state[name])
    with torch.no_grad():
        assert_close(program.module()(X), expected(layer))


def test_vmap_over_kernels(layer):
    def output(weight):
        return functional_call(layer, {"weight": weight}, (X,))

    stacked = torch.randn(3, *layer.weight.shape)
    with torch.no_grad():
        y = torch.vmap(output)(stacked)
        for weight, one in zip(stacked, y, strict=True):
            layer.weight.copy_(weight)
            assert_close(one, expected(layer))
