"""`make bench`: run every comparison, print it and keep it as JSON.

`python -m benchmarks scoring steps` runs the named suites only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks import (
    captions,
    cold_start,
    evaluation,
    extract,
    grouped,
    mining,
    scoring,
    search,
    serve,
    steps,
    threads,
    towers,
)
from benchmarks.harness import save


class Measured(Protocol):
    """What can be run, and tells what came of it."""

    def run(self) -> dict[str, Any]: ...


SUITES: dict[str, Sequence[Measured]] = {
    "captions": captions.COMPARISONS,
    "cold-start": cold_start.COMPARISONS,
    "evaluation": evaluation.COMPARISONS,
    "extract": extract.COMPARISONS,
    "grouped": grouped.COMPARISONS,
    "mining": mining.COMPARISONS,
    "scale": mining.SCALE,
    "scoring": scoring.COMPARISONS,
    "search": search.COMPARISONS,
    "serve": serve.COMPARISONS,
    "steps": steps.COMPARISONS,
    "table6": steps.TABLE6,
    "table6-as-published": steps.TABLE6_AS_PUBLISHED,
    "threads": threads.COMPARISONS,
    "threads-pairs": threads.COMPARISONS_OF_PAIRS,
    "towers": towers.COMPARISONS,
}


def describe(result: dict[str, Any]) -> str:
    if "sentence" in result:
        return f"{result['name']}: {result['sentence']}"
    ours, baseline = result["seconds"], result["baseline_seconds"]
    ratio = baseline / ours
    against = f"{ratio:.1f}x as fast as" if ratio >= 1 else f"{1 / ratio:.2f}x the time of"
    formula = result.get("multiply_add_ratio")
    return (
        f"{result['name']}: {against} its baseline ({ours:.3f} s, {baseline:.3f} s; "
        f"peak {result['peak_mib']:.0f} MiB, {result['baseline_peak_mib']:.0f} MiB)"
        + (f"; multiply-adds {formula:.2f}x" if formula else "")
        + (f"; whole process {result['process_mib']:.0f} MiB" if result["repeats"] == 1 else "")
    )


def main() -> None:
    chosen = sys.argv[1:] or list(SUITES)
    if unknown := [name for name in chosen if name not in SUITES]:
        sys.exit(f"there is no {', '.join(unknown)}; expected some of: {', '.join(SUITES)}")
    for suite in chosen:
        if not SUITES[suite]:
            print(f"{suite}: what it measures is not on this machine")
            continue
        results = []
        for comparison in SUITES[suite]:
            results.append(comparison.run())
            print(describe(results[-1]), flush=True)
        print(f"kept in {save(suite, results)}")


if __name__ == "__main__":
    main()
