"""Mining and ranking by rounded products, on encodings of a trained model.

    python -m benchmarks.products runs/towers-512 runs/towers-2048

Rounding leaves more or fewer pairs in doubt depending on how scores are spread, so the vectors are
those that `aoq mine` left in the folder of a run. Against the bare float32 product of the same
blocks, turn by turn, on one thread. Seconds are those of the processor, not of the clock: the
machine is shared. The larger size repeats the encodings with noise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file

from aoq.config import MiningConfig, Product
from aoq.evaluation.ranks import pair_ranks_in_blocks
from aoq.mining.finish import MiningResult
from aoq.mining.mine import mine_in_processes
from aoq.scoring.blocks import ranges
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.inner_product import InnerProduct
from aoq.types import Encoding
from benchmarks.harness import save
from benchmarks.mining import BLOCK, NOBODY, Size

TURNS = 3
RANKED = 5_000, 25_000
NOISE = 0.3
PRODUCTS: tuple[Product, ...] = ("float32", "auto")


@dataclass(frozen=True)
class Vectors:
    """The encodings of a run, or a slice of several copies of them with noise."""

    name: str
    images: torch.Tensor
    texts: torch.Tensor

    @classmethod
    def of_run(cls, run: Path) -> Vectors:
        (folder,) = (run / "encodings").iterdir()
        images, texts = (_vectors(folder, kind) for kind in ("images", "texts"))
        return cls(run.name, images, texts)

    def repeated(self, times: int, *, images: int) -> Vectors:
        """Repeat the vectors with noise, at unit length, and keep the first `images` images."""
        random = torch.Generator().manual_seed(0)

        def copies(vectors: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(times, *vectors.shape, generator=random)
            noisy = vectors + NOISE * vectors.shape[1] ** -0.5 * noise
            return torch.nn.functional.normalize(noisy.flatten(0, 1), dim=1)

        name = f"{self.name}, {times} copies with noise"
        return Vectors(name, copies(self.images)[:images].contiguous(), copies(self.texts))

    @property
    def size(self) -> Size:
        return Size(len(self.images), len(self.texts), self.images.shape[1])


def _vectors(folder: Path, kind: str) -> torch.Tensor:
    pieces = sorted(folder.glob(f"{kind}-*.safetensors"))
    return torch.cat([load_file(piece)["vectors"] for piece in pieces])


def seconds_of(tasks: dict[str, Callable[[], Any]]) -> tuple[dict[str, float], dict[str, Any]]:
    """The median of each task's processor seconds, turn by turn, and what it returns."""
    results = {name: task() for name, task in tasks.items()}  # once without the clock
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(TURNS):
        for name, task in tasks.items():
            started = time.process_time()
            task()
            seconds[name].append(time.process_time() - started)
    return {name: round(median(times), 3) for name, times in seconds.items()}, results


def product_of(vectors: Vectors) -> Callable[[], None]:
    """The bare product of the same blocks."""

    def product() -> None:
        for rows in ranges(len(vectors.images), BLOCK):
            for columns in ranges(len(vectors.texts), BLOCK):
                torch.mm(vectors.images[rows], vectors.texts[columns].T)

    return product


def mining(vectors: Vectors) -> dict[str, Any]:
    encoded = EncodedDataset(Encoding(vectors.images), Encoding(vectors.texts))
    positives = vectors.size.positives()

    def mined(product: Product) -> MiningResult | None:
        config = MiningConfig(product=product)
        return mine_in_processes(
            InnerProduct(), encoded, positives, config=config, provenance=NOBODY
        )

    tasks: dict[str, Callable[[], Any]] = {"bare": product_of(vectors)}
    tasks |= {product: partial(mined, product) for product in PRODUCTS}
    seconds, results = seconds_of(tasks)
    exact, fast = results["float32"].lists, results["auto"].lists
    report = results["auto"].product
    pairs = [(exact.i2t, fast.i2t), (exact.t2i, fast.t2i)]
    scores = [(exact.i2t_scores, fast.i2t_scores), (exact.t2i_scores, fast.t2i_scores)]
    return {
        "name": f"mining, {vectors.name}, {vectors.size}",
        "seconds": seconds,
        "by_bare_product": {
            product: round(seconds[product] / seconds["bare"], 3) for product in PRODUCTS
        },
        "chosen": report.product,
        "share_scored": round(report.n_scored / max(report.n_pairs, 1), 5),
        "other_ids": sum(int((one != other).sum()) for one, other in pairs),
        "largest_difference": max(float(abs(one - other).max()) for one, other in scores),
    }


def ranking(vectors: Vectors) -> dict[str, Any]:
    images, texts = vectors.images[: RANKED[0]], vectors.texts[: RANKED[1]]
    some = Vectors(vectors.name, images.contiguous(), texts.contiguous())
    encoded, positives = EncodedDataset(Encoding(images), Encoding(texts)), some.size.positives()

    def ranked(product: Product) -> Any:
        return pair_ranks_in_blocks(InnerProduct(), encoded, positives, product=product)

    tasks: dict[str, Callable[[], Any]] = {"bare": product_of(some)}
    tasks |= {product: partial(ranked, product) for product in PRODUCTS}
    seconds, results = seconds_of(tasks)
    exact, fast = results["float32"], results["auto"]
    return {
        "name": f"ranking, {some.name}, {some.size}",
        "seconds": seconds,
        "by_bare_product": {
            product: round(seconds[product] / seconds["bare"], 3) for product in PRODUCTS
        },
        "other_ranks": int((exact.images != fast.images).sum() + (exact.texts != fast.texts).sum()),
    }


def main() -> None:
    torch.set_num_threads(1)
    results = []
    for run in map(Path, sys.argv[1:]):
        vectors = Vectors.of_run(run)
        for measure, some in (
            (mining, vectors),
            (ranking, vectors),
            (mining, vectors.repeated(5, images=4_096)),
        ):
            results.append(measure(some))
            print(results[-1], flush=True)
    print(save("products", results))


if __name__ == "__main__":
    main()
