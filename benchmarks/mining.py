"""Mining with an embedding model, both directions at once.

Against the bare matrix product of the same blocks (what no mining can beat), a loop over the
anchors one at a time, in single and in double precision (that of the published evaluation, whose
arrays are those of `np.zeros`), and faiss' exact index searched once from either side. Then what
COCO's training set would take: a slice of its images against all its texts, encodings on disk,
under a budget of memory; and what each of two processes takes of the work of one.

Vectors are random and of unit length; a text's is its image's with as much noise, so that the
texts of an image score alike, as real ones do.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from aoq.config import MiningConfig
from aoq.distributed import join_processes
from aoq.mining.candidates import Provenance
from aoq.mining.mine import mine, mine_in_processes
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.encoding_files import PIECE_SIZE, open_stored
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding, Positives
from benchmarks.harness import Comparison, Task, memory_now

DEPTH_TEXTS, DEPTH_IMAGES = 300, 60
BLOCK = 1024
NOBODY = Provenance(teacher="", data="")
COCO_IMAGES, COCO_TEXTS, COCO_WIDTH, COCO_SLICE = 113_287, 566_435, 2048, 4_096


@dataclass(frozen=True)
class Size:
    """Images, texts and width; a slice of a set that has more images, where `of` says how many.

    A baseline that goes through the images for every text is slower per image if there are more
    of them than the processor's cache holds. So on a slice it goes through all images of the
    set, for as many texts fewer.
    """

    images: int
    texts: int
    width: int
    of: int = 0

    def __str__(self) -> str:
        slice_of = f" (a slice of {self.of:,} x {self.texts:,})" if self.of else ""
        return f"{self.images:,} x {self.texts:,}{slice_of}, D {self.width}"

    @property
    def whole(self) -> Size:
        return replace(self, images=self.of, of=0) if self.of else self

    def texts_of_share(self, share: float) -> int:
        """The texts that a baseline takes on, which meets all images of the set."""
        return round(self.texts * share * self.images / self.whole.images)

    def vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(0)
        images = torch.randn(self.images, self.width, generator=random)
        texts = torch.randn(self.texts, self.width, generator=random)
        texts += images[torch.arange(self.texts) * self.images // self.texts]
        for part in (images, texts):
            part /= part.norm(dim=1, keepdim=True)
        return images, texts

    def positives(self) -> Positives:
        ids = np.arange(self.texts)
        pairs = np.stack([ids * self.images // self.texts, ids], axis=1)
        return Positives.from_pairs(pairs, n_images=self.images, n_texts=self.texts)


SIZES = [
    Size(6_000, 30_000, 1024),
    Size(6_000, 30_000, 2048),
    Size(4_096, 145_000, 1024, of=29_000),
    Size(4_096, 145_000, 2048, of=29_000),
]


def mining_task(size: Size, images: torch.Tensor, texts: torch.Tensor) -> Task:
    encoded = EncodedDataset(Encoding(images), Encoding(texts))
    config = MiningConfig(depth_texts=DEPTH_TEXTS, depth_images=DEPTH_IMAGES)
    positives = size.positives()
    return lambda: mine(InnerProduct(), encoded, positives, config=config, provenance=NOBODY)


def bare_product(size: Size) -> tuple[Task, Task]:
    images, texts = size.vectors()

    def product() -> None:
        for rows in ranges(len(images), BLOCK):
            for columns in ranges(len(texts), BLOCK):
                torch.mm(images[rows], texts[columns].T)

    return mining_task(size, images, texts), product


ROW_SHARE, FAISS_SHARE = 1 / 200, 1 / 4


def one_at_a_time(size: Size, *, dtype: torch.dtype = torch.float32) -> tuple[Task, Task]:
    ours = mining_task(size, *size.vectors())
    images, texts = (vectors.to(dtype) for vectors in size.vectors())
    all_images = size.whole.vectors()[0].to(dtype)
    positives, all_positives = size.positives(), size.whole.positives()

    def loop() -> list[torch.Tensor]:
        lists = []
        for image in range(round(size.images * ROW_SHARE)):
            scores = texts @ images[image]
            scores[torch.from_numpy(positives.texts_of(image))] = -torch.inf
            lists.append(scores.argsort(descending=True)[:DEPTH_TEXTS])
        for text in range(size.texts_of_share(ROW_SHARE)):
            scores = all_images @ texts[text]
            scores[torch.from_numpy(all_positives.images_of(text))] = -torch.inf
            lists.append(scores.argsort(descending=True)[:DEPTH_IMAGES])
        return lists

    return ours, loop


def faiss_both_ways(size: Size) -> tuple[Task, Task]:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    images, texts = size.vectors()
    all_images, _ = size.whole.vectors()
    n_positives = -(-size.texts // size.images)
    some_images = images[: round(size.images * FAISS_SHARE)]
    some_texts = texts[: size.texts_of_share(FAISS_SHARE)]

    def search() -> None:
        """Deep enough that enough is left when the positives are taken out, which is not timed."""
        for candidates, anchors, depth in (
            (texts, some_images, DEPTH_TEXTS + n_positives),
            (all_images, some_texts, DEPTH_IMAGES + 1),
        ):
            index = faiss.IndexFlatIP(size.width)
            index.add(candidates.numpy())
            index.search(anchors.numpy(), depth)

    return mining_task(size, images, texts), search


BASELINES: list[tuple[str, str, Callable[[Size], tuple[Task, Task]], float]] = [
    ("bare product", f"torch.mm of the same blocks, {BLOCK} x {BLOCK}", bare_product, 1.0),
    ("one at a time", "each anchor on its own, full sort", one_at_a_time, ROW_SHARE),
    (
        "one at a time in double",
        "each anchor on its own, full sort, in the double precision of the published evaluation",
        partial(one_at_a_time, dtype=torch.float64),
        ROW_SHARE,
    ),
    ("faiss", "IndexFlatIP, searched from both sides", faiss_both_ways, FAISS_SHARE),
]


@dataclass(frozen=True)
class CocoSlice:
    """A slice of COCO's images against all its texts, from disk, and the whole by proportion."""

    name: str = "COCO"
    memory: str = "4GiB"

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            _write_encodings(Path(folder))
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
                seconds, peak = pool.submit(_mine_stored, Path(folder), self.memory).result()
        whole = seconds * COCO_IMAGES / COCO_SLICE
        # The slice has all texts' lists, but only its own images'.
        missing = (COCO_IMAGES - COCO_SLICE) * 8 * (2 * DEPTH_TEXTS + 32 + DEPTH_TEXTS) / 2**20
        rate = 2 * COCO_SLICE * COCO_TEXTS * COCO_WIDTH / seconds / 1e9
        return {
            "name": self.name,
            "what": f"{COCO_SLICE:,} of {COCO_IMAGES:,} images x {COCO_TEXTS:,} texts, "
            f"D {COCO_WIDTH}, encodings on disk, --memory {self.memory}",
            "seconds": round(seconds, 1),
            "gflops": round(rate, 1),
            "whole_seconds": round(whole),
            "process_mib": round(peak, 1),
            "whole_process_mib": round(peak + missing, 1),
            "sentence": f"{seconds:.0f} s for the slice ({rate:.0f} GFLOPS), so {whole:,.0f} s for "
            f"the whole set; process {peak:,.0f} MiB, {peak + missing:,.0f} MiB with all lists",
        }


def _write_encodings(folder: Path) -> None:
    random = torch.Generator().manual_seed(0)
    for kind, count in (("images", COCO_SLICE), ("texts", COCO_TEXTS)):
        for number, rows in enumerate(ranges(count, PIECE_SIZE)):
            vectors = torch.randn(rows.stop - rows.start, COCO_WIDTH, generator=random)
            vectors /= vectors.norm(dim=1, keepdim=True)
            save_file({"vectors": vectors}, folder / f"{kind}-{number:05}.safetensors")


def _mine_stored(folder: Path, memory: str) -> tuple[float, float]:
    """Seconds, and the peak of the whole process in MiB."""
    encoded = open_stored(folder, COCO_SLICE, COCO_TEXTS)
    positives = Size(COCO_SLICE, COCO_TEXTS, COCO_WIDTH).positives()
    config = MiningConfig(depth_texts=DEPTH_TEXTS, depth_images=DEPTH_IMAGES, memory=memory)
    started = time.perf_counter()
    mine(InnerProduct(), encoded, positives, config=config, provenance=NOBODY)
    seconds = time.perf_counter() - started
    return seconds, memory_now("VmHWM")


@dataclass(frozen=True)
class TwoProcesses:
    """The processor time of each of two processes, by that of one that does it all."""

    size: Size
    name: str = "two processes"
    port: int = 29_517

    def run(self) -> dict[str, Any]:
        (alone,) = self._seconds(1)
        shared = self._seconds(2)
        shares = [round(seconds / alone, 3) for seconds in shared]
        return {
            "name": self.name,
            "what": f"{self.size}, processor seconds of mining and gathering, one thread each",
            "seconds": [round(seconds, 2) for seconds in shared],
            "alone_seconds": round(alone, 2),
            "shares": shares,
            "sentence": f"{shares[0]:.0%} and {shares[1]:.0%} of the processor time of one process",
        }

    def _seconds(self, count: int) -> list[float]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=count, mp_context=context) as pool:
            work = partial(_processor_seconds, self.size, count, self.port)
            return list(pool.map(work, range(count)))


def _processor_seconds(size: Size, count: int, port: int, rank: int) -> float:
    """What mining takes in one of several processes, joined as torchrun joins them."""
    torch.set_num_threads(1)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "benchmark",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
    }
    images, texts = size.vectors()
    encoded = EncodedDataset(Encoding(images), Encoding(texts))
    config = MiningConfig(depth_texts=DEPTH_TEXTS, depth_images=DEPTH_IMAGES)
    positives = size.positives()
    few = Size(8, 40, 8)
    mining_task(few, *few.vectors())()  # what is imported and compiled once is not the work
    with join_processes() as processes:
        started = time.process_time()
        mine_in_processes(
            InnerProduct(),
            encoded,
            positives,
            config=config,
            provenance=NOBODY,
            processes=processes,
        )
        return time.process_time() - started


COMPARISONS = [
    Comparison(
        name=f"mining, {size}, {name}",
        what=f"both lists ({DEPTH_TEXTS} texts, {DEPTH_IMAGES} images) of {size}",
        baseline=baseline,
        setup=partial(setup, size),
        repeats=7 if setup is bare_product and size.texts == 30_000 else 3,
        baseline_share=share,
    )
    for size in SIZES
    for name, baseline, setup, share in BASELINES
]
SCALE: list[CocoSlice | TwoProcesses] = [TwoProcesses(SIZES[0]), CocoSlice()]
