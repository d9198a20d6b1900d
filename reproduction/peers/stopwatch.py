"""Times the stages of a training, by the wall's clock and by the processor time of the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Seconds:
    """Other programs on the machine lengthen `wall`, and hardly `cpu`."""

    wall: float
    cpu: float


class Stopwatch:
    """Collects the seconds of stages, by their names."""

    def __init__(self) -> None:
        self.stages: dict[str, Seconds] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage, which is recorded if it ends without an error."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.stages[stage] = Seconds(
            round(time.perf_counter() - wall, 2), round(time.process_time() - cpu, 2)
        )

    def as_dict(self) -> dict[str, dict[str, float]]:
        return {stage: asdict(seconds) for stage, seconds in self.stages.items()}

    def __str__(self) -> str:
        return ", ".join(
            f"{stage} {seconds.wall:.0f} s ({seconds.cpu:.0f} s of the processor)"
            for stage, seconds in self.stages.items()
        )
