"""Data-parallel runs under torchrun: each process takes its share of every batch.

Without torchrun there is one process, the first, and nothing here communicates.
"""

import atexit
import hashlib
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

Input = TypeVar("Input")
Result = TypeVar("Result")
LONGEST_WAIT = timedelta(hours=2)
"""Longest wait for the first process, which may decode a data set or draw pictures."""
_host: "dist.ProcessGroup | None" = None
"""The process group for tensors on the CPU."""
_peers: list[tuple[str, int]] = []
"""Machine and process id of every process, by rank."""


def join_processes(device: torch.device) -> None:
    """Join torchrun's process group: NCCL on NVIDIA GPUs, XCCL on Intel's, else gloo."""
    global _host, _peers
    if not under_torchrun() or _host is not None:
        return
    backend = {"cuda": "nccl", "xpu": "xccl"}.get(device.type, "gloo")
    if not dist.is_initialized():
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        dist.init_process_group(backend, timeout=LONGEST_WAIT)
        atexit.register(dist.destroy_process_group)  # Once no network uses the group.
    group = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo")
    _host = cast(dist.ProcessGroup, group)
    _peers = [("", 0)] * process_count()
    dist.all_gather_object(_peers, (socket.gethostname(), os.getpid()), _host)


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launched_processes() -> int:
    """The number of processes that torchrun started, also before they `join`."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else 1


def peers() -> list[tuple[str, int]]:
    """Machine and process id of every process of this run, by rank."""
    return _peers


def claim_message(text: str) -> bool:
    """Whether this process is the first of torchrun's to ask about `text`.

    A message that every process would print is printed once in this way.
    """
    if launched_processes() == 1:
        return True
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    try:
        # torchrun's own store, which outlives the processes.
        store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=5))))
        return store.add(f"said/{digest}", 1) == 1
    except dist.DistError:
        return True


def process_count() -> int:
    """The number of processes of this run."""
    return 1 if _host is None else dist.get_world_size()


def process_rank() -> int:
    """The number of this process, from 0."""
    return 0 if _host is None else dist.get_rank()


def is_first() -> bool:
    """Whether this process is the one that writes files and shows progress."""
    return not under_torchrun() or os.environ["RANK"] == "0"


def was_restarted() -> bool:
    """Whether torchrun restarted these processes because one had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def own_device(device: torch.device) -> torch.device:
    """This process's own GPU if torchrun started it and `device` has no index, else `device`."""
    number = os.environ.get("LOCAL_RANK")
    if number is None or device.index is not None or device.type not in ("cuda", "xpu"):
        return device
    return torch.device(device.type, int(number))


def own_share(count: int) -> slice:
    """The slice of `count` items that is this process's; sizes differ by at most one."""
    start, stop = (count * r // process_count() for r in (process_rank(), process_rank() + 1))
    return slice(start, stop)


def by_first(work: Callable[[], Result]) -> Result | None:
    """The result of `work` on the first process, while the others wait and get None."""
    wait_for_all()
    result = work() if is_first() else None
    wait_for_all()
    return result


def wait_for_all() -> None:
    """Wait until every process calls this."""
    if process_count() > 1:
        dist.barrier(_host)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of the tensors of all processes."""
    if process_count() > 1:
        tensor = tensor.clone()
        dist.all_reduce(tensor)
    return tensor


def collect_totals(totals: Tensor) -> None:
    """Move the sum over all processes to the first one's `totals`, and reset the others'."""
    whole = sum_over_processes(totals)
    # Zero times NaN or infinity is NaN: a sum that is not finite stops every process.
    totals.copy_(whole if is_first() else 0 * whole)


def largest_of_all(*numbers: int) -> list[int]:
    """The largest of each number among all processes."""
    if process_count() == 1:
        return list(numbers)
    tensor = torch.tensor(numbers)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, _host)
    return tensor.tolist()


def gather_rows(tensor: Tensor | None) -> Tensor:
    """The tensors of all processes, concatenated by rank.

    Their first dimensions may differ, and all but one may be None.
    """
    parts = [tensor]
    if process_count() > 1:
        parts = parts * process_count()
        dist.all_gather_object(parts, None if tensor is None else tensor.cpu(), _host)
    whole = torch.cat([part for part in parts if part is not None])
    return whole if tensor is None else whole.to(tensor.device)


def by_turns(function: Callable[[Input], Tensor], inputs: Iterable[Input]) -> Iterator[Tensor]:
    """`map(function, inputs)`, one input per process at a time; their results are concatenated."""
    inputs = iter(inputs)
    while chunk := list(islice(inputs, process_count())):
        yield gather_rows(function(chunk[process_rank()]) if process_rank() < len(chunk) else None)


def replicate_model(model: nn.Module) -> nn.Module:
    """The network whose backward pass averages gradients over the processes."""
    if process_count() == 1:
        return model
    # The two memory layouts of a kernel with one channel are the same.
    warnings.filterwarnings("ignore", "Grad strides do not match")
    warnings.filterwarnings("ignore", ".*find_unused_parameters=True was specified")
    # find_unused_parameters keeps the first buckets, which torch rebuilds after a step otherwise:
    # three or more processes add up in the order of the buckets, and a resumed run would differ.
    return DistributedDataParallel(model, find_unused_parameters=True)


def sum_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes; a gradient that no process has stays None."""
    if process_count() == 1:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    known = parameters[0].new_tensor([p.grad is not None for p in parameters])
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = sum_over_processes(torch.cat([known, *(gradient.flatten() for gradient in gradients)]))
    counts, *sums = flat.split([len(known), *(p.numel() for p in parameters)])
    for parameter, total, count in zip(parameters, sums, counts.tolist(), strict=True):
        parameter.grad = total.view(parameter.shape) if count else None


def agree_on_buffers(model: nn.Module) -> None:
    """Broadcast the first process's buffers: running statistics differ by each one's share."""
    if process_count() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def with_sync_norms(model: nn.Module) -> nn.Module:
    """The model with SyncBatchNorm, which normalises by the statistics of the whole batch."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        raise ValueError("`sync_norms` must be False on the CPU, unsupported by torch, got True")
    return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(model))
