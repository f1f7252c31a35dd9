"""Random numbers that are functions of what they are for."""

import hashlib

import torch


def generator(purpose: str, seed: int, position: int = 0) -> torch.Generator:
    """A fresh CPU generator; its numbers depend on the three arguments alone.

    The arguments are hashed, so that neighbouring seeds and positions have nothing in common.
    """
    digest = hashlib.sha256(f"{purpose} {int(seed)} {int(position)}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
