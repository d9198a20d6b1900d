"""Puts the tables in results/ into pages of docs/ and the README.

On a page, each table stands between two comments, the first of which names its file. Some tables
are derived: the claims, the README's summary and what three seeds can decide, from the recorded
results and their ranks; table 6, from the benchmarks `python -m benchmarks table6
table6-as-published`; those of docs/peers.md, docs/pretrained.md, docs/results-towers.md,
docs/details.md, docs/search.md and docs/training.md, from `python -m reproduction` with peers,
towers, towers-losses, details, words and small-sets.
"""

from __future__ import annotations

import json
import re

from aoq.evaluation.power import DIFFERENCE
from aoq.experiments.comparisons import Contrast
from aoq.experiments.definition import load_definition
from aoq.experiments.forecast import shown_seeds
from aoq.experiments.tables import TextTable, shown_interval
from reproduction import EXPERIMENTS, RESULTS, ROOT, definition_file
from reproduction.claims import load_paper_table
from reproduction.details import detail_tables
from reproduction.forecast import again
from reproduction.grid import all_comparisons, all_rows, verdicts_of
from reproduction.peers.tables import peer_heads, peer_tables
from reproduction.small_sets import small_set_table, small_set_tables
from reproduction.tower_losses import tower_loss_tables
from reproduction.towers import tower_table
from reproduction.verdicts import claims_section
from reproduction.words import precision_table, word_table

_DOCS = (
    *("results.md", "results-towers.md", "details.md", "peers.md", "pretrained.md"),
    *("search.md", "training.md"),
)
PAGES = (*(ROOT / "docs" / name for name in _DOCS), ROOT / "README.md")
_FULL = " + AdapOffQuin"
_SMALL = ("CCA", "BOW", "SCAN", "BFAN", "VSE")
_HEADS = "heads on frozen towers"
_TOWERS = (_HEADS, "and the last two blocks of the text tower")
_PEER = "sentence-transformers: MNRL, batch 512, dropout"
_INCLUDED = re.compile(r"(<!-- (results/\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_pages() -> None:
    """Write the derived tables, and put all tables into the pages."""
    for name, table in made_tables().items():
        (ROOT / "results" / name).write_text(table, "utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


def made_tables() -> dict[str, str]:
    """Return the tables that are made of other files, by the names of their own."""
    made = {"table6": table6(), "summary": summary(), "errors": errors(), "overview": overview()}
    made |= {"towers": tower_table().markdown()}
    made |= {"words": word_table(), "precision": precision_table()}
    made |= peer_tables() | small_set_tables() | tower_loss_tables() | detail_tables()
    tables = {f"{name}.md": table for name, table in made.items()}
    for name in EXPERIMENTS:
        section = claims_section(verdicts_of(name, RESULTS))
        if section.table is not None:
            place = f"flickr8k-{name}/tables/claims"
            tables |= {f"{place}.md": section.table.markdown(), f"{place}.csv": section.csv}
    return tables


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


def overview() -> str:
    """Show what finds how much on Flickr8k: simple models, the paper's, and pretrained towers."""
    small = {row[0]: row for row in small_set_table("small-sets").rows}
    towers = {row[0]: row for row in tower_table().rows}
    peers = {row[0]: row for row in peer_heads().rows}
    rows = [small[label][:-1] for label in _SMALL if label in small]
    if _PEER in peers:
        rows.append((f"{_HEADS}, by sentence-transformers", "", *peers[_PEER][1:-2]))
    rows += [towers[label][:-1] for label in _TOWERS if label in towers]
    headings = ("recipe", "seeds", "dev rsum", "test rsum", "i2t R@1", "t2i R@1")
    return TextTable(("", *headings), rows).markdown()


def summary() -> str:
    """Show rsum of the three models with the four losses, and what all of Eq. 5 adds."""
    rows = {row.label: row for row in all_rows(RESULTS)["table1"]}
    paper = load_paper_table("table1", load_definition(definition_file("table1"))).rsum
    losses = ("", " + OffTri", " + OffQuin", _FULL)
    table = []
    for model in ("VSRN", "BFAN", "SCAN"):
        labels = [model + loss for loss in losses]
        contrast = Contrast([rows[labels[-1]]], [rows[labels[0]]])
        found = all_comparisons(RESULTS).compare(contrast)
        assert found is not None
        cells = [f"{rows[label].spreads['rsum'].mean:.1f}" for label in labels]
        gain = f"{found.effect.value:+.1f} {shown_interval(found.effect.interval())}"
        table.append((model, *cells, gain, f"{paper[labels[-1]] - paper[labels[0]]:+.1f}"))
    names = ("online", "OffTri", "OffQuin", "AdapOffQuin", "more than online", "paper, on COCO")
    return TextTable(("", *names), table).markdown()


def errors() -> str:
    """Show how much trainings of each model differ, and what that lets three seeds decide."""
    table = []
    for model in ("VSRN", "BFAN", "SCAN"):
        first = next(row for row in all_rows(RESULTS)["table1"] if row.label == model)
        last = next(row for row in all_rows(RESULTS)["table1"] if row.label == f"{model}{_FULL}")
        error = all_comparisons(RESULTS).run_error(first.group)
        found = all_comparisons(RESULTS).compare(Contrast([last], [first]))
        assert error is not None
        assert found is not None
        design = again(found)
        table.append(
            (
                model,
                f"{error.variance.value**0.5:.1f}",
                f"{error.variance.degrees:g}",
                f"{found.effect.error:.1f}",
                f"{design.smallest_difference(seeds=3):.1f}",
                f"{design.smallest_bound(seeds=3):.1f}",
                shown_seeds(design.seeds_for(DIFFERENCE)),
            )
        )
    headings = (
        *("", "deviation of a training", "degrees of freedom", "error of a gain, three seeds"),
        *("finds", "shows as equal within", f"to find {DIFFERENCE:g}"),
    )
    return TextTable(headings, table).markdown()
