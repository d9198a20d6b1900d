"""Global mining: every image against every text, and the hardest negatives of each kept.

A plan says how the lists are to be; one sweep over the score matrix fills both directions; what
the sweeps of all processes found is finished in the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from aoq.config import MiningConfig, Product
from aoq.distributed import ALONE, Processes
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.filters import pair_scores, require_captions
from aoq.mining.finish import MiningResult, finish
from aoq.mining.matches import estimate_matches
from aoq.mining.plan import Plan
from aoq.mining.product import ProductChoice, choose_product
from aoq.mining.rerank import propose
from aoq.mining.sweep import FullSweep, Sweep
from aoq.mining.sweep_file import SweepFile, sweep_key
from aoq.scoring.blocks import block_size_for, evenly_spread
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.precision import rounded, tensor_cores
from aoq.scoring.protocol import Scorer
from aoq.types import Positives, require_count

E = TypeVar("E")
_READ_BY = "estimate_matches reads"
_SAMPLED = 20_000  # named pairs, to estimate matches by


def mine(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    block_size: int | None = None,
) -> CandidateLists:
    """Mine the hardest negatives of every image and text, in one process.

    `captions` are for rules that read them. `block_size` is how many images and texts are scored
    at a time; by default as many as are fast and fit the budget. `mine_in_processes` shares the
    work, continues after a kill, and also returns what the rules dropped.
    """
    result = mine_in_processes(
        scorer,
        encoded,
        positives,
        config=config,
        provenance=provenance,
        captions=captions,
        block_size=block_size,
    )
    assert result is not None  # there is one process
    return result.lists


def mine_in_processes(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    proposals: CandidateLists | None = None,
    block_size: int | None = None,
    processes: Processes = ALONE,
    saved: Path | None = None,
    save_every: float = 10.0,
) -> MiningResult | None:
    """Mine with several processes, each with its share of the images; the first gets the lists.

    With `proposals`, deep lists of another model, only the pairs in them are scored. With a file
    `saved`, a killed process continues where it last saved (at most every `save_every` seconds)
    and ends with the same lists, bit by bit. `captions` and `block_size` are those of `mine`.
    """
    if captions is not None and len(captions) != positives.n_texts:
        raise UserError(
            f"captions has {len(captions):,} entries; expected {positives.n_texts:,}, one for each "
            "text."
        )
    if config.estimate_matches:
        require_captions(captions, _READ_BY)
    if block_size is not None:
        require_count("block_size", block_size)
    plan = Plan.from_config(config, scorer, encoded, positives, captions)
    share = processes.share(positives.n_images)
    sweep: Sweep[E]
    if proposals is not None:
        plan, sweep = propose(plan, encoded, share, proposals=proposals, memory=config.memory)
        provenance = replace(provenance, proposals=proposals.provenance.teacher)
    else:
        if block_size is None:
            block_size = block_size_for(config.memory, encoded, beside=plan.nbytes(share))
        lists = plan.new_lists(share)
        sweep = FullSweep(plan.i2t.matrix, share, *lists, block_size=block_size)
    key = sweep_key(sweep, config, provenance, processes)
    if isinstance(sweep, FullSweep):
        sweep = replace(sweep, choice=_choice(plan, share, config.product, saved, key=key))
    with tensor_cores(config.precision):
        if saved is None:
            for _ in sweep.run(pause=lambda: False):
                pass
        else:
            SweepFile(saved, key, at_least=save_every).run(sweep, loud=processes.is_first)
        rules = tuple(plan.labels.values())
        provenance = replace(provenance, rules=rules, precision=config.precision)
        result = finish(sweep, plan, provenance, processes)
    if result is None or not config.estimate_matches:
        return result
    return _with_matches(result, rounded(scorer, config.precision), encoded, positives, captions)


def _with_matches(
    result: MiningResult,
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    captions: Sequence[str] | None,
) -> MiningResult:
    """Add to each candidate the probability that it is right."""
    rows = evenly_spread(len(positives.pairs), _SAMPLED)
    named = replace(positives, pairs=positives.pairs[rows])
    lists, estimates = estimate_matches(
        result.lists,
        positives,
        require_captions(captions, _READ_BY),
        pair_ids=named.pairs,
        pair_scores=pair_scores(scorer, encoded, named),
    )
    return replace(result, lists=lists, estimates=estimates)


def _choice(
    plan: Plan[E], images: slice, wanted: Product, saved: Path | None, *, key: str
) -> ProductChoice:
    """Choose the product of a sweep; one that continues keeps its choice."""
    file = None if saved is None else saved.with_suffix(".product.json")
    choice = None if file is None else ProductChoice.kept(file, key=key)
    if choice is None:
        choice = choose_product(
            wanted,
            plan.i2t.matrix,
            images,
            depth_texts=plan.i2t.depth,
            depth_images=plan.t2i.depth,
        )
        if file is not None:
            choice.keep(file, key=key)
    return choice
