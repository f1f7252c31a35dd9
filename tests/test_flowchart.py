"""The picture that the site draws of a mermaid flowchart."""

import re
from itertools import combinations, pairwise
from pathlib import Path

import flowchart
import pytest
from test_architecture import LABORATORY, LIBRARY

ROOT = Path(__file__).parents[1]
SMALL = """flowchart TD
    top --> one
    top --> two
    one --> two
    subgraph one
    a --> b
    b --> c
    c --> d
    a --> e
    e --> d
    a --> d
    end
    subgraph two
    f --> g
    end
"""


def architecture():
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    (picture,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    return picture


def inside(box, x, y):
    return abs(x - box.x) < box.width / 2 - 1 and abs(y - box.y) < box.height / 2 - 1


@pytest.mark.parametrize("text", [SMALL, architecture()])
def test_boxes_lie_apart_and_arrows_lead_down_beside_them(text):
    picture = flowchart.layout(text)
    for box, other in combinations(picture.nodes, 2):
        apart = abs(box.x - other.x) >= (box.width + other.width) / 2
        assert apart or abs(box.y - other.y) >= box.height
    for arrow in picture.arrows:
        for (x, y), (x2, y2) in pairwise(arrow):
            assert y < y2
            steps = [i / 50 for i in range(51)]
            points = [(x + t * (x2 - x), y + t * (y2 - y)) for t in steps]
            assert not any(inside(box, *point) for box in picture.nodes for point in points)
    for box in picture.nodes + picture.groups:
        assert box.width / 2 <= box.x <= flowchart.WIDTH - box.width / 2
        assert box.y + box.height / 2 <= picture.height


def test_arrows_that_follow_from_others_are_left_out():
    edges = flowchart.parse(SMALL)["one"]
    assert flowchart.reduced(edges) == edges[:-1]
    assert len(flowchart.layout(SMALL).arrows) == 5 + 1 + 2


def test_arrows_join_the_boxes_of_their_names():
    picture = flowchart.layout(SMALL)
    ends = {(box.x, box.y - box.height / 2): box.name for box in picture.nodes}
    starts = {(box.x, box.y + box.height / 2): box.name for box in picture.nodes}
    drawn = {(starts.get(arrow[0]), ends.get(arrow[-1])) for arrow in picture.arrows}
    wanted = {("a", "b"), ("b", "c"), ("c", "d"), ("a", "e"), ("e", "d"), ("f", "g")}
    assert {pair for pair in drawn if None not in pair} == wanted


def test_the_picture_of_the_architecture_has_every_room_and_needs_no_script():
    text = flowchart.fence(architecture(), "mermaid", "flowchart", {}, None)
    shown = re.findall(r"<text[^>]*>(\w+)</text>", text)
    assert sorted(shown) == sorted((*LIBRARY, *LABORATORY, "lab", "library", "benchmarks"))
    assert not re.search("script|href|http", text)
    assert "class: mermaid" not in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_what_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="a line must be `a --> b`"):
        flowchart.parse("flowchart TD\n    a -->|text| b\n")
