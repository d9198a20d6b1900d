"""The tables of docs/peers.md, from the recorded results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aoq.evaluation.seeds import Spread
from aoq.experiments.tables import TextTable
from aoq.storage import read_json_lines
from reproduction.peers import PEER_RESULTS
from reproduction.peers.rows import ROWS, Row, SetupName

Line = Mapping[str, Any]
Lines = Mapping[tuple[str, str, int], Line]
"By set-up, row and seed."
_FIGURES = ("rsum", "i2t_r1", "t2i_r1")
_CLOCKS = ("cpu", "wall")


def peer_tables(results: Path = PEER_RESULTS) -> dict[str, str]:
    """Return the tables by the names of their files."""
    lines = _read(results)
    return {
        "peers-heads": judged_table(lines, "heads").markdown(),
        "peers-text": judged_table(lines, "text").markdown(),
        "peers-tried": tried_table(lines),
    }


def peer_heads(results: Path = PEER_RESULTS) -> TextTable:
    """Show quality and time of the heads on frozen towers."""
    return judged_table(_read(results), "heads")


def judged_table(lines: Lines, setup: SetupName) -> TextTable:
    """Show quality and time of the rows of a set-up, means over the seeds."""
    table = []
    for row in ROWS:
        found = _of(row, lines)
        if row.setup != setup or not row.judged or not found:
            continue
        figures = [[line["dev"]["rsum"] for line in found]]
        figures += [[line["test"][name] for line in found] for name in _FIGURES]
        times = [[_seconds(line, row, lines, clock) for line in found] for clock in _CLOCKS]
        cells = [_shown(values) for values in figures]
        cells += [_shown(seconds, digits=0) for seconds in times]
        table.append((row.label, str(len(found)), *cells))
    headings = ("seeds", "dev rsum", "test rsum", "i2t R@1", "t2i R@1", "processor s", "clock s")
    return TextTable(("", *headings), table)


def tried_table(lines: Lines) -> str:
    """Show on dev, with one seed, what the settings of the peer were chosen from."""
    setups = {row.setup for row in ROWS if not row.judged}
    rows = [row for row in ROWS if row.library != "aoq" and row.setup in setups]
    table = []
    for row in rows:
        for line in _of(row, lines)[:1]:
            dev = (f"{line['dev'][name]:.1f}" for name in _FIGURES)
            table.append((row.label.partition(": ")[2], *dev))
    return TextTable(("", "dev rsum", "i2t R@1", "t2i R@1"), table).markdown()


def _read(results: Path) -> Lines:
    """Read the results of rows as they are; of several of a row and seed, the last."""
    rows = {(row.setup, row.label): row.settings() for row in ROWS}
    return {
        (line["setup"], line["row"], line["seed"]): line
        for line in read_json_lines(results)
        if rows.get((line["setup"], line["row"])) == line["settings"]
    }


def _of(row: Row, lines: Lines) -> Sequence[Line]:
    """Return the results of a row, ordered by seed."""
    found = {seed: line for (*key, seed), line in lines.items() if key == [row.setup, row.label]}
    return [found[seed] for seed in sorted(found)]


def _seconds(line: Line, row: Row, lines: Lines, clock: str) -> float:
    """Return the seconds of all stages, with those of the row whose model mined."""
    own = sum(float(stage[clock]) for stage in line["stages"].values())
    if not row.teacher:
        return own
    teacher = lines[row.setup, row.teacher, line["seed"]]
    return own + sum(float(stage[clock]) for stage in teacher["stages"].values())


def _shown(values: Sequence[float], *, digits: int = 1) -> str:
    """Format the mean over seeds with their deviation."""
    spread = Spread.of(values)
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}"
    return f"{spread.mean:.{digits}f}{deviation}"
