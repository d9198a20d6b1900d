"""`aoq recipes`: list the recipes, their settings, and the paper's tables."""

from __future__ import annotations

import sys

from cyclopts import App

from aoq.cli.base import app, next_steps

recipes_app = App(name="recipes")
app.command(recipes_app)


@recipes_app.default
def recipes() -> None:
    """List recipes, and the changes that a plus adds to their names."""
    from aoq.recipes import shipped_changes, shipped_recipes

    _print_columns("recipe", "what it is", list(shipped_recipes().items()))
    changes = [(f"+{name}", text) for name, text in shipped_changes().items()]
    _print_columns("change", "what it does", changes)
    next_steps(
        "aoq recipes show vsrn-coco+off-tri",
        "aoq recipes table 3",
        "aoq run vsrn-coco+off-tri --data FOLDER --out FOLDER",
    )


@recipes_app.command
def show(name: str, /) -> None:
    """Print all settings of a recipe, as a recipe.

    Parameters
    ----------
    name
        A shipped recipe or a TOML file, with changes: vsrn-coco+off-tri, mine.toml+h500.
    """
    from aoq.recipes import load_recipe, recipe_as_toml

    sys.stdout.write(recipe_as_toml(load_recipe(name)))


@recipes_app.command
def table(number: str, /) -> None:
    """List the rows of one of the paper's tables with their recipes.

    Parameters
    ----------
    number
        1 to 6, or `text` for runs that only the text mentions.
    """
    from aoq.recipes.tables import paper_rows

    rows = [(row.label, "\n".join(row.recipes)) for row in paper_rows(number)]
    _print_columns("row", "recipe; of two, the mean score", rows)


def _print_columns(first: str, second: str, rows: list[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    view = Table(box=box.SIMPLE_HEAD)
    view.add_column(first, no_wrap=True)
    view.add_column(second, overflow="fold")
    for row in rows:
        view.add_row(*row)
    Console(highlight=False).print(view)
