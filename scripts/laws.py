"""The exceptions that docs/evidence/laws.md lists: `uv run python scripts/laws.py`, in minutes."""

import sys
from collections.abc import Iterator

from neural_similarity import testing


def exception_lines() -> Iterator[str]:
    """Lines of a Markdown table: where a law does not apply and why, or that it fails."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, structure in testing.STRUCTURES.items():
        for case in testing.cases(structure):
            for law, reason in _reasons(case):
                found.setdefault((law, reason, name), []).append(str(case))
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (law, reason, name), where in found.items():
        merged.setdefault((law, reason, ", ".join(where)), []).append(name)
    yield "| law | does not apply because | layers | structures |"
    yield "|---|---|---|---|"
    for (law, reason, where), names in merged.items():
        all_of_them = len(names) == len(testing.STRUCTURES)
        yield f"| {law} | {reason} | {where} | {'all' if all_of_them else ', '.join(names)} |"


def _reasons(case: testing.Case) -> Iterator[tuple[str, str]]:
    """The laws that do not apply to a case, or fail, each with the reason."""
    try:
        case.make_layer()
    except testing.NotApplicableError as reason:
        yield "all", str(reason).partition(", got ")[0]
        return
    for law in testing.LAWS:
        try:
            reason = testing.check(law, case)
        except Exception as error:
            reason = f"**it fails**: {type(error).__name__}"
        if reason:
            yield law, reason


if __name__ == "__main__":
    for line in exception_lines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
