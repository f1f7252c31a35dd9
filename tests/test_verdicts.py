"""Verdicts again from the bytes of records, without the laboratory's statistics."""

import base64
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from neural_similarity_paper.tables import TABLES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CLAIMS = tomllib.loads((ROOT / "docs/evidence/claims.toml").read_text("utf-8"))["claim"]
CELLS = [
    line[2:-2].split(" | ")
    for line in (ROOT / "docs/evidence/claims.md").read_text("utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]
COMPARED = [(row, claim) for row, claim in zip(CELLS, CLAIMS, strict=True) if "compare" in claim]


def answers(path):
    """Right or wrong of every image, or the share of each task's queries, of a record."""
    packed = np.frombuffer(
        base64.b64decode(json.loads(path.read_text())["correct"]["packed"]), "u1"
    )
    if "fewshot" in path.parts:
        return packed.view("<u2") / 75
    return np.unpackbits(packed)[:10_000].astype(float)


def runs(name, budget, classes=""):
    """The answers of a side by seed; of ONE:OTHER what one has more than the other."""
    if ":" in name:
        more, less = (runs(one, budget, classes) for one in name.split(":"))
        return {seed: more[seed] - less[seed] for seed in more.keys() & less.keys()}
    recipe, _, method = name.partition("/")
    folder = RESULTS / ("fewshot" if classes else "") / recipe / budget
    files = folder.glob(f"{method}.{classes}.5w5s15q.test-2000-0.*.json" if classes else "*.json")
    return {int(file.stem.rpartition(".")[2]): answers(file) for file in files}


def scatter(table, budget, *names):
    """Variance within recipes of the panel that has both, and its degrees of freedom."""
    for panel in TABLES[table].panels:
        recipes = {row.recipe for row in panel.rows}
        if recipes >= set(names) and table != "6":
            groups = [[100 * one.mean() for one in runs(name, budget).values()] for name in recipes]
            groups = [group for group in groups if len(group) > 1]
            freedom = sum(map(len, groups)) - len(groups)
            return sum(np.var(group) * len(group) for group in groups) / freedom, freedom
    return None


def p_values(claim):
    """By hand: by image, and the largest of all where there are three seeds."""
    first, _, second, _, budget, *classes = claim["compare"].split()
    budgets = budget.split("/")
    ours, theirs = runs(first, budgets[0], *classes), runs(second, budgets[-1], *classes)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None, None
    changes = 100 * np.array([ours[seed] - theirs[seed] for seed in common])
    n, m = changes.shape
    seeds, images = changes.mean(1), changes.mean(0)
    by_image = 2 * stats.norm.sf(abs(changes.mean()) / stats.sem(images))
    if n < 3:
        return None, by_image
    both = np.linalg.norm(changes - seeds[:, None] - images + changes.mean()) ** 2
    parts = stats.sem(seeds) ** 2, stats.sem(images) ** 2, both / (n - 1) / (m - 1) / n / m
    freedoms = n - 1, m - 1, (n - 1) * (m - 1)
    variance, freedom = parts[0] + parts[1] - parts[2], None
    if parts[0] > parts[2] and parts[1] > parts[2]:
        freedom = variance**2 / sum(v**2 / f for v, f in zip(parts, freedoms, strict=True))
    else:
        variance, freedom = max(zip(parts[:2], freedoms[:2], strict=True))
    found = [
        by_image,
        stats.ttest_1samp(seeds, 0).pvalue,
        2 * stats.t.sf(abs(changes.mean()) / variance**0.5, freedom),
    ]
    if pooled := scatter(claim["command"].split()[2], budget, first, second):
        means = [100 * np.mean([one.mean() for one in side.values()]) for side in (ours, theirs)]
        error = (pooled[0] * (1 / len(ours) + 1 / len(theirs))) ** 0.5
        found.append(2 * stats.t.sf(abs(means[0] - means[1]) / error, pooled[1]))
    return max(found), by_image


def closed(values):
    """Holm's p-values by their definition: the worst Bonferroni of all sets that hold one."""
    order = np.sort(values)
    return [
        max(min(1, (len(order) - at) * order[at]) for at in range(np.sum(order <= value)))
        for value in values
    ]


def test_every_verdict_follows_from_the_records():
    """From bytes to verdicts, without the laboratory: decoding, tests, adjustments and words."""
    values = [p_values(claim) for _, claim in COMPARED]
    tables = np.array([claim["command"].split()[2] for _, claim in COMPARED])
    adjusted = np.ones((len(values), 2))
    for kind in (0, 1):
        known = np.array([value[kind] is not None for value in values])
        for table in set(tables):
            at = np.flatnonzero(known & (tables == table))
            adjusted[at, kind] = closed(np.array([values[one][kind] for one in at], float))
    for (row, claim), value, (over_seeds, by_image) in zip(COMPARED, values, adjusted, strict=True):
        status, shown = row[3].strip("*"), row[5]
        _, sign, _, _, budget, *classes = claim["compare"].split()
        if value[1] is None:
            expected = "not run"
        elif min(map(float, budget.split("/"))) < 1 / 8:
            expected = "unclear at this length"
        else:
            points = float(row[4].partition(" ")[0].replace("−", "-"))
            word = "holds" if (points > 0) == (sign == ">") else "fails"
            only = f"{word} by {'task' if classes else 'image'} only"
            expected = word if over_seeds < 0.05 else only if by_image < 0.05 else "unclear"
        assert status == expected, claim["compare"]
        for p, way in ((over_seeds, "over seeds"), (by_image, "by ")):
            for told in re.findall(rf"Holm (< 1e-4|[\d.e-]+), BH \S+?\) {way}", shown):
                assert p < 1e-4 if told == "< 1e-4" else float(told) == pytest.approx(p, rel=0.06)


def test_the_page_has_a_row_for_every_claim():
    assert len(CELLS) == len(CLAIMS) >= 100
