"""One network of each family of timm: converted, trained, saved, folded and exported."""

import pytest

timm = pytest.importorskip("timm")
sweep, export_times = pytest.importorskip("sweep"), pytest.importorskip("export_times")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", timm.list_modules())
def test_a_network_of_every_family(family):
    row = sweep.try_network(sweep.smallest_network(family))
    assert row["error"] == ""
    assert row["converted"] > 0


def test_the_page_shows_the_record():
    rows = sweep.read_rows(sweep.RECORD)
    assert set(rows) <= set(timm.list_modules())
    assert sweep.table_of(rows) in sweep.PAGE.read_text("utf-8")
    assert not [family for family, row in rows.items() if row["error"]]


def test_an_export_takes_less_than_a_minute():
    rows = sweep.read_rows(export_times.RECORD)
    assert set(rows) == {*export_times.TF, *export_times.OTHERS}
    assert len(rows) == 30
    assert all(row["cpu"] < 60 for row in rows.values())
    assert export_times.table_of(rows) in sweep.PAGE.read_text("utf-8")
