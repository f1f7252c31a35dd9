"""Counts of the campaign, which docs/evidence/reliability.md shows."""

import json
from pathlib import Path

from neural_similarity.files import write_text
from neural_similarity.lab.train.files import record_layout

RESULTS = Path(__file__).parents[2] / "results" / "reliability.json"


def record(part, **counts):
    """Write what a part of the campaign tried and found, beside what is known of that part."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[part] = known.get(part, {}) | counts
    write_text(RESULTS, record_layout(dict(sorted(known.items()))))
