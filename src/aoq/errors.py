"""The one error that people see.

Everything a user can cause (a wrong file, a wrong flag, lists of another data set) raises
`UserError`; the command line prints it without a traceback and leaves with exit code 2.
Any other exception is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

PROBLEMS_SHOWN = 20


class UserError(Exception):
    """What is wrong, where, what was expected and what to do: one sentence a problem."""

    def __init__(self, *problems: str) -> None:
        if not problems:
            raise ValueError("a UserError needs at least one sentence")
        self.problems: Sequence[str] = problems
        super().__init__("\n".join(problems))


class ManyProblemsError(UserError):
    """Everything that is wrong with a source, the first of it in full."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - PROBLEMS_SHOWN
        rest = [f"and {more:,} more."] if more > 0 else []
        super().__init__(*problems[:PROBLEMS_SHOWN], *rest)
        self.everything = tuple(problems)


def raise_problems(problems: Sequence[str]) -> None:
    """Refuse with every problem in one report."""
    if problems:
        raise ManyProblemsError(problems)


def all_problems(error: UserError) -> Sequence[str]:
    """What an error says, and what it has no room to say."""
    return error.everything if isinstance(error, ManyProblemsError) else error.problems


def require_packages(*names: str, extra: str) -> None:
    """Refuse to start what will need packages of an extra that is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(
            f'this needs {", ".join(missing)}; install it with pip install "aoq[{extra}]".'
        )
