"""What machine code for GPUs says of itself, by the disassembler in Triton's package."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path


def loop_lengths(binary: bytes, folder: Path) -> list[int]:
    """Machine instructions of each loop that has matrix products, a warp's each time around."""
    (folder / "kernel.cubin").write_bytes(binary)
    tool = Path(find_spec("triton").submodule_search_locations[0], "backends/nvidia/bin/nvdisasm")
    command = [tool, "-c", "kernel.cubin"]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    lines, labels, lengths = [], {}, []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(lines)
        elif line.rstrip().endswith(";"):
            lines.append(line)
    for end, line in enumerate(lines):
        start = labels.get((re.findall(r"BRA `\((\.L_\w+)\)", line) or [""])[0], end + 1)
        if start <= end and "MMA" in "".join(lines[start:end]):
            lengths.append(end + 1 - start)
    return lengths
