"""What machine code for GPUs says of itself, by the tools in Triton's package."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path


def _run_tool(name: str, folder: Path, binary: bytes, option: str) -> str:
    (folder / "kernel.cubin").write_bytes(binary)
    place = find_spec("triton").submodule_search_locations[0]
    command = [f"{place}/backends/nvidia/bin/{name}", option, "kernel.cubin"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def loop_lengths(binary: bytes, folder: Path, having: str = "MMA") -> list[int]:
    """Machine instructions of each loop that has matrix products, a warp's each time around.

    Or of each that has another instruction, given as a pattern.
    """
    lines, labels, lengths = [], {}, []
    for line in _run_tool("nvdisasm", folder, binary, "-c").splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(lines)
        elif line.rstrip().endswith(";"):
            lines.append(line)
    for end, line in enumerate(lines):
        start = labels.get((re.findall(r"BRA `\((\.L_\w+)\)", line) or [""])[0], end + 1)
        if start <= end and re.search(having, "".join(lines[start:end])):
            lengths.append(end + 1 - start)
    return lengths


def resource_usage(binary: bytes, folder: Path) -> dict[str, int]:
    """Of the only kernel, by the assembler's names: REG, registers; STACK, which spills take."""
    found = re.findall(r"(\w+):(\d+)", _run_tool("cuobjdump", folder, binary, "-res-usage"))
    return {name: int(number) for name, number in found}
