"""Run the campaign of docs/evidence/reliability.md, or parts of it, and write its tables.

    uv run python scripts/campaign.py                       # all of it
    uv run python scripts/campaign.py writes cli            # test_writes.py, test_cli.py
    RELIABILITY_EVERY=5 uv run python scripts/campaign.py   # one in five writes

It fails where a command of `nsim` or a public name has no case, or where a case fails. A sample, as
of one in five writes, is not counted.
"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from prose import replace_table

from neural_similarity_paper.tables.markdown import markdown_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reliability.json"
FILES = {
    "adapters forged in every field": "tests/conversion/test_forged_adapters.py",
    "adapters that switch half way": "tests/conversion/test_switching.py",
    "odd arguments of every public name": "tests/reliability/test_arguments.py",
    "run folders and results forged in every field": "tests/lab/cli/test_forged.py",
    "commands in three encodings": "tests/lab/cli/test_output.py",
    "neighbours of our own names": "tests/lab/train/test_neighbours.py",
    "deaths among processes": "tests/lab/train/test_peers.py",
    "exported files forged in every field": "tests/lab/tasks/test_forged_weights.py",
    "hub folders forged in every field": "tests/test_forged_hub.py",
    "one writer and one reader": "tests/test_files.py",
    "ways to open files": "tests/test_file_access.py",
}
"""Enumerations whose cases are tests of their own, by what they try."""
COLUMNS = (
    *("kills", "kills of 2 processes", "kills of 4 processes", "full disks", "pairs"),
    *("second refused", "hostile"),
)


def require_files(parts):
    """Check that every file of tests is there, and that every part names one."""
    own = [f"tests/reliability/test_{part}.py" for part in parts]
    missing = [file for file in FILES.values() if not (ROOT / file).is_file()]
    for part, file in zip(parts, own, strict=True):
        if not (ROOT / file).is_file() and not any(part in known for known in FILES.values()):
            missing.append(f"{file}, or one of FILES that {part!r} is in")
    if missing:
        raise SystemExit(f"there is no {'; no '.join(missing)}")


def run_tests(arguments, report):
    """The exit code of pytest, and how many tests ran and failed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", f"--junit-xml={report}", "-m", ""]
    code = subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    ran, failed, errors, skipped = (
        int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")
    )
    return code, ran - skipped, failed + errors


def table_of_works(results):
    """What was tried of every kind of work, and how many of it failed."""
    rows = []
    for work, counts in results.items():
        cells = [f"{counts[kind]:,}" if kind in counts else "" for kind in COLUMNS]
        errors = sum(count for kind, count in counts.items() if kind.endswith(", errors"))
        rows += [(work, *cells, str(errors))] * any(cells)
    return markdown_rows(("work", *COLUMNS, "errors"), *rows)


def table_of_parts(results):
    """What else was tried."""
    tried = [(part, counts) for part, counts in results.items() if "tried" in counts]
    rows = [(part, f"{counts['tried']:,}", str(counts["errors"])) for part, counts in tried]
    return markdown_rows(("part", "tried", "errors"), *rows)


def main(parts):
    """The worst exit code of pytest."""
    require_files(parts)
    sys.path[:0] = [str(ROOT / "tests")]
    from reliability.counts import record

    report, codes = ROOT / "build" / "campaign.xml", []
    report.parent.mkdir(exist_ok=True)
    for part, file in FILES.items():
        if not parts or any(word in file for word in parts):
            code, tried, errors = run_tests([file], report)
            record(part, tried=tried, errors=errors)
            codes.append(code)
    chosen = [f"tests/reliability/test_{part}.py" for part in parts]
    own = [path for path in chosen if (ROOT / path).exists()] if parts else ["tests/reliability"]
    if own:
        codes.append(run_tests(own, report)[0])
    results = json.loads(RESULTS.read_text("utf-8"))
    tables = f"\n{table_of_works(results)}\n\n{table_of_parts(results)}\n\n"
    replace_table(ROOT / "docs" / "evidence" / "reliability.md", tables)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
