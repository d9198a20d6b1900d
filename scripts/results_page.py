"""docs/results.md: what came of the experiments on Flickr8k.

    .venv/bin/python scripts/results_page.py flickr8k-table1 --data data/flickr8k --out runs/f8k

The named experiments are reported anew from results/flickr8k.jsonl: their tables and figures go to
results/NAME, without the page and the photographs, whose pictures are not ours to publish. The
lines and the ranks beside them are enough for all but the scores of the pair classes and the share
of online negatives, which are left as they are where the runs are not there. Then each table of
docs/results.md, between two comments of which one names its file, is put in again, as are the
README's; table 6 is what `python -m benchmarks table6 table6-as-published` measured. Without names
only that is done.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from aoq.experiments.definitions import shipped_definitions
from aoq.experiments.report.page import report_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "results.md", ROOT / "README.md"]
RESULTS = ROOT / "results" / "flickr8k.jsonl"
EXPERIMENTS = [name for name in shipped_definitions() if name.startswith("flickr8k-")]
_INCLUDED = re.compile(r"(<!-- (results/\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def report(experiment: str, *, data: Path, out: Path) -> None:
    """Tables and figures of an experiment, in the place of older ones.

    The scores of a group stay where it is still drawn, as does the share of online negatives.
    """
    place = ROOT / "results" / experiment
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "aoq", "experiment", experiment),
                *("--data", data, "--out", out, "--results", RESULTS, "--report", folder),
            ],
            check=True,
        )
        drawn = (Path(folder) / "figures").glob("curves-*")
        left = {"online-share.md", "online-share.csv"}
        left |= {file.name.replace("curves", "scores") for file in drawn}
        for file in report_files(place):
            if file.name not in left:
                file.unlink()
        for part in ("tables", "figures"):
            shutil.copytree(Path(folder) / part, place / part, dirs_exist_ok=True)


def table6() -> str:
    """Seconds of a batch, measured and in the paper."""
    files = [ROOT / f"benchmarks/results/{name}.json" for name in ("table6", "table6-as-published")]
    measured = [part for file in files for part in json.loads(file.read_text("utf-8"))["results"]]
    lines = [
        "| | " + " | ".join(part["what"] for part in measured) + " | paper |",
        "| --- |" + " ---: |" * (len(measured) + 1),
    ]
    for label, row in measured[0]["rows"].items():
        cells = [part["rows"][label] for part in measured]
        told = [f"{cell['seconds']:.3g} s, {cell['ratio']:.2f}" for cell in cells]
        paper = f"{row['paper_seconds']:.3g} s, {row['paper_ratio']:.2f}"
        lines.append(f"| {label} | {' | '.join(told)} | {paper} |")
    return "\n".join(lines) + "\n"


def summary() -> str:
    """rsum of the three models with the four losses, for the README."""
    file = ROOT / "results" / "flickr8k-table1" / "tables" / "rows.csv"
    with file.open(encoding="utf-8") as lines:
        rows = {row["row"]: row for row in csv.DictReader(lines)}
    losses = ("", " + OffTri", " + OffQuin", " + AdapOffQuin")
    headings = ("online", "OffTri", "OffQuin", "AdapOffQuin", "more than online", "paper, on COCO")
    table = [f"| | {' | '.join(headings)} |", f"| --- |{' ---: |' * len(headings)}"]
    for model in ("VSRN", "BFAN", "SCAN"):
        first, *_, last = found = [rows[model + loss] for loss in losses]
        more, low, high = (float(last[f"rsum_more{end}"]) for end in ("", "_low", "_high"))
        paper = float(last["paper_rsum"]) - float(first["paper_rsum"])
        cells = [f"{float(row['rsum']):.1f}" for row in found]
        cells += [f"{more:+.1f} [{low:.1f}, {high:.1f}]", f"{paper:+.1f}"]
        table.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def with_tables(page: str) -> str:
    """The page with its tables as the files have them."""
    return _INCLUDED.sub(
        lambda found: f"{found[1]}\n{(ROOT / found[2]).read_text('utf-8').strip()}\n\n{found[3]}",
        page,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    found = parser.parse_args()
    if found.experiments and found.data is None:
        parser.error("a report needs --data")
    for experiment in found.experiments:
        report(experiment, data=found.data, out=found.out)
    (ROOT / "results" / "table6.md").write_text(table6(), "utf-8")
    (ROOT / "results" / "summary.md").write_text(summary(), "utf-8")
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
