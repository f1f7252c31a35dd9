"""A whole update as one CUDA graph, so that the host does not launch its kernels one by one.

A small network's update is hundreds of kernels of a few microseconds, which the host launches no
faster than the GPU runs them. An update must work on fixed tensors: before each replay the host
writes the batch's indices and the learning rate to the device.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

WARM_UP = 3
"""Updates on a stream of their own before the capture, to tune kernels and allocate momentum."""
log = logging.getLogger(__name__)

Update = Callable[[], None]
Advance = Callable[[float], None]
"""Makes one update at a learning rate, times the `scale` of a group that has one."""


def repeated_update(update: Update, optimizer: Optimizer, device: torch.device) -> Advance:
    """The function that runs `update`: as a CUDA graph where possible, else directly."""
    reason = refuses_graph(optimizer, device)
    if reason is None:
        return Graphed(update, optimizer, device)
    log.info("Updates are not captured as a CUDA graph: %s.", reason)
    return plain_update(update, optimizer)


def refuses_graph(optimizer: Optimizer, device: torch.device) -> str | None:
    """Why updates cannot be a graph, or None."""
    if device.type != "cuda":
        return f"they run on {device.type}"
    if not isinstance(optimizer, SGD):
        return f"{type(optimizer).__name__} reads its learning rate on the host"
    return None


def plain_update(update: Update, optimizer: Optimizer) -> Advance:
    """The function that runs `update` directly."""

    def advance(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        update()

    return advance


class Graphed:
    """Runs `WARM_UP` updates directly, then captures one as a graph and replays it from there on.

    The optimiser becomes a fused one, which reads its learning rate on the device. If the capture
    fails, a warning gives the reason and updates go on running directly.
    """

    def __init__(self, update: Update, optimizer: Optimizer, device: torch.device) -> None:
        self._update, self._device = update, device
        self._rates: dict[float, Tensor] = {}
        for group in optimizer.param_groups:
            scale = group.get("scale", 1.0)
            group["lr"] = self._rates.setdefault(scale, torch.zeros((), device=device))
            group["fused"], group["foreach"] = True, False
        self._known = 0.0
        self._left = WARM_UP
        self._run: Update = update

    def __call__(self, rate: float) -> None:
        self._set_rate(rate)
        if self._left > 0:
            self._left -= 1
            update_aside(self._update, self._device)
            return
        if self._left == 0:
            self._left = -1
            self._run = self._capture_update()
        self._run()

    def _set_rate(self, rate: float) -> None:
        if rate != self._known:
            for scale, tensor in self._rates.items():
                tensor.fill_(rate * scale)
            self._known = rate

    def _capture_update(self) -> Update:
        try:
            return capture_update(self._update, self._device)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            log.warning("Warning: updates are not captured as a CUDA graph: %s", reason)
            return self._update


def update_aside(update: Update, device: torch.device) -> None:
    """Run `update` on a side stream, for which the current stream waits."""
    current = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        update()
    current.wait_stream(stream)


def capture_update(update: Update, device: torch.device) -> Update:
    """Capture `update` without running it, and return the function that replays it.

    Raises:
        RuntimeError: `update` waits for the device, or computes outside it.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)  # Torch's default is on the GPU that captured first.
    with torch.cuda.device(device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        try:
            with torch.cuda.graph(graph, stream=stream):
                update()
        except RuntimeError as error:
            # A failed capture leaves the generator in the graph's state; and ending the capture
            # fails as well, in an error that hides the first one.
            generator.graphsafe_set_state(generator.clone_state())
            raise error.__context__ or error from None
    return graph.replay
