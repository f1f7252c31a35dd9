"""Execute the notebooks of docs/notebooks in place: a minute each.

    uv run python scripts/notebooks.py

Outputs are kept, without times and counters of the execution, so that a run that changes nothing
changes only rounding. `scripts/build_site.py` shows them as pages, `tests/test_notebooks.py` runs
them again.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def executed_notebook(file: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in `folder`, in a process of its own."""
    notebook = nbformat.read(file, 4)
    client = NotebookClient(
        notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
    notebook.metadata.pop("language_info", None)  # of this Python
    for cell in notebook.cells:
        cell.metadata.clear()
    return notebook


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed_notebook(file, FOLDER), file)
        sys.stdout.write(f"{file.name}: {file.stat().st_size / 1000:.0f} kB\n")
