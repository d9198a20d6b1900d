"""Scores keep single precision where the encoders run in mixed precision.

Bfloat16 tells scores apart to about 1/256, too coarse to say which negative is the hardest.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_single(values: Tensor) -> Tensor:
    """At least single precision; double stays double."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def full_precision(values: Tensor) -> torch.autocast:
    """A context without mixed precision on the device of `values`."""
    return torch.autocast(values.device.type, enabled=False)
