"""Curves of a run for TensorBoard; nothing is written if it is not installed.

    tensorboard --logdir runs

It shows what `events.jsonl` holds, and the distributions that the log has only quantiles of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.disk import disk_errors
from aoq.types import Floats

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Board:
    """Writes to the TensorBoard folder of a run; without a folder it does nothing.

    A run that was killed goes on from its last saved state and takes the steps after it again.
    So the first step that is written hides whatever was written before from that step on
    (SummaryWriter's `purge_step`); a run that has nothing left to do hides nothing. TensorBoard's
    fast loader overlooks the mark and hides old points curve by curve, as each is written again.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def write(self, step: int, summary: Mapping[str, Any], values: Mapping[str, Floats]) -> None:
        """Write the window of steps that ends with `step`, and all values of a kind in it."""
        if self.folder is None or not summary["steps"]:
            return
        scalars = {f"loss/{name}": value for name, value in summary["loss"].items()}
        scalars |= {f"active/{name}": value for name, value in summary["active"].items()}
        scalars["speed/steps_per_second"] = summary["steps_per_second"]
        scalars |= {
            f"learned/{name}": summary[name] for name in ("temperature", "bias") if name in summary
        }
        if "weights" in summary:
            scalars["weights/below_zero"] = summary["weights"]["below_zero"]
        self._write(step, scalars, {f"distribution/{name}": values[name] for name in values})

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the validation after `step`."""
        if self.folder is not None:
            self._write(step, {f"validation/{name}": metrics[name] for name in metrics}, {})

    def _write(
        self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Floats]
    ) -> None:
        """Write and flush: a kill must not lose steps that are not taken again."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            _silence_writer_threads()
            with disk_errors(Path(str(self.folder))):
                self._writer = SummaryWriter(str(self.folder), purge_step=step)
        with disk_errors(Path(str(self.folder))):
            for tag, value in scalars.items():
                self._writer.add_scalar(tag, value, step)
            for tag, values in histograms.items():
                self._writer.add_histogram(tag, values, step)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with disk_errors(Path(str(self.folder))):
                self._writer.close()


@cache
def _silence_writer_threads() -> None:
    """Print nothing about TensorBoard's threads: its next call raises what failed in them."""
    previous = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            previous(failed)

    threading.excepthook = hook


@contextmanager
def step_board(folder: Path | None) -> Iterator[Board]:
    """Open the board of a run; without TensorBoard it does nothing."""
    board = Board(folder if find_spec("tensorboard") is not None else None)
    try:
        yield board
    finally:
        board.close()
