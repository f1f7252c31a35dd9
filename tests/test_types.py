"""What a type checker says of programs that use the library."""

import subprocess
import sys
from typing import get_args

import pytest

import neural_similarity as ns

PROGRAM = """
import neural_similarity as ns

layer = ns.Conv2d(3, 4, 3, similarity="static-full")
print(layer.similarity.raw.detach(), layer.similarity.matrix().sum(), layer.fuse().out_channels)
net = ns.convert(ns.models.resnet20(), "static-full", where="layer3.*")
print(net.layer3[0].conv1.similarity.matrix(), ns.fold(net).layer3[0].conv1)
print(ns.Linear(3, 4, similarity=ns.Static(ns.Full())).fuse().out_features)
print(ns.LSTM(3, 4, similarity="static-full").fuse().hidden_size)
print(ns.Conv1d(3, 4, 3, similarity="static-full").fuse().stride)
"""
MISSPELT = """
ns.Conv2d(3, 4, 3, similarity="static-ful")
ns.convert(net, "static-ful")
ns.plan(net, "static-ful")
ns.models.resnet20(similarity="static-ful")
"""


def errors(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program)
    command = ["-m", "pyright", "--pythonpath", sys.executable, str(file)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if " - error: " in line], done


@pytest.mark.long
def test_pyright_takes_what_runs_and_finds_misspelt_names(tmp_path):
    found, done = errors(PROGRAM, tmp_path)
    assert "0 errors" in done.stdout, done.stdout
    found, _ = errors(PROGRAM + MISSPELT, tmp_path)
    assert len(found) == MISSPELT.count("static-ful")
    assert all("static-ful" in error for error in found)


def test_the_literal_has_every_name():
    assert get_args(ns.nn.SimilarityName) == tuple(ns.SIMILARITIES)
