"""Every public name, every argument, every odd value: refused by name, never from the depths.

A name without a case fails, so that what is added is tried too.
"""

import inspect
import warnings
from contextlib import suppress
from dataclasses import MISSING, fields

import pytest
import torch
from reliability.calls import CALLED, FUNCTIONS, LAYERS, REFUSED, call, tensors
from reliability.children import ended, started
from reliability.works import WORKS
from reliability.writes import watch
from torch import nn

import neural_similarity as ns
from neural_similarity import functional, hub, models, regularize, testing, visualize

MAPS, MATRICES = torch.rand(2, 3, 5, 6), torch.rand(2, 9, 4, 4)
SMALL = {"num_classes": 3, "width": 0.1}


def network():
    return nn.Sequential(ns.Conv2d(4, 3, 3, similarity="static-full"))


def plain():
    return nn.Sequential(nn.Conv2d(4, 3, 3))


def input_of():
    return torch.randn(2, 4, 5, 6)


CASES = {
    visualize.similarities: {"model": network, "x": input_of},
    visualize.kernel_shapes: {"model": network},
    visualize.plot_shapes: {"shapes": {"a": torch.ones(3, 3)}, "columns": 5},
    visualize.mean_matrix: {"m": torch.eye(9)},
    visualize.plot_matrices: {"found": {"a": torch.eye(9)}, "columns": 5, "kernels": None},
    visualize.plot_maps: {"x": MAPS, "m": MATRICES, "kernel": None},
    visualize.draw: {"model": network, "x": input_of, "folder": "out"},
    ns.convert: {"model": plain, "similarity": "static-full", "where": None, "inplace": False},
    ns.plan: {"model": plain, "similarity": "static-full", "where": None},
    ns.fold: {"model": network, "dynamic": "error"},
    ns.unconvert: {"model": network, "inplace": False},
    ns.freeze_backbone: {"model": network, "norm": "eval", "train": None},
    ns.unfreeze_backbone: {"model": network},
    ns.max_difference: {"model": network, "other": network, "example": input_of},
    ns.parameter_groups: {
        **{"model": network, "weight_decay": 0.1, "similarity_decay": 0.1},
        **{"predictor_decay": None, "sphere_decay": None},
    },
    ns.penalty: {"model": network, "measure": "l1"},
    ns.orthogonality: {"layers": lambda: ns.SphereConv2d(4, 3, 3), "unit": True},
    testing.cases: {"structure": ns.Full(), "predictor": None},
    testing.check: {"law": "seed", "case": testing.cases(ns.Full())[0]},
    models.parameters: {"model": plain},
}
"""Our own functions, whose errors name the argument; functions make their arguments anew."""

SPECS = (
    ns.Static, ns.Dynamic, ns.Affine, ns.Dilation, ns.Masked, ns.Sparse, ns.Unshared, ns.Full,
    ns.Diagonal, ns.Symmetric, ns.PositiveSemidefinite, ns.SphereNet, ns.CNN, ns.Shared,
    ns.Pooled, ns.Light, ns.LowRank,
)  # fmt: skip
REQUIRED = {"structure": ns.Full(), "channels": 2}

ELSEWHERE = {
    "functional": "a module, whose functions are in CALLED",
    "hub": "a module, see tests/test_hub.py",
    "models": "a module, whose builders `build` calls",
    "peft": "a module, see tests/tools/test_peft.py",
    "nn": "a module, whose names are those of ns and what they are made of",
    "testing": "a module, see CASES",
    "visualize": "a module, see CASES",
    "SIMILARITIES": "a dict",
    "Select": "a spec without arguments",
    "Shift": "a spec without arguments",
    "Unstructured": "a spec without arguments",
    "sharing": "takes no argument",
    "adapters": "see tests/conversion/test_adapters.py",
    "load_adapter": "see tests/conversion/test_adapters.py",
    "save_adapter": "see tests/conversion/test_adapters.py",
    "load": "a function of the laboratory, see tests/lab",
}
ODD = [
    None, True, "", "x", (), 0, -1, float("nan"), 1.5, 1j, (0,), [1, "x"], {}, {"x": 1}, object(),
    nn.ReLU(), nn.Conv2d(4, 3, 3, dtype=torch.complex64), torch.ones(2, 4, 5, 6, dtype=torch.int64),
    torch.ones(2, 4, 5, 6, dtype=torch.complex64), torch.ones(2, 4, 5, 6, device="meta"),
    torch.zeros(0), {"a": torch.zeros(0)}, {1: torch.ones(3, 3)}, {"a": torch.ones(9) * 1j},
]  # fmt: skip


def public(module):
    """The functions and classes that a module itself defines and names without an underscore."""
    return [
        value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith(module.__name__)
    ]


def test_every_public_name_has_a_case():
    tried = {*CASES, *SPECS, *CALLED}
    missing = [
        name for name in ns.__all__ if name not in ELSEWHERE and getattr(ns, name) not in tried
    ]
    assert not missing
    assert set(ELSEWHERE) <= set(ns.__all__)
    assert not [f.__name__ for f in public(visualize) if f not in tried]
    assert not [f.__name__ for f in public(regularize) if f not in tried]
    operators = {name: f for name, f in vars(functional).items() if not name.startswith("_")}
    assert not [f for f in operators.values() if inspect.isfunction(f) and f not in tried]
    builders = {"build", *models.MODELS}
    helpers = {f.__name__ for f in public(models) if inspect.isfunction(f) and f not in tried}
    parts = {"conv_block", "options", "has_pool", "set_norms", "usual_sizes", "without_pool"}
    assert helpers <= builders | parts
    assert {f.__name__ for f in public(hub)} == {"Network", "Adapted"}


def arguments_of(function):
    """Arguments that are as they should be."""
    if function in SPECS:
        known = {field.name: REQUIRED.get(field.name, field.default) for field in fields(function)}
        known |= {"structure": ns.Full()} if function in (ns.Static, ns.Dynamic) else {}
        return {name: value for name, value in known.items() if value is not MISSING}
    made = CASES[function].items()
    return {name: value() if inspect.isfunction(value) else value for name, value in made}


OUR_OWN = [*CASES, *SPECS]


@pytest.mark.parametrize("function", OUR_OWN, ids=lambda f: f.__name__)
def test_arguments_as_they_should_be_work(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function(**arguments_of(function))


@pytest.mark.parametrize("function", OUR_OWN, ids=lambda f: f.__name__)
def test_odd_arguments_are_refused_by_name(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in arguments_of(function):
        for odd in ODD:
            arguments = arguments_of(function) | {name: odd}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**arguments)
            except Exception as error:
                named = isinstance(error, ValueError | TypeError) and name in str(error)
                # A RuntimeError is torch's, for an input of another type than the weights.
                if not named and not (isinstance(error, REFUSED) and torchs(odd, name)):
                    wrong.append(f"{name}={odd!r:.60}: {error!r:.120}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_public_names_that_write_have_a_work(tmp_path, monkeypatch):
    """Every call is watched; modules and adapters, which ELSEWHERE leaves out, have works, too."""
    monkeypatch.chdir(tmp_path)
    names = []

    def note_name(*_):
        with (tmp_path / "names").open("a") as file:
            file.write(f"{names[-1]}\n")

    def call_all():
        warnings.simplefilter("ignore")
        watch(note_name, tmp_path)
        for function in OUR_OWN:
            names.append(function.__name__)
            function(**arguments_of(function))
        for function in CALLED:
            names.append(function.__name__)
            call(function)

    output = tmp_path / "output"
    assert ended(started(call_all, output)) == 0, output.read_text()
    writing = {*(tmp_path / "names").read_text().split(), "save_adapter", "hub", "peft"}
    assert "draw" in writing
    assert writing <= {work.command for work in WORKS.values()}


def torchs(odd, name):
    """Whether torch's own layers refuse a network's input, or a user's own module its own."""
    inputs = name in ("x", "example") and isinstance(odd, torch.Tensor)
    return inputs or (isinstance(odd, nn.Module) and name in ("model", "other", "measure"))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch, about what it does with them
@pytest.mark.parametrize("function", CALLED, ids=lambda f: f.__name__)
def test_odd_arguments_of_layers_and_operators_raise_errors_of_callers(function):
    """Of torch's constructors and operators as well: ValueError, TypeError, RuntimeError."""
    for name in CALLED[function]:
        for odd in ODD:
            with suppress(*REFUSED):
                call(function, **{name: odd})


@pytest.mark.parametrize("layer", [ns.Conv1d, ns.Conv2d, ns.Conv3d])
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_a_kernel_has_a_size_along_every_dimension(layer, similarity):
    with pytest.raises(ValueError, match=r"`kernel_size` must be \d numbers, got \(\)"):
        layer(4, 3, (), similarity=similarity)


@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal"])
def test_complex_weights_are_skipped_with_a_reason_and_refused_where_named(similarity):
    model = nn.Sequential(nn.Conv2d(4, 3, 3, dtype=torch.complex64), nn.Conv2d(3, 3, 3))
    reason = "has complex weights, and similarities are real"
    assert ns.plan(model, similarity) == {"0": reason, "1": None}
    with pytest.raises(ValueError, match=rf"`where` names modules that cannot .*{reason}"):
        ns.convert(model, similarity, "0")
    with pytest.raises(ValueError, match=rf"`model` must have a layer to convert .*{reason}"):
        ns.convert(model[:1], similarity)


def test_macs_are_those_of_a_size_of_counts():
    assert ns.macs(torch.nn.ReLU(), 3, 8, 8) == 0
    for odd in (None, 0, -1, 1.5, float("nan"), 1j):
        with pytest.raises(ValueError, match="`size` must be an integer of at least 1"):
            ns.macs(plain(), 4, odd, 5)


@pytest.mark.parametrize("function", CALLED)
def test_calls_as_they_should_be_work(function):
    call(function)


NEEDED = [
    (function, name)
    for function, arguments in FUNCTIONS.items()
    for name, value in arguments.items()
    if isinstance(value, str) and value in tensors()
]


@pytest.mark.parametrize("value", [3, "x", [1.0]])
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer is not models.build])
def test_layers_take_tensors(layer, value):
    with pytest.raises(ValueError, match="`input` must be a tensor, got"):
        layer(**LAYERS[layer])(value)


@pytest.mark.parametrize("value", [3, "x", [1.0]])
@pytest.mark.parametrize(("function", "name"), NEEDED)
def test_what_is_no_tensor_or_module_is_refused_by_name(function, name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name}|conv2d"):
        call(function, **{name: value})


@pytest.mark.parametrize("blocks", [(), torch.zeros(0), "x", ("channels",)])
def test_blocks_that_are_none_are_refused_by_name(blocks):
    with pytest.raises(ValueError, match="`blocks` must be a pair"):
        functional.global_similarity(torch.ones(1, 4, 2, 2), torch.ones(4), blocks=blocks)
