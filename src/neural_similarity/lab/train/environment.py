"""Where a run took place: versions, machine, commit."""

import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from neural_similarity.choices import VERSION
from neural_similarity.files import read_text
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.runtime import Runtime
from neural_similarity.ops import declines


def describe_environment(runtime: Runtime) -> dict[str, Any]:
    """Versions, machine, device and precision, command line, and the commit in a git checkout."""
    return {
        "neural_similarity": VERSION,
        "commit": checkout_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "threads": torch.get_num_threads(),
        "processes": distributed.process_count(),
        "device": device_name(runtime.device),
        "precision": runtime.precision,
        "command": command_line(),
    }


def fallback_reason(device: torch.device) -> str | None:
    """Why dynamic similarities fall back to slower torch operations on `device`, or None."""
    backend = "triton" if device.type == "cuda" else "compiled"
    return declines(backend, torch.empty(0, 4, 3, 3, device=device), 9)


def command_line() -> str:
    """The command of this process, as typed in a shell."""
    program = Path(sys.argv[0])
    words = [program.name]
    if program.name == "__main__.py" and program.parent.name != "neural_similarity":
        words = ["python", "-m", program.parent.name]
    elif program.name in ("__main__.py", "-c"):
        words = ["nsim"]
    return shlex.join([*words, *sys.argv[1:]])


def device_name(device: torch.device) -> str:
    """The name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def cpu_name() -> str:
    """The processor's model where Linux names it, else its architecture; with "(AVX2)" or without.

    "(AVX2)" is added where torch finds no wider vectors: processors of one name differ in it, and
    convolutions and our operators run at other speeds.
    """
    info = Path("/proc/cpuinfo")
    lines = read_text(info).splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, platform.processor() or platform.machine())
    return f"{name} (AVX2)" if torch.backends.cpu.get_cpu_capability() == "AVX2" else name


def checkout_commit() -> str | None:
    """The commit of the checkout that this package runs from, with "-dirty" if its code differs.

    Code is what lies in `src`: the records that a study writes on its way do not change it.
    """
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src"])
    try:
        commit, changed = (
            subprocess.run(
                ["git", *command], cwd=root, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit
