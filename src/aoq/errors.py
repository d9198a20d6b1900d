"""The one error that people see.

Everything a user can cause (a wrong file, a wrong flag, lists of another data set) raises
`UserError`; the command line prints it without a traceback and leaves with exit code 2.
Any other exception is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec


class UserError(Exception):
    """What is wrong, where, what was expected and what to do: one sentence a problem."""

    def __init__(self, *problems: str) -> None:
        if not problems:
            raise ValueError("a UserError needs at least one sentence")
        self.problems: Sequence[str] = problems
        super().__init__("\n".join(problems))


def require_packages(*names: str, extra: str) -> None:
    """Refuse to start what will need packages of an extra that is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(
            f'this needs {", ".join(missing)}; install it with pip install "aoq[{extra}]".'
        )
