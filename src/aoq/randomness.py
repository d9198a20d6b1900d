"""All randomness of training follows from (seed, epoch, step), and from nothing else.

No generator state has to be kept: a run continued at a step draws the same order, the same
offline negatives and the same dropout as one that was never interrupted. Processes that share a
step draw the same and take their share of it; only dropout differs from one to the next.
"""

from __future__ import annotations

import numpy as np

from aoq.types import Ids


def generator(seed: int, *, epoch: int, step: int) -> np.random.Generator:
    """The draws of one step, whoever takes part in it."""
    return np.random.default_rng([seed, 1, epoch, step])


def epoch_order(n_pairs: int, *, seed: int, epoch: int) -> Ids:
    """The order in which an epoch visits the positive pairs."""
    return np.random.default_rng([seed, 2, epoch]).permutation(n_pairs)


def seed_torch(seed: int, *, epoch: int = 0, step: int = 0, process_rank: int = 0) -> None:
    """Seed torch for the initial weights (epoch 0, step 0) or for the dropout of one step."""
    import torch

    spawn_key = (process_rank,) if process_rank else ()
    sequence = np.random.SeedSequence([seed, 3, epoch, step], spawn_key=spawn_key)
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
