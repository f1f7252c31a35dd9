"""Work of other processes, in order."""

import os
import signal

import torch

from neural_similarity.lab.data.prefetch import in_order


def square(number):
    return torch.tensor(number * number)


def process(_):
    return os.getpid()


def test_work_is_done_in_order_by_other_processes():
    assert list(in_order(square, range(7), workers=2)) == [square(i) for i in range(7)]
    assert next(in_order(process, range(3), workers=1)) != os.getpid()
    assert next(in_order(process, range(3), workers=0)) == os.getpid()


def handlers(_):
    found = (signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM))
    return torch.tensor([int(handler) if isinstance(handler, int) else -1 for handler in found])


def test_helping_processes_leave_ctrl_c_to_training():
    (found,) = in_order(handlers, range(1), workers=1)
    assert found.tolist() == [signal.SIG_IGN, signal.SIG_DFL]
