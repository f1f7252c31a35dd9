"""Checkpoints: folders that hold everything needed to resume training, written atomically."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from neural_similarity.files import (
    file_digest,
    new_file,
    open_file,
    read_json,
    regular_file,
    remove_leftovers,
    write_json,
)
from neural_similarity.lab.errors import RunError, reason_of
from neural_similarity.lab.folders import new_folder, remove_folder
from neural_similarity.lab.train import distributed
from neural_similarity.lab.train.weights import load_weights, save_weights, tensors_alone

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
CHECKPOINT_NAME = r"step-([0-9]{8}|[1-9][0-9]{8,})"
"""Names of checkpoints: eight digits, or as many as the step has."""
MISFITS = (AttributeError, LookupError, TypeError, ValueError)
"""Errors that values of the wrong kind in a file raise."""
COUNTED = ("totals", "step", "seconds", "logged_seconds", "best")
"""Fields of a state that are saved as they are."""
log = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """What changes while training; a checkpoint holds all of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    totals: Tensor
    """Loss, correct images and images since the last line of metrics, summed on the device."""
    step: int = 0
    """The number of updates done."""
    seconds: float = 0.0
    """Seconds spent in updates."""
    logged_seconds: float = 0.0
    """`seconds` at the last line of metrics."""
    best: float = -1.0
    """Highest accuracy on the held-out images."""


def save_checkpoint(
    folder: Path, state: TrainingState, metadata: dict[str, str], keep: int
) -> Path:
    """Write the checkpoint `folder/step-...` and keep the `keep` newest ones up to this step.

    The first process writes it, once it has gathered the random states of all. Checkpoints of later
    steps, which a run leaves when it is resumed from an earlier one, are removed. `metadata` are
    texts for the header of the weights.

    Returns:
        The new checkpoint.

    Raises:
        RunError: weights are not finite, or the checkpoint cannot be written (a full disk, say).
    """
    _require_finite_weights(state)
    path, rest = folder / f"step-{state.step:08d}", _rest_of_state(state)

    def write() -> None:
        _write_checkpoint(path, state, rest, metadata)
        _keep_newest(path, keep)

    distributed.by_first(write)
    return path


def _write_checkpoint(
    path: Path, state: TrainingState, rest: dict[str, Any], metadata: dict[str, str]
) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RunError(
            f"{path} must be a folder or not exist, got a {'link' if path.is_symlink() else 'file'}"
            "; move it away, then the run can be resumed from the checkpoint before"
        )
    try:
        with new_folder(path) as temporary:
            save_weights(temporary / WEIGHTS, state.model, metadata)
            with new_file(temporary / STATE) as file:
                torch.save(rest, file)
            write_json(
                temporary / MANIFEST,
                {name: _seal_of(temporary / name) for name in (WEIGHTS, STATE)},
            )
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"cannot write {path}: {reason}; earlier checkpoints stay, and once there is space the "
            "run can be resumed"
        ) from error


def _keep_newest(path: Path, count: int) -> None:
    """Keep the newest checkpoints up to `path`, and remove all others beside it."""
    for other in list_checkpoints(path.parent):
        if step_of(other) > step_of(path):
            remove_folder(other)
    tidy(path.parent, step_of(path), count)


def tidy(folder: Path, step: int, keep: int) -> None:
    """Remove the checkpoints that a run at `step` no longer needs, also after a kill.

    All but the `keep` newest checkpoints up to `step` go, and checkpoints that were only partly
    written or removed. Files and folders with other names are never touched.
    """
    remove_leftovers(folder, CHECKPOINT_NAME)
    upto = [path for path in list_checkpoints(folder) if step_of(path) <= step]
    for old in upto[:-keep]:
        remove_folder(old)


def _require_finite_weights(state: TrainingState) -> None:
    for name, tensor in state.model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise RunError(
                f"{name} is not finite at step {state.step}, which is not saved; earlier "
                "checkpoints stay; try a lower --lr"
            )


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved at, from its name."""
    return int(checkpoint.name.removeprefix("step-"))


def weights_digest(checkpoint: Path) -> str:
    """SHA-256 of a checkpoint's weights, which distinguishes two trainings.

    The digest of the file would not: safetensors writes the texts of its header in any order.
    """
    return state_digest(load_file(regular_file(checkpoint / WEIGHTS)))


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first, damaged ones included.

    Files, links and folders with other names do not count.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if _is_checkpoint(path)), key=step_of)


def _is_checkpoint(path: Path) -> bool:
    named = re.fullmatch(CHECKPOINT_NAME, path.name) is not None
    return named and path.is_dir() and not path.is_symlink()


def newest_checkpoint(folder: Path) -> Path:
    """The newest whole checkpoint; a warning names every damaged file that was passed over."""
    for path in reversed(list_checkpoints(folder)):
        reason = find_damage(path)
        if reason is None:
            return path
        _warn_of_damage(reason)
    raise RunError(
        f"{folder} holds no whole checkpoint; train again into another folder with --out, "
        "or restore the folder from a copy"
    )


@cache
def _warn_of_damage(reason: str) -> None:
    """Once in a process, however often a command looks for the checkpoint."""
    log.warning("Warning: %s; the checkpoint before it is used.", reason)


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file, or None if it is whole."""
    try:
        seals = read_json(path / MANIFEST, within=path)
    except (OSError, ValueError):
        seals = None
    if not isinstance(seals, dict):
        return f"{path / MANIFEST} is missing or damaged"
    for name in (WEIGHTS, STATE):
        if not (path / name).is_file():
            return f"{path / name} is missing"
        if seals.get(name) != _seal_of(path / name):
            return f"{path / name} is damaged: its size or sha256 differs from {MANIFEST}"
    return None


def restore_state(path: Path, state: TrainingState) -> None:
    """Bring `state` back to where it was when the checkpoint `path` was written.

    Raises:
        RunError: the checkpoint is of another network, or its training state cannot be read.
    """
    load_weights(path / WEIGHTS, state.model)
    try:
        _restore_rest(path / STATE, state)
    except (EOFError, RuntimeError, *MISFITS) as error:
        raise RunError(f"{path / STATE} cannot be restored: {reason_of(error)}") from error


def _restore_rest(path: Path, state: TrainingState) -> None:
    device = state.totals.device
    with tensors_alone(), open_file(path) as file:
        rest: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    state.optimizer.load_state_dict(rest["optimizer"])
    torch.set_rng_state(_own_random(rest["random"]))
    if "random_cuda" in rest:
        torch.cuda.set_rng_state(_own_random(rest["random_cuda"]), device)
    for name in COUNTED:
        if type(rest[name]) is not type(getattr(state, name)):
            raise TypeError(f"{name} is {rest[name]!r}")
        setattr(state, name, rest[name])
    if not distributed.is_first():  # Whose totals are those of all processes.
        state.totals.zero_()


def _random_of_all(random: Tensor) -> Tensor:
    """The random states of all processes, one per row; a single process's state as it is."""
    return distributed.gather_rows(random[None]).squeeze(0)


def _own_random(random: Tensor) -> Tensor:
    """The row of this process, or of another if fewer processes wrote the checkpoint."""
    rows = torch.atleast_2d(random.cpu())
    return rows[
        distributed.process_rank() % len(rows)
    ].clone()  # Torch reads the storage from its start.


def _rest_of_state(state: TrainingState) -> dict[str, Any]:
    device = state.totals.device
    rest = {
        "optimizer": state.optimizer.state_dict(),
        "random": _random_of_all(torch.get_rng_state()),
    }
    if device.type == "cuda":
        rest["random_cuda"] = _random_of_all(torch.cuda.get_rng_state(device))
    return rest | {name: getattr(state, name) for name in COUNTED}


def _seal_of(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path, within=path.parent)}
