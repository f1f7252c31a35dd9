import ctypes
import subprocess
import sys

import pytest

from neural_similarity.train.memory import keep_freed_memory

COUNT_FAULTS = """
import resource, sys, torch
from neural_similarity.train.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()

def work():
    for _ in range(4):
        torch.empty(2**24).fill_(1)

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(how: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc is not glibc's")
def test_freed_memory_is_used_again_without_new_pages():
    assert new_pages("keep") < 100 < new_pages("leave")


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
