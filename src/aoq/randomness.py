"""Derives all randomness of training from (seed, epoch, step), and from nothing else.

No generator state has to be saved: a run continued at a step draws the same order, the same
offline negatives and the same dropout as one that was never interrupted. Processes that share a
step make the same draws and take their share of them; only dropout differs between processes.
"""

from __future__ import annotations

import numpy as np

from aoq.types import Ids


def generator(seed: int, *, epoch: int, step: int) -> np.random.Generator:
    """Return the generator for the draws of one step, equal in every process."""
    return np.random.default_rng([seed, 1, epoch, step])


def epoch_order(n_pairs: int, *, seed: int, epoch: int) -> Ids:
    """Return the order in which an epoch visits the positive pairs."""
    return np.random.default_rng([seed, 2, epoch]).permutation(n_pairs)


def group_generator(seed: int, *, epoch: int) -> np.random.Generator:
    """Return the generator for the draws that make the groups of an epoch."""
    return np.random.default_rng([seed, 5, epoch])


def image_generator(seed: int, *, epoch: int, step: int, image: int) -> np.random.Generator:
    """Return the generator for the random view of one image in one step."""
    return np.random.default_rng([seed, 4, epoch, step, image])


def seed_torch(seed: int, *, epoch: int = 0, step: int = 0, process_rank: int = 0) -> None:
    """Seed torch for the initial weights (epoch 0, step 0) or for the dropout of one step.

    Without a GPU only the generator of the CPU is seeded: torch would note every seed, with the
    stack of its caller, for GPUs that never come.
    """
    import torch

    spawn_key = (process_rank,) if process_rank else ()
    sequence = np.random.SeedSequence([seed, 3, epoch, step], spawn_key=spawn_key)
    has_gpu = torch.accelerator.is_available()
    sow = torch.manual_seed if has_gpu else torch.default_generator.manual_seed
    sow(int(sequence.generate_state(1, np.uint64)[0] >> 1))
