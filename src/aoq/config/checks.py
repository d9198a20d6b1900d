"""What every group of settings refuses: the words of its errors."""

from __future__ import annotations

from aoq.errors import UserError


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def require_counts(settings: object, *names: str) -> None:
    """Reject values below 1; None means not set."""
    for name in names:
        value = getattr(settings, name)
        require(value is None or value >= 1, f"{name} is {value}; it has to be at least 1.")
