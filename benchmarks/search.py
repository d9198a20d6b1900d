"""A million vectors of width 512: one query at a time, on two cores, by several engines.

The vectors are synthetic but not noise: mixtures of two photos of Flickr8k as a CLIP sees them, in
random shares, with deviations of the covariance that these photos have around their nearest others.
Queries are photos that are in no mixture, with such deviations. `AOQ_BENCHMARK_VECTORS` names the
data set of these vectors (`aoq data build --backbone`); without it, the photos are drawn too, with
a spectrum that falls. `AOQ_BENCHMARK_COUNT` says how many vectors to make, and
`AOQ_BENCHMARK_THREADS` how many threads to use.

Recall is the share of the exact nearest ten that is found. Each engine is built and asked in a
process of its own, whose memory is measured too; times are of single queries, after some that warm
up. A graph (HNSW) is asked with the smallest breadth that finds 98 % for other queries, as groups
are. autofaiss, which clip-retrieval uses, is measured where it can be imported.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.experiments.results import machine
from aoq.retrieval.engines import TARGET, build_engine, exact_nearest, open_engine, recall_of
from aoq.retrieval.stores.embedded import FlatStore
from aoq.retrieval.vector_ranking import EncodedQuery, VectorRanker
from aoq.scoring.blocks import ranges
from aoq.scoring.encoding_files import copy_rows, open_rows
from aoq.storage import cache_folder
from aoq.types import Encoding, Floats, Ids

VECTORS = os.environ.get("AOQ_BENCHMARK_VECTORS", "")
COUNT = int(os.environ.get("AOQ_BENCHMARK_COUNT", "1_000_000"))
WIDTH = 512
TOP = 10
_QUERIES = 200
_WARM_UP = 20
_HELD_OUT = 200
_CORES = int(os.environ.get("AOQ_BENCHMARK_THREADS", "2"))
_DRAWN = {"train": 6_000, "dev": 1_000, "test": 1_000}
_BLOCK = 50_000

Ask = Callable[[Floats], Ids]


def place() -> Path:
    kind = "photos" if VECTORS else "drawn"
    return cache_folder() / "benchmarks" / f"vectors-{kind}-{COUNT}"


def make_vectors() -> Path:
    """Write the vectors as an index does, and the queries beside them."""
    folder = place()
    if (folder / "queries.npy").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    photos, others = photos_of("train"), photos_of("test")
    deviate = deviations(photos, random)
    blocks = []
    for block in ranges(COUNT, _BLOCK):
        size = block.stop - block.start
        share = random.uniform(0.5, 1.0, (size, 1)).astype(np.float32)
        first, second = random.integers(0, len(photos), (2, size))
        mixed = share * photos[first] + (1 - share) * photos[second]
        blocks.append(unit(mixed + deviate(size)))
    rows = Encoding(torch.from_numpy(np.concatenate(blocks)))
    copy_rows(rows, torch.arange(COUNT), folder, "images")
    queries = unit(others[:_QUERIES] + deviate(_QUERIES))
    np.save(folder / "exact.npy", exact_nearest(rows, queries, top=TOP))
    np.save(folder / "queries.npy", queries)
    return folder


def photos_of(split: str) -> Floats:
    """Read the vectors of photos, or draw some around a common direction, as a CLIP's are."""
    if VECTORS:
        return unit(np.load(Path(VECTORS, f"{split}.features.npy")).astype(np.float32).squeeze())
    random = np.random.default_rng([7, *split.encode()])
    scale = (np.arange(WIDTH, dtype=np.float32) + 5) ** -0.5
    drawn = random.standard_normal((_DRAWN[split], WIDTH), np.float32) * scale
    drawn[:, -1] += np.linalg.norm(scale)
    return unit(drawn)


def deviations(photos: Floats, random: np.random.Generator) -> Callable[[int], Floats]:
    """Return what draws differences of the covariance of photos and their nearest others."""
    similar = photos @ photos.T
    np.fill_diagonal(similar, -1)
    spread = (photos - photos[similar.argmax(axis=1)]) / np.sqrt(2)
    values, axes = np.linalg.eigh(np.cov(spread.T))
    scale = (axes * np.sqrt(values.clip(0))).astype(np.float32)
    return lambda size: random.standard_normal((size, len(scale)), np.float32) @ scale.T


def unit(vectors: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / lengths).astype(np.float32)


def all_vectors() -> Floats:
    vectors: Floats = open_rows(place(), "images", COUNT)[:].vectors.numpy()
    return vectors


# Engines: each builds, and returns what asks


def aoq_groups() -> Ask:
    """Group the vectors, measure how many groups to visit, and open the file that results."""
    rows, keys = open_rows(place(), "images", COUNT), np.arange(COUNT)
    path = place() / "images.ivf"
    record = build_engine(rows, keys, photos_of("dev"), path, asked_with="images")
    return _ranking(VectorRanker(open_engine(path, record, rows, keys), keys))


def aoq_flat() -> Ask:
    return _ranking(VectorRanker(FlatStore.of_rows(open_rows(place(), "images", COUNT))))


def faiss_flat() -> Ask:
    import faiss

    index: Any = faiss.IndexFlatIP(WIDTH)
    index.add(all_vectors())
    return lambda queries: np.asarray(index.search(queries, TOP)[1])


def faiss_ivf(*, probes: int) -> Ask:
    """Build an IVF by hand, as many guides do: 4,096 lists, the default training."""
    import faiss

    index: Any = faiss.index_factory(WIDTH, "IVF4096,Flat", faiss.METRIC_INNER_PRODUCT)
    vectors = all_vectors()
    index.train(vectors[:: max(1, COUNT // 160_000)])
    index.add(vectors)
    index.nprobe = probes
    return lambda queries: np.asarray(index.search(queries, TOP)[1])


def faiss_hnsw(*, vectors: str) -> Ask:
    """Build a graph of 32 neighbours, and ask it as broadly as finds 98 % for other queries."""
    import faiss

    index: Any = faiss.index_factory(WIDTH, f"HNSW32,{vectors}", faiss.METRIC_INNER_PRODUCT)
    graph: Any = index.hnsw
    graph.efConstruction = 100
    own = all_vectors()
    index.train(own[:: max(1, COUNT // 50_000)])
    index.add(own)
    held_out = photos_of("dev")[:_HELD_OUT]
    exact = exact_nearest(Encoding(torch.from_numpy(own)), held_out, top=TOP)
    del own
    graph.efSearch = 16
    while recall_of(index.search(held_out, TOP)[1], exact) < TARGET and graph.efSearch < 4_096:
        graph.efSearch = graph.efSearch * 3 // 2
    return lambda queries: np.asarray(index.search(queries, TOP)[1])


def autofaiss() -> Ask:
    """Let autofaiss choose as clip-retrieval lets it."""
    import autofaiss

    index, _ = autofaiss.build_index(
        embeddings=all_vectors(), save_on_disk=False, metric_type="ip", max_index_memory_usage="4GB"
    )
    return lambda queries: np.asarray(index.search(queries, TOP)[1])


def dot_product() -> Ask:
    vectors = all_vectors()

    def ask(queries: Floats) -> Ids:
        scores = queries @ vectors.T
        nearest = np.argpartition(-scores, TOP, axis=1)[:, :TOP]
        return np.asarray(nearest)

    return ask


def _ranking(ranker: VectorRanker) -> Ask:
    def ask(queries: Floats) -> Ids:
        return ranker.rank(EncodedQuery(Encoding(torch.from_numpy(queries))), top=TOP).ids

    return ask


@dataclass(frozen=True)
class Engine:
    """An engine, and its figures in a process of its own."""

    name: str
    what: str
    build: Callable[[], Ask]

    def run(self) -> dict[str, Any]:
        make_vectors()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            try:
                figures = pool.submit(_measure, self.build).result()
            except ImportError as error:
                return {"name": self.name, "sentence": f"is not measured: {error}"}
        sentence = (
            f"built in {figures['build_seconds']:.0f} s "
            f"({figures['processor_build_seconds']:.0f} s of the processor); "
            f"p50 {figures['p50_ms']:.1f} ms, p95 {figures['p95_ms']:.1f} ms "
            f"({figures['processor_p95_ms']:.1f} ms of the processor); "
            f"recall {figures['recall']:.4f}; "
            f"{figures['memory_mib']:,} MiB"
        )
        return {
            "name": self.name,
            "what": self.what,
            "sentence": sentence,
            "vectors": COUNT,
        } | figures


def _measure(build: Callable[[], Ask]) -> dict[str, Any]:
    import faiss

    torch.set_num_threads(_CORES)
    faiss.omp_set_num_threads(_CORES)
    started, spent = time.perf_counter(), time.process_time()
    ask = build()
    built, spent_to_build = time.perf_counter() - started, time.process_time() - spent
    queries, exact = np.load(place() / "queries.npy"), np.load(place() / "exact.npy")
    for query in queries[:_WARM_UP]:
        ask(query[None])
    times, cpu, found = [], [], []
    for query in queries:
        begun, spent = time.perf_counter(), time.process_time()
        found.append(ask(query[None])[0])
        times.append(1000 * (time.perf_counter() - begun))
        cpu.append(1000 * (time.process_time() - spent))
    return {
        "build_seconds": round(built, 1),
        "processor_build_seconds": round(spent_to_build, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
        "processor_p95_ms": round(float(np.percentile(cpu, 95)), 2),
        "recall": round(recall_of(np.stack(found), exact), 4),
        "memory_mib": _resident(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "load": round(os.getloadavg()[0], 1),
        "machine": machine(),
    }


def _resident() -> int:
    """Memory of this process, without that of the files it maps."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) // 1024


COMPARISONS = [
    Engine("aoq", "groups of 8-bit vectors, re-scored exactly", aoq_groups),
    Engine("aoq-exact", "all vectors in memory, re-scored in double precision", aoq_flat),
    Engine("faiss-flat", "plain IndexFlatIP", faiss_flat),
    Engine("faiss-ivf-16", "plain IVF4096,Flat visiting 16", partial(faiss_ivf, probes=16)),
    Engine("faiss-ivf-64", "plain IVF4096,Flat visiting 64", partial(faiss_ivf, probes=64)),
    Engine("faiss-hnsw", "plain HNSW32,Flat at 98 %", partial(faiss_hnsw, vectors="Flat")),
    Engine("faiss-hnsw-8bit", "plain HNSW32,SQ8 at 98 %", partial(faiss_hnsw, vectors="SQ8")),
    Engine("autofaiss", "what clip-retrieval builds", autofaiss),
    Engine("numpy", "a dot product with all vectors", dot_product),
]
