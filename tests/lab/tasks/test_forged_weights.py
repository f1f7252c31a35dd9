"""An exported file forged in every tensor: it is a backbone, or one line says why not."""

import re
from dataclasses import replace

import pytest
from forgeries import forged_tensors
from tiny_images import CLASSES, TINY

from neural_similarity.lab import cli, session
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.backbone import Backbone

PLAIN = replace(TINY, similarity=None, width=0.05, steps=1, drops=())


@pytest.mark.long
@pytest.mark.usefixtures("tiny")
def test_every_tensor(tmp_path):
    """Torch counts batches anew where their number is missing, and takes lists of one."""
    session.train(PLAIN, out=tmp_path / "run", device="cpu")
    words = ["export", str(tmp_path / "run"), "--format", "safetensors"]
    file = tmp_path / "exported.safetensors"
    assert cli.main([*words, "--out", str(file)]) == 0
    backbone = Backbone(str(file), classifier="kept")

    def load():
        return backbone.load_pretrained(PLAIN, CLASSES, in_channels=1, image_size=8)

    fitting = re.compile(
        r"num_batches_tracked (missing|longer|deeper|one number|of type .*(int|bool))"
    )
    whole = file.read_bytes()
    load()
    for what, content in (*forged_tensors(whole), ("a cut", whole[:-1]), ("nothing", b"")):
        file.write_bytes(content)
        if not fitting.search(what):
            with pytest.raises((RunError, ValueError), match=re.escape(str(file))) as error:
                load()
            assert len(str(error.value)) < 1000, what
