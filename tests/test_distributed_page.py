"""The commands of docs/how-to/distributed.md run, on the embedded data."""

import re
import shlex
from pathlib import Path

import pytest
from torchrun import torchrun

PAGE = Path(__file__).parents[1] / "docs/how-to/distributed.md"


@pytest.mark.long
def test_its_commands(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(commands) == 3
    for program, standalone, option, count, *words in commands:
        assert (program, standalone, option) == ("torchrun", "--standalone", "--nproc-per-node")
        fewer = [{"20": "4", "10": "2"}.get(word, word) for word in words]
        assert "quickstart-seed" in torchrun(int(count), *fewer, cwd=tmp_path)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
