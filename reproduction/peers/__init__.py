"""aoq beside sentence-transformers on the same towers: what `docs/peers.md` is made of.

Both libraries train the same heads (and in the second set-up the same text tower) from the same
weights, on the same vectors of the photos, for as many pairs, on one thread, and both are judged by
the same code. Everything else is as each library recommends: its own batches, loss, mining of hard
negatives and training loop. `rows` states the trainings, `own` and `peer` carry them out, `compare`
runs and records them, and `tables` shows the records.

    python -m reproduction peers --data FOLDER --image FOLDER --text FOLDER
"""

from __future__ import annotations

from reproduction import ROOT

PEER_RESULTS = ROOT / "results" / "peers.jsonl"
