"""Write docs/evidence/claims.md from claims.toml there, results/ and records of `nsim theory`.

`python scripts/claims.py` writes the page; a test runs it and compares.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from neural_similarity_paper.statistics import by_image
from neural_similarity_paper.tables import TABLES, make_report, read_records
from neural_similarity_paper.tables.markdown import interval_text, markdown_rows
from neural_similarity_paper.tables.records import Record
from neural_similarity_paper.tables.report import compare_records, records_by_seed
from neural_similarity_paper.tables.verdicts import Comparison, Verdict, judge_comparisons

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
HEAD = ("", "where", "the paper", "", "ours", "p", "command")
NEGLIGIBLE = 0.01
"""A smaller share of a number makes no difference to it."""
CLASSES = {"cifar10": 10, "cifar100": 100}


class Found(NamedTuple):
    """A comparison of records, and what it is of."""

    comparison: Comparison
    sides: tuple[Sequence[Record], Sequence[Record]]
    family: Hashable
    """Whose comparisons Holm's adjustment counts."""

    @property
    def text(self) -> str:
        """The intervals, and what they are of."""
        one = self.comparison.difference
        ways = {self.comparison.unit: one.by_image, "seed": one.by_seed, "both": one.by_both}
        found = [f"{interval_text(value)} by {way}" for way, value in ways.items() if value]
        facts = [f"n = {len(one.common)}", f"budget {self.comparison.budget:g}", *self.precisions]
        return f"{', '.join(found)} ({', '.join(facts)})" if found else ""

    @property
    def precisions(self) -> list[str]:
        """The precisions of both sides, where they are not the same."""
        common = self.comparison.difference.common
        sides = [
            " and ".join(sorted({each.precision for each in side if each.seed in common}))
            for side in self.sides
        ]
        return [] if sides[0] == sides[1] and " and " not in sides[0] else [" against ".join(sides)]

    @property
    def lost(self) -> str:
        """How many runs failed, if any did."""
        runs = [record for side in self.sides for record in side]
        count = sum(record.failed for record in runs)
        return f"{count} of {len(runs)} failed" if count else ""


def claims_page() -> str:
    """The whole page."""
    with (ROOT / "docs/evidence/claims.toml").open("rb") as file:
        content = tomllib.load(file)
    claims = content["claim"]
    rows = judged_rows(claims)
    counts = Counter(row[3].strip("*") for row in rows)
    ran = sum(
        "compare" in claim and row[3] != "**not run**"
        for row, claim in zip(rows, claims, strict=True)
    )
    intervals = sum(row[4].count("[") for row in rows)
    rule = content["rule"].strip().format(intervals=intervals, comparisons=ran)
    parts = [content["head"].strip(), rule]
    parts.append("; ".join(f"{count} {status}" for status, count in sorted(counts.items())) + ".")
    for section in dict.fromkeys(claim["section"] for claim in claims):
        lines = [r for r, claim in zip(rows, claims, strict=True) if claim["section"] == section]
        parts += [f"## {section}", markdown_rows(HEAD, *lines)]
    return "\n\n".join(parts) + "\n"


def judged_rows(claims: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of all claims, whose comparisons are judged together."""
    compared = [claim for claim in claims if "compare" in claim]
    found = [compare_runs(claim["compare"], table_of(claim)) for claim in compared]
    judged = {
        id(claim): pair for claim, *pair in zip(compared, found, judge_found(found), strict=True)
    }
    return [
        _row(number, claim, *judged.get(id(claim), (None, (claim.get("status", ""), None))))
        for number, claim in enumerate(claims, 1)
    ]


def judge_found(found: Sequence[Found]) -> list[tuple[str, Verdict]]:
    """What comparisons of one page say; that a run failed comes before any difference."""
    verdicts = judge_comparisons([one.comparison for one in found], [one.family for one in found])
    return [
        (one.lost or verdict.status, verdict) for one, verdict in zip(found, verdicts, strict=True)
    ]


def table_of(claim: dict[str, Any]) -> str:
    """The table that a claim's command is of."""
    words = claim["command"].split()
    return words[2] if words[:2] in (["nsim", "table"], ["nsim", "reproduce"]) else ""


def _row(
    number: int, claim: dict[str, Any], found: Found | None, judged: tuple[str, Verdict | None]
) -> tuple[str, ...]:
    status, verdict = judged
    shown = found.text if found else ""
    for key, derive in {"chance": _chance, "interval": _interval}.items():
        if key in claim:
            status, shown = derive(claim[key])
    note = re.sub(r"\{([^}]+)\}", lambda match: _figure(match[1]), claim.get("note", ""))
    ours = "; ".join(part for part in (shown, note) if part)
    command = f"`{claim['command']}`" if "command" in claim else ""
    p_values = p_text(verdict, found.comparison.unit) if found and verdict else ""
    return str(number), claim["where"], claim["says"], f"**{status}**", ours, p_values, command


def adaptation_tables(text: str) -> dict[str, str]:
    """Every table of comparisons in results-adaptation.md, and what the records make of it.

    A row begins with two recipes; that of the first is said to be ahead. Holm's adjustment counts
    the rows of the table.
    """
    found = re.findall(r"(?:^\| `[\w-]+` \| `[\w-]+` \|.*\n)+", text, re.M)
    pairs = [re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \|", block, re.M) for block in found]
    shown = [(row.recipe, name) for name in reversed(TABLES) for row in TABLES[name].all_rows]
    tables = {recipe: name for recipe, name in shown if name.startswith("adapt")}
    compared = [
        compare_runs(f"{this} > {beside} @ 1", tables[this])._replace(family=at)
        for at, rows in enumerate(pairs)
        for this, beside in rows
    ]
    rows = iter(
        _adaptation_row(one, *pair, *judged)
        for one, pair, judged in zip(
            compared, (pair for rows in pairs for pair in rows), judge_found(compared), strict=True
        )
    )
    return {block: "".join(islice(rows, len(own))) for block, own in zip(found, pairs, strict=True)}


def _adaptation_row(found: Found, this: str, beside: str, status: str, verdict: Verdict) -> str:
    one = found.comparison.difference
    intervals = (one.by_image, one.by_seed, one.by_both)
    cells = (status, *(interval_text(x) if x else "" for x in intervals), p_text(verdict, "image"))
    return f"| `{this}` | `{beside}` | {' | '.join(cells)} |\n"


def p_text(verdict: Verdict, unit: str) -> str:
    """The p-values of a verdict: over seeds, or by image or task where that decides."""
    parts = {"over seeds": verdict.seeds}
    if verdict.seeds is None or "only" in verdict.status:
        parts[f"by {unit}"] = verdict.images
    texts = {
        way: [f"{p:.2g}" if p >= 1e-4 else "< 1e-4" for p in (found.p, found.holm, found.fdr)]
        for way, found in parts.items()
        if found
    }
    return "; ".join(f"{p} (Holm {holm}, BH {fdr}) {way}" for way, (p, holm, fdr) in texts.items())


def compare_runs(text: str, table: str = "") -> Found:
    """The comparison "FIRST < SECOND @ BUDGET [CLASSES]", what the paper says of the two.

    BUDGET may be two, A/B, and a side ONE:OTHER is what one recipe has more than another.
    """
    first, sign, second, _, budget, *classes = text.split()
    shares = [float(share) for share in budget.split("/")]
    metric = "accuracy" if sign == ">" else "error"
    sides = [
        tuple(_runs(name, share, *classes))
        for name, share in zip((first, second), (shares[0], shares[-1]), strict=True)
    ]
    share = min(shares)
    difference = compare_records(*sides, metric, _scatter(table, share, first, second))
    comparison = Comparison(
        difference=difference,
        sign=1 if sign == ">" else -1,
        budget=share,
        unit="task" if classes else "image",
    )
    return Found(comparison, (sides[0], sides[1]), table)


def _runs(name: str, budget: float, classes: str = "") -> list[Record]:
    """Records of a recipe; or of RECIPE/METHOD on test tasks of 5 ways, 5 shots, 15 queries."""
    if ":" in name:
        more, less = (records_by_seed(_runs(one, budget, classes)) for one in name.split(":"))
        return [
            replace(more[seed], accuracies=more[seed].accuracies - less[seed].accuracies)
            for seed in more.keys() & less.keys()
        ]
    recipe, _, method = name.partition("/")
    records = read_records(RESULTS, recipe, budget)
    stem = f"{method}.{classes}.5w5s15q.test-2000-0."
    return [each for each in records if not classes or each.stem.startswith(stem)]


@cache
def _scatter(table: str, budget: float, *names: str) -> tuple[float, int] | None:
    """The pooled scatter of the panel that has both recipes."""
    for panel in _panels(table, budget):
        if set(names) <= {line.row.recipe for line in panel.lines}:
            return panel.scatter
    return None


@cache
def _panels(table: str, budget: float) -> Sequence[Any]:
    if table not in TABLES or TABLES[table].mixed:
        return ()
    return make_report(TABLES[table], budget=budget, results=RESULTS).panels


def _chance(text: str) -> tuple[str, str]:
    """Status and figures of "[not] RECIPE @ BUDGET": whether runs stay at chance; they are counted.

    A run does where the interval of its accuracy over test images includes one class in so many.
    """
    *negation, name, _, budget = text.split()
    records = read_records(RESULTS, name, float(budget))
    accuracies = [by_image(record.accuracies.tolist()) for record in records]
    at_chance = sum(one.low <= 1 / CLASSES[name.partition("-")[0]] for one in accuracies)
    wanted = 0 if negation else len(records)
    status = "holds" if at_chance == wanted else "fails"
    errors = ", ".join(f"{100 * (1 - one.mean):.2f} %" for one in accuracies)
    runs = f"{at_chance} of {len(records)} run{'s' if len(records) > 1 else ''} at chance"
    return status, f"{runs}, error {errors} (budget {budget})"


def _interval(text: str) -> tuple[str, str]:
    """Status and figures of "DIFFERENCE / SIZE" among a theory's numbers: whether it is below 0."""
    path, _, size = text.split()
    found = _theory(path)
    numbers = _numbers(_theory(size))
    status = "holds" if found["high"] < 0 else "fails" if found["low"] > 0 else "unclear"
    if status != "unclear" and abs(found["mean"]) < NEGLIGIBLE * sum(numbers) / len(numbers):
        status += ", negligibly"
    shown = "{mean:+.3f} [{low:+.3f}, {high:+.3f}] by seed".format(**found)
    return status, shown.replace("-", "−")


def _figure(text: str) -> str:
    """What {KIND WORDS} in a note stands for."""
    kind, *words = text.split()
    if kind == "ratio":  # of a fact in two recipes' summaries
        fact, first, second, budget = words
        one, other = (
            read_records(RESULTS, name, float(budget))[0].summary[fact] for name in (first, second)
        )
        return f"{one / other:.2f}"
    if kind == "compare":
        return compare_runs(" ".join(words)).text
    if kind == "chance":
        return _chance(" ".join(words))[1]
    numbers = _numbers(_theory(words[0]))
    value = {"max": max, "min": min, "mean": lambda n: sum(n) / len(n)}[kind](numbers)
    return f"{value:.3g}"


def _theory(path: str) -> Any:
    """What lies at NAME/KEY/KEY of the records of `nsim theory`; keys of lists are positions."""
    name, *keys = path.split("/")
    value = json.loads((RESULTS / f"theory/{name}.json").read_text("utf-8"))["result"]
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _numbers(value: Any) -> list[float]:
    return [n for each in value for n in _numbers(each)] if isinstance(value, list) else [value]


if __name__ == "__main__":
    (ROOT / "docs/evidence/claims.md").write_text(claims_page(), "utf-8")
