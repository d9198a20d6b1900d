"""docs/results.md: what came of the experiments on Flickr8k, from their runs.

    .venv/bin/python scripts/results_page.py --data data/flickr8k --out runs/f8k

Every experiment that has a file results/NAME.jsonl is reported anew: its tables and figures go to
results/NAME, without the page and the photographs, whose pictures are not ours to publish. Then
each table of docs/results.md, between two comments of which one names its file, is put in again,
table 6 from what `python -m benchmarks table6` measured. Without arguments only that is done.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
_INCLUDED = re.compile(r"(<!-- (results/\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def report(results: Path, *, data: Path, out: Path) -> None:
    """Tables and figures of the experiment that wrote `results`."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "aoq", "experiment", results.stem),
                *("--data", data, "--out", out, "--results", results, "--report", folder),
            ],
            check=True,
        )
        kept = results.with_suffix("")
        shutil.rmtree(kept, ignore_errors=True)
        for part in ("tables", "figures"):
            shutil.copytree(Path(folder) / part, kept / part)


def table6() -> str:
    """Seconds of a batch, measured and in the paper."""
    measured = json.loads((ROOT / "benchmarks/results/table6.json").read_text("utf-8"))["results"]
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


def with_tables(page: str) -> str:
    """The page with its tables as the files have them."""
    return _INCLUDED.sub(
        lambda found: f"{found[1]}\n{(ROOT / found[2]).read_text('utf-8').strip()}\n\n{found[3]}",
        page,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, help="folder of the runs")
    found = parser.parse_args()
    if (found.data is None) != (found.out is None):
        parser.error("a report needs both --data and --out")
    if found.data is not None:
        for results in sorted((ROOT / "results").glob("flickr8k-*.jsonl")):
            report(results, data=found.data, out=found.out)
    (ROOT / "results" / "table6.md").write_text(table6(), "utf-8")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
