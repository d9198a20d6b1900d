"""`aoq cache`: list what is kept to save time, and remove it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from aoq.cli.base import Flag, Json, app, next_steps, print_json

cache_app = App(name="cache")
app.command(cache_app)


@cache_app.default
def cache(*, json: Json = False) -> None:
    """List what the cache holds: features, vectors and indexes that would be computed again.

    Parameters
    ----------
    json
        Print one JSON object instead.
    """
    from aoq.caches import list_cache
    from aoq.progress import say
    from aoq.storage import cache_folder

    entries = list_cache()
    if json:
        print_json(
            {
                "folder": str(cache_folder()),
                "entries": [
                    {"name": each.name, "files": each.files, "bytes": each.size, "used": each.used}
                    for each in entries
                ],
            }
        )
        return
    if not entries:
        say(f"{cache_folder()} is empty.")
        return
    _print_entries([(each.name, each.files, each.size, each.idle_days) for each in entries])
    say(f"{cache_folder()}: {_size(sum(each.size for each in entries))}")
    next_steps(f"aoq cache clear {entries[0].name}", "aoq cache clear --idle-days 30")


@cache_app.command
def clear(
    *names: str,
    idle_days: Annotated[float, Parameter(validator=Number(gte=0))] = 0,
    everything: Annotated[Flag, Parameter(name="--all")] = False,
) -> None:
    """Remove entries of the cache; what is needed again is computed again.

    Parameters
    ----------
    names
        Entries, or whole kinds, as `aoq cache` lists them: features, texts/minilm-5e1f-pooled.
    idle_days
        Remove only what was not used for this many days.
    everything
        Remove all entries.
    """
    from aoq.caches import remove_entry, select_entries
    from aoq.errors import UserError
    from aoq.progress import say

    if not (names or idle_days or everything):
        raise UserError("name entries of the cache, or add --idle-days 30 or --all.")
    if names and everything:
        raise UserError("names and --all exclude each other; give one of them.")
    freed = 0
    for entry in select_entries(names, idle_days=idle_days):
        freed += remove_entry(entry)
        say(f"removed {entry.name} ({_size(entry.size)})")
    say(f"{_size(freed)} are free again.")


def _print_entries(rows: list[tuple[str, int, int, float]]) -> None:
    from rich.table import Table

    from aoq.cli.base import console_for

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("entry", overflow="fold")
    for heading in ("files", "size", "last used"):
        table.add_column(heading, justify="right")
    for name, files, size, idle in rows:
        table.add_row(name, f"{files:,}", _size(size), _ago(idle))
    console_for(table).print(table)


def _size(count: float) -> str:
    """Write a number of bytes for people.

    >>> _size(0), _size(1536), _size(3 * 1024**3)
    ('0 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _ago(days: float) -> str:
    """Write how long ago something was.

    >>> _ago(0.2), _ago(1.5), _ago(40)
    ('today', '1 day ago', '40 days ago')
    """
    whole = int(days)
    return "today" if whole == 0 else f"{whole} day{'s' if whole > 1 else ''} ago"
