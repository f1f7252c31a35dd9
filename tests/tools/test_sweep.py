"""One network of each family of timm: converted, trained, saved, folded and exported."""

import json

import pytest
import torch

import neural_similarity as ns

timm = pytest.importorskip("timm")
sweep = pytest.importorskip("sweep")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", timm.list_modules())
def test_a_network_of_every_family(family):
    row = sweep.try_network(sweep.smallest_network(family))
    assert row["error"] == ""
    assert row["converted"] > 0


class Masked(torch.nn.Conv2d):
    """PixelCNN's: the taps before the middle, written at every call."""

    def forward(self, x):
        self.weight.data.flatten(2)[..., self.weight[0, 0].numel() // 2 :] = 0
        return super().forward(x)


def test_layers_that_write_their_kernel_train_and_fold():
    backbone = torch.nn.Sequential(Masked(1, 8, 7, padding=3), torch.nn.ReLU(), Masked(8, 2, 5))
    model = ns.freeze_backbone(ns.convert(backbone.eval(), "static-full"), train=())
    x = torch.randn(2, 1, 12, 12)
    assert sweep.train_steps(model, x) == 2
    folded = ns.fold(model)
    for _ in range(2):
        assert sweep.relative_difference(model, folded, x) < sweep.TOLERANCE
    assert sweep.relative_difference(backbone, folded, x) > sweep.TOLERANCE


def test_the_page_shows_the_record():
    rows = json.loads(sweep.RECORD.read_text("utf-8"))["rows"]
    assert set(rows) <= set(timm.list_modules())
    assert sweep.table_of(rows) in sweep.PAGE.read_text("utf-8")
    assert not [family for family, row in rows.items() if row["error"]]
