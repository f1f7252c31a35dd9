import os

import pytest
import torch
from torch import distributed
from torch.nn.modules.module import register_module_forward_pre_hook

from neural_similarity import visualize
from neural_similarity.lab import data
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import fitting
from neural_similarity_paper.tables import TABLES

# torch's first backward pass starts a thread for each device, even for one that FakeTensorMode
# makes up, and a process with such threads cannot fork.
torch.zeros((), requires_grad=True).backward()
# Every process that a test starts would compile torch anew: as long again as its import takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def _no_leaks():
    """A test leaves recipes, tables and data sets as they were: the first set up, so the last."""
    before = shared_state()
    yield
    assert shared_state() == before


def shared_state():
    functions = data.load_dataset, data.load_split, visualize.draw
    return (functions, fitting.draw_learning_curves, dict(RECIPES), dict(TABLES))


@pytest.fixture(autouse=True)
def _strict_torch():
    """One thread; uninitialised memory is NaN; the same random numbers in every test."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def passes():
    """Of all layers that ran: whether in training mode, and whether under autocast."""
    seen = set()

    def note(module, _):
        seen.add((module.training, torch.is_autocast_enabled("cpu")))

    with register_module_forward_pre_hook(note):
        yield seen


@pytest.fixture
def ranks(tmp_path):
    """One rank of one."""
    rendezvous = f"file://{tmp_path / 'ranks'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
