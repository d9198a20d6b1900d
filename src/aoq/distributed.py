"""The device and the processes that compute, as torchrun starts them, each with its share.

    torchrun --nproc-per-node 4 -m aoq mine RUN

Without torchrun there is one process, and this module has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from aoq.errors import UserError
from aoq.progress import be_silent
from aoq.storage import locked, remove_leftovers

Number = TypeVar("Number", bound=np.generic)
# torchrun ends dead processes; a process that waits for a slower one must not give up.
_PATIENCE = timedelta(days=7)


def default_device() -> str:
    """Return the device for models if none is given."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def share(total: int, part: int, parts: int) -> slice:
    """Return one of `parts` consecutive slices of 0..total, as even as possible."""
    return slice(total * part // parts, total * (part + 1) // parts)


@dataclass(frozen=True)
class Processes:
    """This process among those that work together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, total: int, rank: int | None = None) -> slice:
        """Return this process's slice of 0..total, or that of another rank; as even as possible.

        >>> [Processes(rank, 3).share(10) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return share(total, self.rank if rank is None else rank, self.size)

    def barrier(self) -> None:
        """Wait until all processes arrive."""
        if self.size > 1:
            import torch.distributed

            torch.distributed.barrier()

    def first_does(self, work: Callable[[], object]) -> None:
        """Run `work` in the first process while the others wait.

        A UserError is re-raised on every rank.
        """
        problems: list[list[str]] = [[]]
        if self.is_first:
            try:
                work()
            except UserError as error:
                problems = [list(error.problems)]
        if self.size > 1:
            import torch.distributed

            torch.distributed.broadcast_object_list(problems, src=0)
        if problems[0]:
            raise UserError(*problems[0])

    def gather(self, array: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """Gather equally shaped arrays of all processes in the first one; the others get none."""
        if self.size == 1:
            return [array]
        import torch
        import torch.distributed

        sent = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
        received = [torch.empty_like(sent) for _ in range(self.size)] if self.is_first else None
        torch.distributed.gather(sent, received)
        return [part.numpy().view(array.dtype) for part in received or ()]


ALONE = Processes()


@contextmanager
def alone_in(
    folder: Path,
    processes: Processes = ALONE,
    *,
    doing: str = "trained",
    wait: bool = False,
) -> Iterator[None]:
    """Let the first process lock the folder, and remove what a killed process left half done.

    `wait` waits for another writer to end instead of raising an error.
    """
    if not processes.is_first:
        yield
        return
    with locked(folder, doing=doing, wait=wait):
        remove_leftovers(folder)
        yield


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the other processes of torchrun, if there are any; only the first one prints."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    import torch.distributed

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    # Lists live in main memory whatever computes the scores; gradients live where the model is.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        processes = Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
        if not processes.is_first:
            be_silent()
        yield processes
    finally:
        torch.distributed.destroy_process_group()
