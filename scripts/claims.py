"""Write docs/claims.md from docs/claims.toml, the records in results/ and those of `nsim theory`.

`python scripts/claims.py` writes the page; a test runs it and compares.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from neural_similarity.lab.paper import read_records
from neural_similarity.lab.paper.markdown import interval_text
from neural_similarity.lab.paper.records import Record
from neural_similarity.lab.paper.report import by_number, compare_records
from neural_similarity.lab.train.statistics import Interval, by_task

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
HEAD = ("", "where", "the paper", "", "ours", "command")


def page() -> str:
    """The whole page."""
    with (ROOT / "docs/claims.toml").open("rb") as file:
        content = tomllib.load(file)
    claims = content["claim"]
    rows = [_row(number, claim) for number, claim in enumerate(claims, 1)]
    counts = Counter(row[3].strip("*") for row in rows)
    intervals = sum(row[4].count("[") for row in rows)
    parts = [content["head"].strip(), content["rule"].strip().format(intervals=intervals)]
    parts.append("; ".join(f"{count} {status}" for status, count in sorted(counts.items())) + ".")
    for section in dict.fromkeys(claim["section"] for claim in claims):
        lines = [HEAD, ("---",) * len(HEAD)]
        lines += [r for r, claim in zip(rows, claims, strict=True) if claim["section"] == section]
        parts += [f"## {section}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _row(number: int, claim: dict[str, Any]) -> tuple[str, ...]:
    status, found = claim.get("status", ""), ""
    if "compare" in claim:
        status, found = _compare(claim["compare"])
    told = re.sub(r"\{([^}]+)\}", lambda match: _figure(match[1]), claim.get("note", ""))
    ours = "; ".join(part for part in (found, told) if part)
    command = f"`{claim['command']}`" if "command" in claim else ""
    return str(number), claim["where"], claim["says"], f"**{status}**", ours, command


def _compare(text: str) -> tuple[str, str]:
    """Status and figures of "FIRST < SECOND @ BUDGET [CLASSES]", what the paper says of the two."""
    first, sign, second, _, budget, *classes = text.split()
    if classes:
        kind, seeds, (images, by_seeds) = "task", *_on_tasks(first, second, float(budget), *classes)
    else:
        kind, seeds, (images, by_seeds) = "image", *_on_images(first, second, float(budget), sign)
    if images is None:
        return "untested", ""
    wanted = 1 if sign == ">" else -1
    verdicts = [_verdict(each, wanted) for each in (images, by_seeds) if each]
    status = verdicts[0]
    if status != "unclear" and (len(verdicts) == 1 or verdicts[1] != status):
        status += f" by {kind} only"
    found = [f"{interval_text(images)} by {kind}"]
    found += [f"{interval_text(by_seeds)} by seed"] if by_seeds else []
    share = "" if classes else f", budget {budget}"
    return status, f"{', '.join(found)} (n = {seeds}{share})"


def _verdict(found: Interval, wanted: int) -> str:
    if not found.excludes_zero:
        return "unclear"
    return "holds" if found.mean * wanted > 0 else "fails"


def _on_images(
    first: str, second: str, budget: float, sign: str
) -> tuple[int, tuple[Interval | None, Interval | None]]:
    ours, theirs = (by_number(read_records(RESULTS, name, budget)) for name in (first, second))
    found = compare_records(ours, theirs, "accuracy" if sign == ">" else "error")
    return len(found.common), (found.by_image, found.by_seed)


def _on_tasks(
    first: str, second: str, budget: float, classes: str
) -> tuple[int, tuple[Interval | None, None]]:
    ours, theirs = (dict(_evaluations(name, budget, classes)) for name in (first, second))
    seeds = ours.keys() & theirs.keys()
    if not seeds:
        return 0, (None, None)
    means = (
        sum(100 * side[seed].correct.double() / 75 for seed in seeds) / len(seeds)
        for side in (ours, theirs)
    )
    first_mean, second_mean = means
    return len(seeds), (by_task(first_mean - second_mean), None)


def _evaluations(name: str, budget: float, classes: str) -> Iterator[tuple[int, Record]]:
    """The evaluations of RECIPE/METHOD on test tasks of 5 ways, 5 shots and 15 queries, by seed."""
    recipe, method = name.split("/")
    for record in read_records(RESULTS, recipe, budget):
        if record.stem.startswith(f"{method}.{classes}.5w5s15q.test-2000-0."):
            yield record.seed, record


def _figure(text: str) -> str:
    """What stands for {KIND WORDS} in a note."""
    kind, *words = text.split()
    if kind == "ratio":  # of a fact in two recipes' summaries
        fact, first, second, budget = words
        one, other = (
            read_records(RESULTS, name, float(budget))[0].summary[fact] for name in (first, second)
        )
        return f"{one / other:.2f}"
    if kind == "compare":
        return _compare(" ".join(words))[1]
    numbers = _numbers(_theory(words[0]))
    value = {"max": max, "min": min, "mean": lambda n: sum(n) / len(n)}[kind](numbers)
    return f"{value:.3g}"


@cache
def _record(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"theory/{name}.json").read_text("utf-8"))["result"]


def _theory(path: str) -> Any:
    """What lies at NAME/KEY/KEY of the records of `nsim theory`; keys of lists are positions."""
    name, *keys = path.split("/")
    value = _record(name)
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _numbers(value: Any) -> list[float]:
    return [n for each in value for n in _numbers(each)] if isinstance(value, list) else [value]


if __name__ == "__main__":
    (ROOT / "docs/claims.md").write_text(page(), "utf-8")
