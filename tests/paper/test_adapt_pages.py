"""Pages of the studies of adaptation are what their records say."""

from pathlib import Path

import pytest

from neural_similarity_paper.cli.studies import STUDIES
from neural_similarity_paper.studies.adapt_continual import CONTINUAL
from neural_similarity_paper.studies.adapt_map import MAP
from neural_similarity_paper.studies.adapt_report import is_ahead, study_to_markdown
from neural_similarity_paper.studies.adapt_unlabelled import KNOWN, KNOWN_CHANGES
from neural_similarity_paper.studies.trials import Trial, read_sheet
from neural_similarity_paper.tables.verdicts import LEVEL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/evidence/results-adaptation.md").read_text("utf-8")
SECTION = " ".join(PAGE.partition("## Beyond the map")[2].split())
RESULTS = ROOT / "results"


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_tables_are_what_the_command_writes(study):
    text = (ROOT / f"docs/evidence/table-{study.name}.md").read_text("utf-8")
    picture = f"table-{study.name}.png" if study is MAP else None
    assert text == study_to_markdown(study, RESULTS, picture)
    ran, cells = len(study.read(RESULTS)), len(study.cells)
    assert f"{ran} of {cells} cells have run" in text
    assert f"nsim reproduce {study.name} --data data" in PAGE
    told = f"{cells - ran} of {cells} cells" if ran < cells else "nothing"
    assert f"| `nsim reproduce {study.name} --data data` | {told} |" in PAGE


def test_no_record_has_a_rate_that_saw_a_scored_image():
    """Digests of scored images: those of sheets that choose rates are in no cell's."""
    for study in (MAP, *map(STUDIES.get, ("adapt-stream", "adapt-continual", "adapt-known"))):
        chosen, shown = set(), set()
        for path in (RESULTS / (study.folder or study.name)).glob("*.json"):
            runs = read_sheet(path).runs.values()
            (chosen if "rates" in path.stem else shown).update(run["scored"] for run in runs)
            assert {run["score_precision"] for run in runs} == {"fp32"}
        assert not chosen & shown


def test_in_how_many_cells_m_is_ahead():
    cells = MAP.read(RESULTS)
    tuned, default = (sum(is_ahead(MAP, cell, column) for cell in cells) for column in (0, 1))
    told = (
        f"tuned learning rates in {tuned} of {len(cells)} cells and with default ones in {default}"
    )
    assert told in " ".join(PAGE.split())


def test_what_the_page_says_of_known_changes():
    runs = read_sheet(KNOWN_CHANGES.sheet_path(RESULTS, KNOWN_CHANGES.cells[0].file)).runs
    score = {
        (change, way): 100 * runs[str(Trial(way, (1.0,), change, 0))]["accuracy"]
        for change in KNOWN
        for way in KNOWN_CHANGES.ways
    }
    full, undone, plain = (score["rotation-90", way] for way in ("full", "undone", "nothing"))
    assert f"is at {full:.2f} % at 90°, compared with {undone:.2f} % for images" in SECTION
    assert f"and {plain:.2f} % for the network without adaptation" in SECTION
    behind = [score[c, "nothing"] - score[c, "full"] for c in KNOWN if c != "rotation-90"]
    assert f"M is {min(behind):.0f} to {max(behind):.0f} points behind the network" in SECTION
    better = {change for change in KNOWN if score[change, "undone"] > score[change, "nothing"]}
    assert better == {"rotation-30", "rotation-45", "rotation-90", "zoom-1.33"}


def test_what_the_pages_say_of_tasks():
    """M is ahead of two, behind the others, and costs a point beside normalisation; all clearly."""
    (report,) = CONTINUAL.read(RESULTS)
    clear = {way: x.interval.mean for way, x in report.leads[0].items() if x.p_all < LEVEL}
    assert clear.keys() == CONTINUAL.ways.keys() - {"full"}
    assert {way for way in clear if clear[way] > 0} == {"head", "piggyback"}
    assert round(clear["full-norm"]) == -1
    text = (ROOT / "docs/explanation/adaptation.md").read_text("utf-8")
    sizes = {"full": " a\ntask", "norm": "", "ssf": "", "residual": ""}
    for way, more in sizes.items():
        size = CONTINUAL.size[1](way, report.runs[way][0]["trained"]).replace(",", "")
        assert f"({int(size) / 1000:.0f} kB{more})" in text
