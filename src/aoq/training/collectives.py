"""The processes that share the steps of a training, and what they exchange.

    torchrun --nproc-per-node 4 -m aoq run RECIPE ...

Each process reads and encodes its share of the batch's pairs, and scores its images against the
texts of all. The scores are gathered, so that every process computes the loss of the whole batch;
gradients flow back through what was gathered. Summed over the processes these are the gradients
of as many copies of the loss, so their mean is what one process would have got by itself. Batch
norm and dropout are the exception: they act on the share.

lightning-fabric does the rest: devices, mixed precision, gloo or NCCL.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.functional import pad

from aoq.distributed import Processes
from aoq.scoring.protocol import TrainableModel
from aoq.types import Encoding

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class Collectives:
    """What this process exchanges with those that share its steps; often it is alone."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.processes = Processes(fabric.global_rank, fabric.world_size)

    @property
    def is_alone(self) -> bool:
        return self.processes.size == 1

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Gather the rows of all processes, in order; each has its share of `total`."""
        if self.is_alone:
            return rows
        longest = -(-total // self.processes.size)
        padded = pad(rows, (0, 0) * (rows.ndim - 1) + (0, longest - len(rows)))
        with warnings.catch_warnings():  # torch would have fabric call it by another name
            warnings.filterwarnings("ignore", "torch.distributed.nn.functional.all_gather")
            gathered = self.fabric.all_gather(padded, sync_grads=rows.requires_grad)
        shares = (self.processes.share(total, rank) for rank in range(self.processes.size))
        lengths = [share.stop - share.start for share in shares]
        return torch.cat([part[:length] for part, length in zip(gathered, lengths, strict=True)])

    def gather_encoding(self, encoding: Encoding, total: int) -> Encoding:
        """Gather the encodings of all processes, in order; words are padded to the longest text."""
        if self.is_alone:
            return encoding
        vectors, mask = encoding.vectors, encoding.mask
        if mask is None:
            return Encoding(self.gather(vectors, total))
        missing = self._max(mask.shape[1]) - mask.shape[1]
        vectors, mask = pad(vectors, (0, 0, 0, missing)), pad(mask, (0, missing))
        return Encoding(self.gather(vectors, total), self.gather(mask.byte(), total).bool())

    def share_weights(self, model: TrainableModel | nn.Module) -> None:
        """Give every process the weights of the first."""
        if not self.is_alone:
            for value in model.state_dict().values():
                torch.distributed.broadcast(value, src=0)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over all processes, sent as one message."""
        if self.is_alone:
            return
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in learned:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        mean = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, mean.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def mean(self, value: Tensor) -> Tensor:
        """Average a value over all processes, without gradients."""
        if self.is_alone:
            return value.detach()
        mean = self.fabric.all_reduce(value.detach().clone(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set in some process; all get the same answer."""
        return bool(self.mean(torch.tensor(float(flag), device=self.fabric.device)) > 0)

    def _max(self, value: int) -> int:
        """Return the largest value of all processes."""
        largest = self.fabric.all_reduce(
            torch.tensor(value, device=self.fabric.device), reduce_op="max"
        )
        assert isinstance(largest, Tensor)
        return int(largest)

    def from_first(self, value: T | None) -> T:
        """Send a value of the first process to all of them."""
        return self.fabric.broadcast(value)  # type: ignore[return-value]


def start_fabric(
    device: torch.device, precision: Literal["auto", "float32", "bfloat16"] = "float32"
) -> Fabric:
    """Set up this process, alone or one of those that torchrun started, on one kind of device."""
    from lightning_fabric import Fabric  # takes as long as torch itself
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    mixed = has_bfloat16 if precision == "auto" else precision == "bfloat16"
    is_one_of_many = "TORCHELASTIC_RUN_ID" in os.environ
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if is_one_of_many else 1
    fabric = Fabric(
        accelerator=device.type,
        devices=local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // local if is_one_of_many else 1,
        strategy="ddp" if is_one_of_many else "auto",
        precision="bf16-mixed" if mixed else "32-true",
        # Else it would look for processes of a cluster's own, which torchrun is there to start.
        plugins=None if is_one_of_many else LightningEnvironment(),
    )
    fabric.launch()
    return fabric
