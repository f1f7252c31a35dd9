import os

import pytest
import torch

# Every process that a test starts would compile torch anew: as long again as its import takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def _strict_torch():
    """One thread; uninitialised memory is NaN; the same random numbers in every test."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
