"""The paper's learning rate as a function of the step, and how a budget shortens it."""

from collections.abc import Sequence

MOST_BUDGET = 1_000_000
RISE = 0.2
"""Share of the steps for which the learning rate of one cycle rises."""


def learning_rate(step: int, lr: float, drops: Sequence[int], factor: float) -> float:
    """The rate of update `step`, counted from 0: `lr`, multiplied by `factor` at every drop.

    With `drops=(34_000, 54_000)` the first 34,000 updates (0 to 33,999) use `lr` itself.
    """
    return lr * factor ** sum(step >= drop for drop in drops)


def one_cycle(step: int, peak: float, steps: int) -> float:
    """The rate of update `step`, counted from 0: up to `peak` for a fifth of `steps`, then down.

    Both linearly; neither the first nor the last update has a rate of zero.
    """
    rise = max(1, int(RISE * steps))
    return peak * min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def scaled_steps(steps: int, drops: Sequence[int], budget: float) -> tuple[int, tuple[int, ...]]:
    """`steps` and `drops` times `budget`, each rounded to the nearest step, halves up.

    At least one step remains, and a drop that rounds to the start or the end of a short run, or
    to the drop before it, is left out.
    """
    if not budget > 0:
        raise ValueError(f"`budget` must be above 0, got {budget}")
    if budget > MOST_BUDGET:
        raise ValueError(f"`budget` must be at most {MOST_BUDGET:,}, got {budget}")
    shorter = max(1, _nearest_step(steps * budget))
    scaled = dict.fromkeys(_nearest_step(drop * budget) for drop in drops)
    return shorter, tuple(drop for drop in scaled if 0 < drop < shorter)


def _nearest_step(value: float) -> int:
    return int(value + 0.5)
