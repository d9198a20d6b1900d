"""Thirty-two visitors with a token for half a minute, on a server in a process of its own."""

from __future__ import annotations

import pytest

from aoq.retrieval.matcher import Matcher
from benchmarks.serve import WARM_UP, queries, questions, serving, visit


@pytest.mark.slow
def test_thirty_two_visitors_are_served_without_an_error_and_memory_stays_flat(served_runs):
    matchers = [Matcher.load(served_runs.vsrn), Matcher.load(served_runs.bfan)]
    with serving(served_runs.vsrn, served_runs.bfan, token="correct-horse-battery") as server:
        asked = [
            question
            for matcher, name in zip(matchers, ("vsrn-round-two", "bfan-round-two"), strict=True)
            for question in [*questions(matcher, name), *queries(matcher, name)]
        ]
        visit(server, asked, clients=32, seconds=2 * WARM_UP)
        before = server.memory()
        tally = visit(server, asked, clients=32, seconds=30.0)
        after = server.memory()
    assert tally.errors == []
    slow = sorted(tally.seconds)[int(0.95 * len(tally.seconds))]
    print(
        f"{len(tally.seconds) / 30:.0f} requests/s, p95 {1000 * slow:.0f} ms, "
        f"memory {before:.0f} and {after:.0f} MiB"
    )
    assert slow < 5.0
    assert after - before < 0.1 * before
