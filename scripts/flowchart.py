"""A Markdown fence: a `mermaid` flowchart becomes an SVG picture in the page.

GitHub draws the same text by itself; the theme would load a script from another host for it. What
is understood are `a --> b`, and `subgraph NAME ... end`: groups stand below each other, in each of
them a node above all that it leads to. An arrow that follows from others is left out.
"""

import re
from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

Edge = tuple[str, str]
WIDTH, ROW, HEIGHT, MARGIN = 420, 58, 30, 16
TEXT = re.compile(r"^\s*(?:subgraph (?P<group>\w+)|(?P<end>end)|(?P<a>\w+) --> (?P<b>\w+))\s*$")
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
)


class Box(NamedTuple):
    """A node or a group, by its middle and its size."""

    name: str
    x: float
    y: float
    width: float
    height: float


class Picture(NamedTuple):
    """Everything in its place."""

    groups: list[Box]
    nodes: list[Box]
    arrows: list[list[tuple[float, float]]]
    height: float


def parse(text: str) -> dict[str, list[Edge]]:
    """Arrows of every group; those outside of groups are of "", the first."""
    found: dict[str, list[Edge]] = {"": []}
    group = ""
    for line in text.strip().splitlines()[1:]:
        if not (match := TEXT.match(line)):
            raise ValueError(f"a line must be `a --> b`, `subgraph NAME` or `end`, got {line!r}")
        if match["a"]:
            found[group].append((match["a"], match["b"]))
        else:
            group = match["group"] or ""
            found.setdefault(group, [])
    return found


def reduced(edges: Sequence[Edge]) -> list[Edge]:
    """The edges that follow from no others."""

    def leads(start: str, end: str) -> bool:
        return any(a == start and (b == end or leads(b, end)) for a, b in edges)

    return [(a, b) for a, b in edges if not any(x == a and leads(y, b) for x, y in edges)]


def levels(edges: Iterable[Edge]) -> dict[str, int]:
    """How many nodes stand below each, on the longest way down."""
    below: dict[str, list[str]] = {}
    for a, b in edges:
        below.setdefault(a, []).append(b)
        below.setdefault(b, [])
    found: dict[str, int] = {}
    for node in TopologicalSorter(below).static_order():
        found[node] = 1 + max((found[other] for other in below[node]), default=-1)
    return {node: found[node] for node in below}  # as they come in the text


def ways(edges: Iterable[Edge], level: dict[str, int]) -> list[list[str]]:
    """The nodes that each edge passes, with an empty place in every row between its ends."""
    return [[a, *(f"{a} {b} {i}" for i in range(level[a] - 1, level[b], -1)), b] for a, b in edges]


def places(edges: list[Edge]) -> dict[str, tuple[float, int]]:
    """Where nodes and empty places stand: from 0 to 1, and the row from the top.

    A row is ordered by the middle of what leads to each, and evenly spread.
    """
    level = levels(edges)
    steps = [step for way in ways(edges, level) for step in pairwise(way)]
    for a, b in steps:
        level.setdefault(b, level[a] - 1)
    top, found = max(level.values()), {}
    for row in range(top + 1):
        order = {}
        for node in (node for node in level if level[node] == top - row):
            above = [found[a][0] for a, b in steps if b == node]
            order[node] = sum(above) / len(above) if above else 1
        for i, node in enumerate(sorted(order, key=order.__getitem__)):
            found[node] = ((i + 0.5) / len(order), row)
    return found


def layout(text: str) -> Picture:
    """Groups and single nodes below each other, in the order of their arrows."""
    parts = parse(text)
    outer = reduced(parts.pop(""))
    picture, tops, y = Picture([], [], [], 0), {}, float(MARGIN)
    level = levels(outer) if outer else dict.fromkeys(parts, 0)
    for name in sorted(level, key=lambda name: -level[name]):
        start = y
        if name in parts:
            y = _group(picture, reduced(parts[name]), y + 1.5 * MARGIN) + MARGIN
            middle = (start + y) / 2
            picture.groups.append(Box(name, WIDTH / 2, middle, WIDTH - 2, y - start))
        else:
            y += HEIGHT
            picture.nodes.append(Box(name, WIDTH / 2, y - HEIGHT / 2, _width(name), HEIGHT))
        tops[name], y = (start, y), y + 2 * MARGIN
    for a, b in outer:
        picture.arrows.append([(WIDTH / 2, tops[a][1]), (WIDTH / 2, tops[b][0])])
    return picture._replace(height=y - MARGIN)


def _group(picture: Picture, edges: list[Edge], y: float) -> float:
    """Add the nodes and arrows of a group below `y`, and return where it ends."""
    place = places(edges)
    middle = {n: (x * WIDTH, y + HEIGHT / 2 + row * ROW) for n, (x, row) in place.items()}
    level = levels(edges)
    picture.nodes.extend(Box(node, *middle[node], _width(node), HEIGHT) for node in level)
    for way in ways(edges, level):
        (first, a), *between, (last, b) = (middle[node] for node in way)
        picture.arrows.append([(first, a + HEIGHT / 2), *between, (last, b - HEIGHT / 2)])
    return max(box.y for box in picture.nodes) + HEIGHT / 2


def _width(name: str) -> float:
    return 20 + 7.5 * len(name)


def _rectangle(box: Box, kind: str) -> str:
    corner = f'x="{box.x - box.width / 2:g}" y="{box.y - box.height / 2:g}"'
    size = f'width="{box.width:g}" height="{box.height:g}"'
    return f'<rect class="{kind}" {corner} {size} rx="4"/>'


def svg(text: str) -> str:
    """The picture of a flowchart."""
    picture = layout(text)
    parts = [ARROW]
    for box in picture.groups:
        parts.append(_rectangle(box, "group"))
        left, top = box.x - box.width / 2 + 10, box.y - box.height / 2 + 18
        parts.append(f'<text class="group" x="{left:g}" y="{top:g}">{escape(box.name)}</text>')
    for points in picture.arrows:
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        parts.append(f'<polyline points="{way}" marker-end="url(#arrow)"/>')
    for box in picture.nodes:
        parts.append(_rectangle(box, "node"))
        parts.append(f'<text x="{box.x:g}" y="{box.y + 5:g}">{escape(box.name)}</text>')
    names = ", ".join(f"{a} to {b}" for edges in parse(text).values() for a, b in edges)
    head = f'<svg class="flowchart" role="img" viewBox="0 0 {WIDTH} {picture.height:g}"'
    return f'{head} aria-label="Arrows: {escape(names)}">{"".join(parts)}</svg>'


def fence(source: str, *_: Any, **__: Any) -> str:
    """What pymdownx.superfences calls."""
    return svg(source)
