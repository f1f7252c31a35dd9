"""The halo kernels as if a GPU were there."""

from types import SimpleNamespace

import pytest
import torch

from neural_similarity.ops import backend, halo
from neural_similarity.ops.halo import trial


@pytest.fixture
def switched(monkeypatch):
    """The switch is on, and a Hopper GPU there."""
    monkeypatch.setattr(halo, "_SWITCH", {"on": True})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(trial, "_FAULTS", {})
    monkeypatch.setattr(trial, "find_fault", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    two = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: two)
    return halo


@pytest.fixture
def taken(monkeypatch, switched):
    """The family takes tensors of the CPU, untried."""
    monkeypatch.setitem(backend._REASONS, "halo", lambda *_: None)
    monkeypatch.setattr(switched, "declines_operands", lambda _: None)
