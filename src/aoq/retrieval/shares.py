"""Indexing by the processes of torchrun: each computes a share and keeps it, then the first writes.

    torchrun --nproc-per-node 4 -m aoq index RUN

What is costly is kept where an index is made from anyway: what a network sees in photos, what a
text tower makes of captions, and encodings of a data set, which mining keeps too. The first process
therefore finds all of it when it writes the index, as if it had been killed just before. A model
that reads photos by a function of its own shares no photos, because these are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aoq.data.dataset import PairDataset
from aoq.disk import is_writable
from aoq.distributed import Processes
from aoq.features.extract import extract_pictures
from aoq.features.regions import RegionSource
from aoq.retrieval.encoder import QueryEncoder
from aoq.runs.encodings import ScoredSplit, kept_encodings


def extract_in_shares(
    pictures: Sequence[Path], encoder: QueryEncoder, processes: Processes
) -> None:
    """Extract photos into the cache, each process its share; all have to call this."""
    if processes.size == 1:
        return
    source = encoder.known_source
    if isinstance(source, RegionSource):
        extract_pictures(pictures[processes.rank :: processes.size], source)
    processes.barrier()


def encode_in_shares(dataset: PairDataset, encoder: QueryEncoder, processes: Processes) -> None:
    """Encode a split into the run's folder, each process its share; all have to call this."""
    if processes.size == 1 or not dataset.n_texts:
        return
    collator = encoder.trained.collator(dataset, device=encoder.device, processes=processes)
    kept = kept_encodings(encoder.run, dataset, model_hash=encoder.model_hash)
    if is_writable(kept):
        ScoredSplit.encode(
            encoder.run,
            encoder.model,
            collator,
            model_hash=encoder.model_hash,
            on_disk=processes,
        )
