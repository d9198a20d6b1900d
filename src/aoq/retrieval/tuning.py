"""What the queries of dev, whose answers are known, have taught about an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aoq.retrieval.calibration import Calibration


@dataclass(frozen=True)
class Tuning:
    """The weight of words, and what scores mean."""

    split: str
    queries: int
    weight: float | None
    "Of words against the model; None if no captions are searched."
    recall: Mapping[str, Mapping[str, float]]
    "Of photos for the texts that were tried: by model, by words, and merged; r1, r5 and r10."
    calibrations: Mapping[str, Calibration]
    "Of photos ranked by model, words, and merged; of texts."

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        calibrations = {
            name: Calibration.from_dict(each) for name, each in fields["calibrations"].items()
        }
        return cls(**fields | {"calibrations": calibrations})
