"""Tensors that pass for those of a GPU, as far as one may ask without launching anything."""

import torch


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, which is not here."""

    is_cuda = True
    device = torch.device("cuda", 0)


def on_gpu(x):
    return x.as_subclass(OnGpu)
