"""The example of the losses in a loop of one's own."""

from __future__ import annotations

import re

from examples.own_loop import main


def test_the_loop_learns_with_both_losses(capsys):
    main()
    told = re.findall(r"\((\w+)\): the right text comes first for (\d+)%", capsys.readouterr().err)
    names, found = [name for name, _ in told], [int(share) for _, share in told]
    assert names == ["online"] * 5 + ["adap_off_quin"] * 5
    assert found[0] < found[4] < found[9]
    assert found[9] > 80
