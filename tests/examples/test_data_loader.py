"""The example that draws offline negatives from a DataLoader."""

from __future__ import annotations

import re

from examples.data_loader import main


def test_the_loop_learns_from_mined_negatives(capsys):
    main()
    shares = [int(found) for found in re.findall(r"first for (\d+)%", capsys.readouterr().err)]
    assert len(shares) == 8
    assert shares[-1] > max(shares[0], 30)
