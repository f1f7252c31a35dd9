"""Networks inside torch's wrappers, and names without the parts that wrappers add."""

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

COMPILED = "_orig_mod"
CHECKPOINTED = "_checkpoint_wrapped_module"
_ADDED = {COMPILED, CHECKPOINTED}
_WRAPPERS = DistributedDataParallel, DataParallel, AveragedModel


def unwrap_model(model: nn.Module) -> nn.Module:
    """The network that `torch.compile`, DDP, DataParallel or AveragedModel wraps, or `model`."""
    while True:
        if COMPILED in model._modules:
            model = model.get_submodule(COMPILED)
        elif isinstance(model, _WRAPPERS):
            model = model.module
        else:
            return model


def plain_name(name: str) -> str:
    """A name without the parts that compiled and checkpointed modules add."""
    return ".".join(part for part in name.split(".") if part not in _ADDED)


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module adds a part to the names of what it holds."""
    return not _ADDED.isdisjoint(module._modules)


def plain_modules(model: nn.Module, remove_duplicate: bool = True) -> dict[str, nn.Module]:
    """The modules of a network, unwrapped, by their plain names."""
    named = unwrap_model(model).named_modules(remove_duplicate=remove_duplicate)
    return {plain_name(name): module for name, module in named}


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers in a network's state dict by their plain names."""
    state = unwrap_model(model).state_dict(keep_vars=True)
    return {plain_name(name): t for name, t in state.items() if isinstance(t, Tensor)}
