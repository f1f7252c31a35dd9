import logging
import shutil
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from torch import nn

from neural_similarity.files import write_json
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train import checkpoint, distributed
from neural_similarity.lab.train.checkpoint import (
    MANIFEST,
    STATE,
    WEIGHTS,
    TrainingState,
    find_damage,
    list_checkpoints,
    newest_checkpoint,
    restore_state,
    save_checkpoint,
    weights_digest,
)


def make_state(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return TrainingState(model, optimizer, torch.zeros(3, dtype=torch.float64))


def advance(state):
    loss = state.model(torch.randn(5, 3)).square().sum()
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.totals += torch.tensor([1.5, 2, 5])
    state.step += 1
    state.seconds += 0.25


def test_restored_state_goes_on_as_the_saved_one(tmp_path):
    state = make_state()
    for _ in range(3):
        advance(state)
    state.best, state.logged_seconds = 0.75, 0.5
    path = save_checkpoint(tmp_path, state, {"recipe": "test"}, keep=2)
    with safe_open(path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"recipe": "test"}
    other = make_state(seed=1)
    restore_state(path, other)
    assert (other.step, other.seconds, other.best, other.logged_seconds) == (3, 0.75, 0.75, 0.5)
    assert torch.equal(other.totals, state.totals)
    randomness = torch.get_rng_state()
    advance(state)
    torch.set_rng_state(randomness)
    advance(other)
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name


def test_every_process_goes_on_with_its_own_random_numbers(tmp_path, monkeypatch):
    """Of three, which saved together; a fourth takes those of one of them."""
    state, states, expected = make_state(), [], []
    for seed in (3, 4, 5):
        torch.manual_seed(seed)
        states.append(torch.get_rng_state())
        expected.append(torch.rand(3))
    monkeypatch.setattr(distributed, "gather_rows", lambda _: torch.stack(states))
    path = save_checkpoint(tmp_path, state, {}, keep=1)
    assert len({tuple(numbers.tolist()) for numbers in expected}) == 3
    for rank, numbers in enumerate([*expected, expected[0]]):
        monkeypatch.setattr(distributed, "process_rank", lambda rank=rank: rank)
        restore_state(path, state)
        assert torch.equal(torch.rand(3), numbers), rank


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_randomness_of_a_gpu_is_restored_too(tmp_path):
    state = make_state()
    state.totals = state.totals.cuda()
    path = save_checkpoint(tmp_path, state, {}, keep=1)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    restore_state(path, state)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def full_disk(error):
    """Torch says so in one way or the other."""

    def harm(_state, monkeypatch):
        monkeypatch.setattr(torch, "save", Mock(side_effect=error))

    return harm


def weight_of(value):
    def harm(state, _monkeypatch):
        with torch.no_grad():
            state.model[2].weight[1, 2] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (full_disk(OSError("no space")), "step-00000001: no space; earlier checkpoints stay"),
        (full_disk(RuntimeError("no space\nframe #0")), "no space; earlier checkpoints stay"),
        (weight_of(float("nan")), r"2\.weight is not finite at step 1, which is not saved"),
        (weight_of(float("inf")), r"2\.weight is not finite at step 1, which is not saved"),
    ],
)
def test_what_cannot_be_saved_leaves_what_there_was(tmp_path, monkeypatch, harm, words):
    state = make_state()
    before = save_checkpoint(tmp_path, state, {}, keep=2)
    advance(state)
    harm(state, monkeypatch)
    with pytest.raises(RunError, match=words):
        save_checkpoint(tmp_path, state, {}, keep=2)
    assert list(tmp_path.iterdir()) == [before]


def test_a_removal_that_is_cut_short_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    state = make_state()
    for state.step in (1, 2):
        save_checkpoint(tmp_path, state, {}, keep=2)
    state.step = 3
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_checkpoint(tmp_path, state, {}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000003"]
    (tmp_path / "best").mkdir()
    for state.step in (9, 4):  # A later one goes: training went on from an earlier one.
        save_checkpoint(tmp_path, state, {}, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best", "step-00000003", "step-00000004"]


FORGED = {
    "manifest null": (MANIFEST, lambda _: "null", False),
    "manifest a list": (MANIFEST, lambda _: "[]", False),
    "manifest deep": (MANIFEST, lambda _: "[" * 100_000, False),
    "no optimiser": (STATE, lambda rest: rest.pop("optimizer") and rest, True),
    "random numbers a text": (STATE, lambda rest: rest | {"random": "x"}, True),
    "step a text": (STATE, lambda rest: rest | {"step": "x"}, True),
    "a list": (STATE, lambda _: [1], True),
    "no weights": (WEIGHTS, lambda _: "{}", True),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused_or_passed_over(tmp_path, name):
    """Its seals are those of its files."""
    state = make_state()
    path = save_checkpoint(tmp_path, state, {}, keep=1)
    file, forge, sealed = FORGED[name]
    if file == STATE:
        torch.save(forge(torch.load(path / file)), path / file)
    else:
        (path / file).write_text(forge(None))
    if not sealed:
        assert "manifest.json is missing or damaged" in find_damage(path)
        return
    seals = {name: checkpoint._seal_of(path / name) for name in (WEIGHTS, STATE)}
    write_json(path / MANIFEST, seals)
    with pytest.raises(RunError, match=r"state.pt cannot be restored|holds no weights"):
        restore_state(newest_checkpoint(tmp_path), state)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [WEIGHTS, STATE, MANIFEST])
@pytest.mark.parametrize("harm", [truncate, flip_byte, lambda path: path.unlink()])
def test_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, caplog, name, harm):
    state = make_state()
    for _ in range(2):
        advance(state)
        save_checkpoint(tmp_path, state, {}, keep=2)
    harm(tmp_path / "step-00000002" / name)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert newest_checkpoint(tmp_path) == tmp_path / "step-00000001"
    (warning,) = caplog.messages
    assert str(tmp_path / "step-00000002") in warning
    assert "the checkpoint before it is used" in warning


def test_a_digest_is_of_the_weights_alone(tmp_path):
    """safetensors writes the texts of a header in any order, here of 6! orders."""
    texts = {str(i): "text" for i in range(6)}
    paths = [save_checkpoint(tmp_path / str(i), make_state(), texts, keep=2) for i in range(9)]
    same = [weights_digest(path) for path in paths]
    assert len(set(same)) == 1
    other = make_state()
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1e-3
    assert weights_digest(save_checkpoint(tmp_path / "other", other, texts, keep=2)) != same[0]
