"""Random numbers that are functions of what they are for."""

import hashlib

import torch


def generator(purpose: str, seed: int, position: int = 0, *more: int) -> torch.Generator:
    """A fresh CPU generator; its numbers depend on the arguments alone.

    The arguments are hashed, so that neighbouring seeds and positions have nothing in common.
    """
    words = [purpose, *(str(int(number)) for number in (seed, position, *more))]
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
