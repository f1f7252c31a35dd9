"""A whole update as one CUDA graph, so that the host launches no kernel of it again.

A small network's update is hundreds of kernels of a few microseconds, which the host launches no
faster than the GPU runs them. An update must work on fixed tensors: the host writes what differs
between steps, the batch's indices and the learning rate, to the device before each replay.
"""

import logging
from collections.abc import Callable

import torch
from torch.optim import SGD, Optimizer

WARM_UP = 3
"""Updates on a stream of their own before the capture, to tune kernels and allocate momentum."""
log = logging.getLogger(__name__)

Update = Callable[[], None]
Advance = Callable[[float], None]
"""Makes one update at a learning rate."""


def updates(update: Update, optimizer: Optimizer, device: torch.device) -> Advance:
    """The function that repeats `update`: as a graph where possible, or as it is.

    Args:
        update: forward and backward pass and a step of the optimiser.
        optimizer: whose learning rate is set before each update.
        device: where all of it happens.
    """
    reason = refuses(optimizer, device)
    if reason is None:
        return Graphed(update, optimizer, device)
    log.info("Updates are not captured as a CUDA graph: %s.", reason)
    return Plain(update, optimizer)


def refuses(optimizer: Optimizer, device: torch.device) -> str | None:
    """Why updates cannot be a graph, or None."""
    if device.type != "cuda":
        return f"they run on {device.type}"
    if not isinstance(optimizer, SGD):
        return f"{type(optimizer).__name__} reads its learning rate on the host"
    return None


class Plain:
    def __init__(self, update: Update, optimizer: Optimizer) -> None:
        self._update = update
        self._groups = optimizer.param_groups

    def __call__(self, rate: float) -> None:
        """Set the rate and update."""
        for group in self._groups:
            group["lr"] = rate
        self._update()


class Graphed:
    """`WARM_UP` updates as they stand, then a capture and its replays; every one is a true update.

    The optimiser becomes a fused one, whose learning rate is read on the device. Where the capture
    fails, a warning gives the reason and updates go on as they stand.
    """

    def __init__(self, update: Update, optimizer: Optimizer, device: torch.device) -> None:
        self._update, self._device = update, device
        self._rate = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group["lr"], group["fused"], group["foreach"] = self._rate, True, False
        self._known = 0.0
        self._left = WARM_UP
        self._run: Update = update

    def __call__(self, rate: float) -> None:
        """Write the rate to the device and update."""
        self._set(rate)
        if self._left > 0:
            self._left -= 1
            aside(self._update, self._device)
            return
        if self._left == 0:
            self._left = -1
            self._run = self._captured()
        self._run()

    def _set(self, rate: float) -> None:
        if rate != self._known:
            self._rate.fill_(rate)
            self._known = rate

    def _captured(self) -> Update:
        try:
            return capture(self._update, self._device)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            log.warning("Warning: updates are not captured as a CUDA graph: %s", reason)
            return self._update


def aside(update: Update, device: torch.device) -> None:
    """Update on another stream than the current one, which waits for it."""
    current = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        update()
    current.wait_stream(stream)


def capture(update: Update, device: torch.device) -> Update:
    """The replay of `update`, which itself does not run now.

    Raises:
        RuntimeError: something in it waits for the device, or does not run on the device.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)  # Torch's default is one of the GPU that captured first.
    with torch.cuda.device(device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        try:
            with torch.cuda.graph(graph, stream=stream):
                update()
        except RuntimeError as error:
            # A failed capture leaves the state of random numbers within it, and its own end, which
            # fails as well, hides what went wrong.
            generator.graphsafe_set_state(generator.clone_state())
            raise error.__context__ or error from None
    return graph.replay
