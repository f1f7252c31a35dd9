"""The commands of docs/how-to/distributed.md run, on the embedded data."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import DTensor
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
        said = torchrun(int(count), *fewer, cwd=tmp_path)
        assert "quickstart-seed" in said
        assert said.count(" training, ") == ("--resume" not in words)
        assert said.count("find_unused_parameters") <= 1  # a warning of torch's
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


def test_its_program_shards_trains_and_gathers(tmp_path):
    """Of one process."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    rendezvous = f"file://{tmp_path / 'ranks'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        names = {}
        exec(compile(block, PAGE.name, "exec"), names)
        sharded = dict(names["model"].named_parameters())
        moved = 0
        for key, value in names["plain"].named_parameters():
            assert isinstance(sharded[key], DTensor)
            assert torch.equal(sharded[key].full_tensor(), value)
            moved += key.endswith("similarity.raw") and bool(value.any())
        assert moved == 9
    finally:
        distributed.destroy_process_group()
