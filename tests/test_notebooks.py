"""The notebooks of docs are executed, small, and give the same again."""

import re
from pathlib import Path

import nbformat
import pytest
from notebooks import FOLDER, executed_notebook

FILES = sorted(FOLDER.glob("*.ipynb"))


def texts(notebook):
    """What a notebook prints, without numbers, which rounding changes, and how many pictures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    return re.sub(r"[-+]?\d+(\.\d+)?", "#", printed), pictures


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_is_committed_executed_and_small(file):
    notebook = nbformat.read(file, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert not [out for cell in code for out in cell.outputs if out.get("name") == "stderr"]
    assert file.stat().st_size < 400_000
    printed, pictures = texts(notebook)
    assert printed
    assert pictures >= 2
    assert str(Path.home()) not in file.read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_gives_the_same_again(file, tmp_path):
    assert texts(executed_notebook(file, tmp_path)) == texts(nbformat.read(file, 4))
    assert not list(tmp_path.iterdir())
