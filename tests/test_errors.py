"""Errors say everything, but not endlessly."""

from __future__ import annotations

import pytest

from aoq.errors import UserError, all_problems, raise_problems


def test_a_long_report_says_how_much_more_there_is() -> None:
    with pytest.raises(UserError) as caught:
        raise_problems([f"problem {n}" for n in range(57)])
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 37 more."
    assert len(all_problems(caught.value)) == 57
    assert all_problems(UserError("one")) == ("one",)
