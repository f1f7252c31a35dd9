"""One network of each family of timm: converted, trained, saved, folded and exported."""

import json

import pytest

timm = pytest.importorskip("timm")
sweep = pytest.importorskip("sweep")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", timm.list_modules())
def test_a_network_of_every_family(family):
    row = sweep.try_network(sweep.smallest_network(family))
    assert row["error"] == ""
    assert row["converted"] > 0


def test_the_page_shows_the_record():
    rows = json.loads(sweep.RECORD.read_text("utf-8"))["rows"]
    assert set(rows) <= set(timm.list_modules())
    assert sweep.table_of(rows) in sweep.PAGE.read_text("utf-8")
    assert not [family for family, row in rows.items() if row["error"]]
