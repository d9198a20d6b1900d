"""`make bench`: run every comparison, print it and keep it as JSON."""

from __future__ import annotations

from benchmarks import spine
from benchmarks.harness import save

SUITES = {"spine": spine.COMPARISONS}


def main() -> None:
    for suite, comparisons in SUITES.items():
        results = []
        for comparison in comparisons:
            result = comparison.run()
            results.append(result)
            print(
                f"{result['name']}: {result['times_faster']}x the baseline "
                f"({result['seconds']:.3f} s against {result['baseline_seconds']:.3f} s; "
                f"peak {result['peak_mib']:.0f} MiB against {result['baseline_peak_mib']:.0f} MiB)"
            )
        print(f"kept in {save(suite, results)}")


if __name__ == "__main__":
    main()
