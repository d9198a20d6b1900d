"""The error type for users.

Everything a user can cause (a wrong file, a wrong flag, lists of another data set) raises
`UserError`; the command line prints it without a traceback and exits with code 2. Any other
exception is a defect in aoq.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

PROBLEMS_SHOWN = 20


class UserError(Exception):
    """States what is wrong, where, what was expected and what to do: one sentence per problem."""

    def __init__(self, *problems: str) -> None:
        if not problems:
            raise ValueError("a UserError needs at least one sentence")
        self.problems: Sequence[str] = problems
        super().__init__("\n".join(problems))


class QueryError(UserError):
    """A question that has no answer because of what it asks; any visitor may read why."""


class ManyProblemsError(UserError):
    """Collects all problems of a source; the message shows the first of them in full."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - PROBLEMS_SHOWN
        rest = [f"and {more:,} more."] if more > 0 else []
        super().__init__(*problems[:PROBLEMS_SHOWN], *rest)
        self.everything = tuple(problems)


def raise_problems(problems: Sequence[str]) -> None:
    """Raise one error that reports every problem, if there is any."""
    if problems:
        raise ManyProblemsError(problems)


def all_problems(error: UserError) -> Sequence[str]:
    """Return all problems of an error, including those that its message leaves out."""
    return error.everything if isinstance(error, ManyProblemsError) else error.problems


def require_packages(*names: str, extra: str) -> None:
    """Raise a `UserError` at the start if packages of an extra are missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UserError(
            f'this needs {", ".join(missing)}; install it with pip install "aoq[{extra}]".'
        )
