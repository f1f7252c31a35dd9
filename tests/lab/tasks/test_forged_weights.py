"""An exported file forged in every field: it is a backbone, or one line says why not."""

import re
from dataclasses import replace

import pytest
import torch
from forgeries import cut_contents, forged_headers, forged_tensors
from tiny_images import CLASSES, TINY, tiny_world

from neural_similarity.lab import cli, session
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.backbone import Backbone

PLAIN = replace(TINY, similarity=None, width=0.05, steps=1, drops=())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    with tiny_world():
        session.train(PLAIN, out=folder / "run", device="cpu")
        words = ["export", str(folder / "run"), "--format", "safetensors"]
        assert cli.main([*words, "--out", str(folder / "whole.safetensors")]) == 0
    return (folder / "whole.safetensors").read_bytes()


@pytest.fixture
def load_forged(tmp_path):
    """The network with a file's weights, or the error."""
    file, sizes = tmp_path / "forged.safetensors", {"in_channels": 1, "image_size": 8}
    backbone = Backbone(str(file), classifier="kept")

    def load(content):
        file.write_bytes(content)
        try:
            return backbone.load_pretrained(PLAIN, CLASSES, **sizes).model
        except (RunError, ValueError) as error:
            told = str(error)
            assert str(file) in told
            assert len(told) < 1000
            return told

    return load


def test_the_whole_file_loads(exported, load_forged):
    assert isinstance(load_forged(exported), torch.nn.Module)


@pytest.mark.long
def test_every_value_of_the_header(exported, load_forged):
    """Those that change nothing, as in the metadata, leave the network as it is."""
    whole = load_forged(exported).state_dict()
    told = [load_forged(content) for content in forged_headers(exported)]
    networks = [each for each in told if not isinstance(each, str)]
    assert len(networks) < len(told) / 10
    for network in networks:
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor, whole[name])


def test_every_cut(exported, load_forged):
    assert all(isinstance(load_forged(content), str) for content in cut_contents(exported))


@pytest.mark.long
def test_every_tensor(exported, load_forged):
    """Torch counts batches anew where their number is missing, and takes lists of one."""
    fitting = re.compile(
        r"num_batches_tracked (missing|longer|deeper|one number|of type .*(int|bool))"
    )
    for what, content in forged_tensors(exported):
        assert fitting.search(what) or isinstance(load_forged(content), str), what
