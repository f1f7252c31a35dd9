"""One adapter file forged in every field: one error that names it, and the backbone as it was."""

import json

import pytest
import torch
from forgeries import GONE, VALUES, changed, forged_tensors, places_in
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import neural_similarity as ns

TENSORS = [
    "0.similarity.raw",
    "2.similarity.raw",
    "3.similarity.gain",
    "3.similarity.predictor.patch.weight",
    "3.similarity.predictor.last.weight",
    "3.similarity.predictor.last.bias",
    "5.weight",
    "5.bias",
    "1.running_mean",
]


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * 3 * 3, 5)).eval()


@pytest.fixture(scope="module")
def genuine(backbone, tmp_path_factory):
    static = ns.convert(backbone, "static-full", ["0", "2"])
    model = ns.convert(static, ns.Dynamic(ns.Diagonal(), ns.SphereNet(hidden=4)), "3")
    extra = ["5", "1.running_mean"]
    return ns.save_adapter(model, tmp_path_factory.mktemp("genuine") / "a", extra=extra)


def parts(file):
    with safe_open(file, "pt") as content:
        facts = json.loads(content.metadata()["adapter"])
    return load_file(file), facts


def everything(model):
    """Of every module its class and attributes; of every tensor the object and its bytes."""
    attributes = {
        name: (type(module), {key: id(value) for key, value in vars(module).items()})
        for name, module in model.named_modules()
    }
    state = model.state_dict(keep_vars=True)
    return attributes, {k: (id(t), t.detach().numpy().tobytes()) for k, t in state.items()}


def refused(backbone, file):
    """The error that a file is refused with, which names it, in one printable line."""
    before = everything(backbone)
    with pytest.raises(ValueError, match="forged is not an adapter of this network: ") as error:
        ns.load_adapter(backbone, file, inplace=True)
    assert everything(backbone) == before
    told = str(error.value)
    assert told.isprintable()
    assert len(told) < 1000
    return told


def test_the_genuine_file_loads(backbone, genuine):
    tensors, facts = parts(genuine)
    assert set(TENSORS) == set(tensors)
    assert set(FACTS) == set(facts)
    ns.load_adapter(backbone, genuine)


SAME = [
    {"5.weight": "nothing"}, {"0.similarity.raw": "5.bias"}, {"x": "5.bias"},
    {"5.bias": "5.weight"}, {"0.weight": "5.weight"}, {"0.similarity.x": "5.bias"},
    {"1.running_mean": "x" * 10**6},
]  # fmt: skip
FACTS = ("format", "neural_similarity", "torch", "similarities", "same", "backbone")
READ = ("format", "similarities", "same", "backbone")
"""The others are for people, and of no consequence."""
NAMES = ["9", "1", "4", "0.weight", "0.similarity", ".", "0.", "x" * 10**5, ["0"] * 10**5]
"""Of no layer that has a similarity."""


def forged(tmp_path, tensors, facts):
    file = tmp_path / "forged"
    save_file(tensors, file, {"adapter": json.dumps(facts)})
    return file


def others_at(facts, place):
    """What may stand at a place of the facts; in a digest, also one other digit."""
    yield from (*VALUES, *(SAME if place == ("same",) else ()))
    yield from NAMES if place[:1] == ("similarities",) else ()
    if place[:1] == ("backbone",) and place[1:]:
        right = facts["backbone"][place[1]]
        yield from (
            right[:at] + f"{int(right[at], 16) ^ 1:x}" + right[at + 1 :] for at in (0, 31, 63)
        )


@pytest.mark.parametrize("field", [*FACTS, "all"])
def test_every_part_of_the_facts_wrong_or_missing(backbone, genuine, tmp_path, field):
    tensors, facts = parts(genuine)
    for place in places_in(facts):
        for other in others_at(facts, place) if field == (*place, "all")[0] else ():
            if not place and other is GONE:
                continue
            wrong = changed(facts, place, other)
            file = forged(tmp_path, tensors, wrong)
            if wrong == facts or (place and place[0] not in READ):
                ns.load_adapter(backbone, file)
            else:
                told = refused(backbone, file)
                digest = place[:1] == ("backbone",) and place[1:] and other is not GONE
                assert not digest or "another backbone" in told


TEXTS = [
    "", "none", "static-fully", "Static(Full(), Full())", "Static(Full(), init='released')",
    "Dynamic(Full(), predictor=SphereNet(hidden=-1))", "__import__('os').system('touch owned')",
    "Static(" * 10**5, "Static(\0)", "Static(Full())\n\x1b[2J", "lambda: 0", "1", "[]", "None",
    "Dynamic(Diagonal(), predictor=SphereNet(hidden=99999999999))", "static-diagonal",
    "dynamic-full", "Static(Unshared(Full(), channels=7))", "Static(Full()", "x" * 10**6,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:40]))
def test_every_text_of_a_similarity(backbone, genuine, tmp_path, text):
    tensors, facts = parts(genuine)
    for right in facts["similarities"]:
        changed = {text if t == right else t: n for t, n in facts["similarities"].items()}
        file = forged(tmp_path, tensors, facts | {"similarities": changed})
        refused(backbone, file)
    assert not (tmp_path / "owned").exists()


EXACT = [torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_of_another_exact_type_is_converted(backbone, genuine, tmp_path, name, dtype):
    tensors, facts = parts(genuine)
    tensors[name] = tensors[name].to(dtype)
    loaded = ns.load_adapter(backbone, forged(tmp_path, tensors, facts))
    state = loaded.state_dict()
    assert state[name].dtype == torch.float32
    assert torch.equal(state[name], tensors[name].float())
    assert loaded(torch.randn(2, 3, 9, 9)).isfinite().all()


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_of_more_digits_than_its_place_has(backbone, genuine, tmp_path, name):
    tensors, facts = parts(genuine)
    tensors[name] = tensors[name].double() + 1e-12
    told = refused(backbone, forged(tmp_path, tensors, facts))
    assert f"{name} must be torch.float32" in told


NEW_NAMES = ["{}x", "x.{}", "{}.", ".{}", "\x1b[2J{}", "stranger", "0.similarity.more", ""]


@pytest.mark.parametrize("new", NEW_NAMES, ids=ascii)
@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_missing_renamed_or_twice(backbone, genuine, tmp_path, name, new):
    tensors, facts = parts(genuine)
    tensor = tensors.pop(name)
    told = refused(backbone, forged(tmp_path, tensors, facts))
    assert f"{name} must have the shape {tuple(tensor.shape)}, got None" in told or name[0] in "15"
    renamed = {**tensors, new.format(name): tensor}
    refused(backbone, forged(tmp_path, renamed, facts))
    more = {**renamed, name: tensor.clone()}
    refused(backbone, forged(tmp_path, more, facts))


REASONS = {"complex": "must be torch.float32", "of type": "must be torch.float32"}
REASONS |= {"not finite": "must hold finite numbers"}


def test_every_tensor_that_does_not_fit(backbone, genuine, tmp_path):
    for what, forgery in forged_tensors(genuine.read_bytes()):
        (tmp_path / "forged").write_bytes(forgery)
        told = refused(backbone, tmp_path / "forged")
        name, _, kind = what.partition(" ")
        reason = next((reason for start, reason in REASONS.items() if kind.startswith(start)), "")
        assert f"{name} {reason}" in told or not reason
        assert kind.removeprefix("of type ") in told or not kind.startswith("of type")
