"""The paper on Flickr8k: what `docs/results.md` is made of.

The definitions are ordinary experiments, which `aoq experiment` can run too. This package adds the
paper's figures and claims (claims/*.toml), judges the claims, draws the paper's figures, and writes
the tables of docs/results.md. It imports aoq; aoq never imports it, and it is not in the wheel.

    python -m reproduction                                  list the experiments
    python -m reproduction table1 --data FOLDER             run or continue one
    python -m reproduction table1 --data FOLDER --report X  its report, with claims and figures
    python -m reproduction all CAPTIONS PICTURES SPLITS     everything, from the photos to the page
    python -m reproduction power                            what the claims' seeds can decide
    python -m reproduction towers-losses --data FOLDER ...  losses on frozen towers
    python -m reproduction details RUN... --data FOLDER     captions with one word swapped
    python -m reproduction page                             docs/results.md from results/
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "flickr8k.jsonl"
Name = Literal["table1", "table3", "small-batch", "table4", "table5", "draws", "ensembles"]
EXPERIMENTS: tuple[Name, ...] = get_args(Name)
TOWER_LOSSES = "towers-losses"
"An experiment on pretrained towers, which its own command names."


def definition_file(name: str) -> Path:
    """Return the definition of an experiment.

    >>> definition_file("table1").name
    'table1.toml'
    """
    return ROOT / "reproduction" / "definitions" / f"{name}.toml"
