"""Puts the tables in results/ into pages of docs/ and the README.

On a page, each table stands between two comments, the first of which names its file. Some tables
are derived: the summary in the README, from other tables; table 6, from the benchmarks
`python -m benchmarks table6 table6-as-published`; those of docs/peers.md, docs/pretrained.md,
docs/search.md and docs/training.md, from `python -m reproduction` with peers, towers, words and
small-sets.
"""

from __future__ import annotations

import csv
import json
import re

from aoq.experiments.definition import load_definition
from aoq.experiments.tables import TextTable
from reproduction import ROOT, definition_file
from reproduction.claims import load_paper_table
from reproduction.peers.tables import peer_tables
from reproduction.small_sets import small_set_tables
from reproduction.towers import tower_table
from reproduction.words import precision_table, word_table

_DOCS = ("results.md", "peers.md", "pretrained.md", "search.md", "training.md")
PAGES = (*(ROOT / "docs" / name for name in _DOCS), ROOT / "README.md")
_INCLUDED = re.compile(r"(<!-- (results/\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_pages() -> None:
    """Write the derived tables, and put all tables into the pages."""
    for name, table in made_tables().items():
        (ROOT / "results" / f"{name}.md").write_text(table, "utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


def made_tables() -> dict[str, str]:
    """Return the tables that are made of other files, by the names of their own."""
    return {
        "table6": table6(),
        "summary": summary(),
        "towers": tower_table(),
        "words": word_table(),
        "precision": precision_table(),
        **peer_tables(),
        **small_set_tables(),
    }


def with_tables(page: str) -> str:
    """Replace the tables of a page by the content of their files."""
    return _INCLUDED.sub(
        lambda found: f"{found[1]}\n{(ROOT / found[2]).read_text('utf-8').strip()}\n\n{found[3]}",
        page,
    )


def table6() -> str:
    """Compare the seconds of a batch with the paper's."""
    files = [ROOT / f"benchmarks/results/{name}.json" for name in ("table6", "table6-as-published")]
    measured = [part for file in files for part in json.loads(file.read_text("utf-8"))["results"]]
    lines = []
    for label, row in measured[0]["rows"].items():
        cells = [part["rows"][label] for part in measured]
        seconds = [f"{cell['seconds']:.3g} s, {cell['ratio']:.2f}" for cell in cells]
        lines.append((label, *seconds, f"{row['paper_seconds']:.3g} s, {row['paper_ratio']:.2f}"))
    return TextTable(("", *(part["what"] for part in measured), "paper"), lines).markdown()


def summary() -> str:
    """Show rsum of the three models with the four losses."""
    file = ROOT / "results" / "flickr8k-table1" / "tables" / "rows.csv"
    with file.open(encoding="utf-8") as lines:
        rows = {row["row"]: row for row in csv.DictReader(lines)}
    paper = load_paper_table("table1", load_definition(definition_file("table1"))).rsum
    losses = ("", " + OffTri", " + OffQuin", " + AdapOffQuin")
    table = []
    for model in ("VSRN", "BFAN", "SCAN"):
        labels = [model + loss for loss in losses]
        more, low, high = (
            float(rows[labels[-1]][f"rsum_more{end}"]) for end in ("", "_low", "_high")
        )
        cells = [f"{float(rows[label]['rsum']):.1f}" for label in labels]
        gain = f"{more:+.1f} [{low:.1f}, {high:.1f}]"
        table.append((model, *cells, gain, f"{paper[labels[-1]] - paper[labels[0]]:+.1f}"))
    names = ("online", "OffTri", "OffQuin", "AdapOffQuin", "more than online", "paper, on COCO")
    return TextTable(("", *names), table).markdown()
