"""Layers of other authors are imported by path, checked image by image, and shown with errors."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks import authors, networks, rivals
from benchmarks.authors import RIVALS, Annealed, Rival, module_at
from benchmarks.rivals import RivalOptions, with_rival
from neural_similarity.lab import session
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.train.run import build_network
from neural_similarity.models.building import ConvBlock

RIGHT = """
from torch import nn
from mmcv.cnn import CONV_LAYERS, ConvModule

@CONV_LAYERS.register_module()
class ODConv2d(nn.Conv2d):
    def __init__(self, *sizes, kernel_num, **options):
        super().__init__(*sizes, **options)
"""
WRONG = RIGHT + "    def forward(self, x):\n        return super().forward(x + x.mean(0))\n"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A folder for clones, of which one rival alone is looked for."""
    monkeypatch.setattr(rivals, "RIVALS", {"odconv-1": RIVALS["odconv-1"]})
    monkeypatch.setattr(rivals, "SHAPES", ((4, 4),))
    monkeypatch.setattr(rivals, "LAYERS", {})
    monkeypatch.setattr(rivals, "OURS", ("cnn",))
    monkeypatch.setattr(rivals, "build_network", partial(build_network, width=0.1))
    monkeypatch.setattr(networks, "CHECKED", 2)
    return tmp_path


def clone(folder, text):
    path = folder / "ODConv" / "modules" / "odconv.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def options(code, **changes):
    found = RivalOptions(code=code, runs=code / "runs", device="cpu", dtype="fp32", quick=True)
    return replace(found, rounds=3, batch=(2,), **changes)


def rows_of(code, **changes):
    return [row for row in rivals.rivals(options(code, **changes)) if row.name == "odconv-1"]


@pytest.mark.long
def test_layers_of_a_clone_are_timed_alone_and_in_the_network(code):
    clone(code, RIGHT)
    layer, network = rows_of(code)
    assert (layer.group["what"], layer.problem) == ("one layer", None)
    assert network.group["what"].startswith("updates of CNN-9")
    assert layer.times.keys() == {"forward", "forward + backward"}
    assert network.times.keys() == {"step"}
    assert "test_error" not in network.costs


def test_a_layer_that_mixes_images_has_no_times(code):
    clone(code, WRONG)
    assert all(row.wrong and not row.times for row in rows_of(code))


def test_what_is_absent_is_told_and_not_looked_for_in_the_network(code):
    (row,) = rows_of(code)
    path = code / "ODConv" / "modules" / "odconv.py"
    assert row.problem == f"not run: `code` must hold odconv.py at {path}"
    assert not row.wrong


@pytest.mark.long
def test_trained_networks_have_their_errors_and_are_trained_once(code, monkeypatch):
    clone(code, RIGHT)
    trained = []

    def train(recipe, *, out, **_):
        trained.append((recipe.model, recipe.seed, recipe.precision))
        out.mkdir(parents=True)
        (out / "summary.json").write_text(json.dumps({"test_error_percent": 12.5}))

    monkeypatch.setattr(session, "train", train)
    monkeypatch.setattr(session, "resume", lambda *_, **__: None)
    for _ in range(2):
        *_, network = rows_of(code, train=("odconv-1",))
        assert network.costs["test_error"] == 12.5
    assert trained == [("cnn9_odconv-1", 1, "bf16")]


@pytest.mark.long
def test_a_training_that_was_interrupted_goes_on(code, monkeypatch):
    clone(code, RIGHT)
    (code / "runs" / "odconv-1-0.015625").mkdir(parents=True)
    resumed = []
    monkeypatch.setattr(session, "resume", lambda path, **_: resumed.append(path.name))
    rows_of(code, train=("odconv-1",))
    assert resumed == ["odconv-1-0.015625"]


def test_names_to_train_are_known(code):
    with pytest.raises(UsageError, match="no train is named 'odconv'; did you mean 'odconv-1'"):
        rows_of(code, train=("odconv",))


def test_stand_ins_for_mmcv_are_its_blocks_and_do_not_stay(tmp_path):
    module = module_at(clone(tmp_path, RIGHT))
    assert "mmcv" not in sys.modules
    block = module.ConvModule(4, 2, 1, norm_cfg={"type": "BN"}, act_cfg={"type": "ReLU"})
    assert [type(part) for part in block] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    (alone,) = module.ConvModule(4, 2, 1)
    assert (block[0].bias, alone.bias.shape) == (None, (2,))
    with pytest.raises(ValueError, match="no stand-in for mmcv's ConvModule"):
        module.ConvModule(4, 2, 1, norm_cfg={"type": "GN"})


def test_temperatures_fall_in_the_first_updates_alone(monkeypatch):
    seen = []

    class Layer(nn.Identity):
        update_temperature = seen.append

    monkeypatch.setattr(authors, "WARM_UP", 2)
    layer = Annealed(Layer(), 30, 1)
    for training in (True, False, True, True, True):
        layer.train(training)(torch.ones(1))
    assert seen == [30, 15.5, 1]
    again = Annealed(Layer(), 30, 1)
    again.load_state_dict(layer.state_dict())
    again.eval()(torch.ones(1))
    assert seen[3:] == [1]


def test_the_first_convolution_of_the_network_stays(tmp_path):
    asked = []

    def build(widths):
        asked.extend(widths)
        return [nn.Conv2d(*pair, 3, padding=1) for pair in widths]

    network = with_rival(Rival(build), tmp_path, 10)
    first, *others = [block[0] for block in network if isinstance(block, ConvBlock)]
    assert (first.in_channels, first.bias) == (3, None)
    assert asked == [(layer.in_channels, layer.out_channels) for layer in others]
    assert all(layer.bias is not None for layer in others)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
