"""A folder of the hub forged in every field: one error that says which, or a network."""

import json

import pytest
from forgeries import forged_tensors
from safetensors import SafetensorError

import neural_similarity as ns

pytest.importorskip("huggingface_hub")
VALUES = [
    None, True, 0, -1, 0.5, 2**70, float("nan"), "", "x", "\x1b[2J\x07\0", [], [1], {}, {"x": 1},
    "Static({[]:1})", "__import__('os').system('touch owned')", "(" * 300,
]  # fmt: skip
TEXTS = ["", "[" * 100_000, "{", '{"name": "cnn9"', "9" * 5000]
"""What is JSON, but no object, fails inside of huggingface_hub."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ns.hub.Network("cnn9", 3, "static-full", width=0.05).save_pretrained(tmp_path / "hub")
    return tmp_path / "hub"


def load(folder):
    return ns.hub.Network.from_pretrained(folder, local_files_only=True)


def refused(folder):
    """Whether it is refused, by an error of callers, the reader of files or torch."""
    try:
        load(folder)
    except (ValueError, TypeError, RuntimeError, OSError, SafetensorError):
        return True
    return False


def test_every_setting(folder):
    file = folder / "config.json"
    whole = json.loads(file.read_text())
    for name in whole:
        for value in VALUES:
            file.write_text(json.dumps(whole | {name: value}))
            assert refused(folder), (name, value)
    assert not (folder.parent / "owned").exists()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:10])
def test_every_text_in_place_of_the_settings(folder, text):
    (folder / "config.json").write_text(text)
    assert refused(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_every_tensor(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for what, forged in [*forged_tensors(content)][::3]:
        file.write_bytes(forged)
        cast = "complex" in what or "of type" in what  # by torch
        assert cast or refused(folder) or "num_batches_tracked" in what, what
