"""Global mining: every image against every text, and the hardest negatives of each kept.

One pass over the score matrix serves both directions (`sweep`); the few anchors whose lists it
left short are ranked again; what several processes found is put together; then the rules against
false negatives that need a finished list are applied (`filters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from aoq.config import MiningConfig
from aoq.errors import UserError
from aoq.mining.candidates import CandidateLists, Provenance
from aoq.mining.direction import BothWays
from aoq.mining.sweep import FullSweep
from aoq.mining.together import Mined, sweep_together
from aoq.processes import ALONE, Processes
from aoq.scoring.blocks import block_size_for
from aoq.scoring.encoded import EncodedDataset
from aoq.scoring.protocol import Scorer
from aoq.types import Positives, require_count

E = TypeVar("E")


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
    """The hardest negatives of every image and text, by one process.

    `captions` are for rules that read them. `block_size` is how many images and texts are scored
    together; otherwise as many as are fast and fit the budget. With several processes, or to go on
    after a kill, use `mine_together`, which also says what the rules dropped.
    """
    mined = mine_together(
        scorer,
        encoded,
        positives,
        config=config,
        provenance=provenance,
        captions=captions,
        block_size=block_size,
    )
    assert mined is not None  # there is one process
    return mined.lists


def mine_together(
    scorer: Scorer[E],
    encoded: EncodedDataset[E],
    positives: Positives,
    *,
    config: MiningConfig,
    provenance: Provenance,
    captions: Sequence[str] | None = None,
    block_size: int | None = None,
    processes: Processes = ALONE,
    saved: Path | None = None,
    save_every: float = 10.0,
) -> Mined | None:
    """As `mine`, each process with its share of the images; the first one gets the lists.

    With a file `saved`, a killed process goes on where it last saved (every `save_every` seconds
    at the most), and ends up with the same lists, bit by bit.
    """
    if captions is not None and len(captions) != positives.n_texts:
        raise UserError(
            f"captions has {len(captions):,} entries; expected {positives.n_texts:,}, one for each "
            "text."
        )
    if block_size is not None:
        require_count("block_size", block_size)
    ways = BothWays.from_config(config, scorer, encoded, positives, captions)
    share = processes.share(positives.n_images)
    if block_size is None:
        block_size = block_size_for(config.memory, encoded, beside=ways.nbytes(share))
    return sweep_together(
        FullSweep(ways.i2t.side, share, *ways.new_lists(share), block_size=block_size),
        ways,
        config=config,
        provenance=provenance,
        processes=processes,
        saved=saved,
        save_every=save_every,
    )
