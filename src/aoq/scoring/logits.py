"""What cosines mean to the dual encoder that they come from.

CLIP learns a factor, SigLIP a factor and an offset, which turn a cosine into a logit: of a softmax
over the sentences that are compared (CLIP), or of a pair on its own (SigLIP). Ranking does not need
them, since they change no order; people read a probability more easily than a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from aoq.errors import UserError
from aoq.parsing import shown


@dataclass(frozen=True)
class Logits:
    """Turns cosines into logits: scale * cosine + bias.

    >>> round(Logits(scale=10.0, bias=-2.0).of_pair(0.2), 3)
    0.5
    >>> [round(share, 3) for share in Logits(scale=10.0).among([0.2, 0.1])]
    [0.731, 0.269]
    """

    scale: float
    bias: float | None = None
    "None: logits are those of a softmax, and mean nothing for a pair on its own."

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Read what `as_dict` of a dataclass wrote; raise a `UserError` for anything else."""
        if isinstance(fields, dict) and set(fields) == {"scale", "bias"}:
            scale, bias = fields["scale"], fields["bias"]
            if isinstance(scale, float) and isinstance(bias, float | None):
                return cls(scale, bias)
        raise UserError(f"{shown(fields)} are not logits; expected a scale and a bias.")

    def of_pair(self, score: float) -> float | None:
        """Return the probability that a pair belongs together, if the model has one."""
        if self.bias is None:
            return None
        return float(_sigmoid(self.scale * score + self.bias))

    def score_of(self, probability: float) -> float:
        """Return the score of a pair with this probability.

        >>> round(Logits(scale=10.0, bias=-2.0).score_of(0.5), 3)
        0.2
        """
        return float((np.log(probability / (1 - probability)) - (self.bias or 0)) / self.scale)

    def among(self, scores: Sequence[float]) -> list[float]:
        """Return the probabilities of some sentences for one photo.

        Those of a softmax sum to 1: one of the sentences is taken to be right.
        """
        logits = self.scale * np.array(scores, dtype=np.float64)
        if self.bias is not None:
            return [float(share) for share in _sigmoid(logits + self.bias)]
        shares = np.exp(logits - logits.max())
        return [float(share) for share in shares / shares.sum()]


def _sigmoid(logits: Any) -> Any:
    return 0.5 * (1 + np.tanh(logits / 2))
