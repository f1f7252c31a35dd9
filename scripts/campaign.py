"""Run the campaign of docs/reliability.md, or the parts that are named, and write its table.

python scripts/campaign.py [kills pairs pickles run_folders files api cli sanitizers ...]
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"


def table(results):
    """Markdown of what was tried and what came of it."""
    lines = ["| part | tried | errors |", "|---|---|---|"]
    for part, counts in results.items():
        lines.append(f"| {part} | {counts['tried']:,} | {counts['errors']} |")
    return "\n".join(lines) + "\n"


def main(parts):
    """The exit code of pytest."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "-n", "0", "tests/reliability"]
    chosen = ["-k", " or ".join(parts)] if parts else []
    code = subprocess.run([*command, *chosen], cwd=ROOT, check=False).returncode
    page, results = ROOT / "docs/reliability.md", ROOT / "results/reliability.json"
    before, rest = page.read_text("utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(
        f"{before}{BEGIN}\n{table(json.loads(results.read_text()))}\n{END}{after}", "utf-8"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
