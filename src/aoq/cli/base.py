"""What all commands share: the application, its common flags, and the way it exits.

Flags are the fields of `aoq.config.Recipe`: a recipe (TOML) gives their values, and flags
override them. A user error ends with one clear sentence and exit code 2, never with a traceback.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.config import Dict
from cyclopts.validators import Number

from aoq import __version__
from aoq.config import Behaviour, Recipe, RoundConfig, RoundName
from aoq.errors import UserError

if TYPE_CHECKING:
    from cyclopts.token import Token
    from rich.console import Console
    from rich.table import Table

    from aoq.runs.best_round import RoundChoice
    from aoq.runs.checkpoint import MakeModel

app = App(
    name="aoq",
    version=__version__,
    help="Search photos with image-text encoders, and train them with harder negatives.",
    help_epilogue="New here: `aoq demo` does it all on an embedded data set in about ten minutes.",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative_iterable=()),
)

_SETTINGS = Group(
    "Settings",
    help="Settings of the recipe, which flags change. The defaults shown are the paper's.",
    sort_key=1,
)
Settings = Annotated[Recipe, Parameter(name="*", group=_SETTINGS)]
PAPER = Recipe()
_PAGES: dict[str, str] = {}  # the page that explains a command
Size = Literal["tiny", "small", "large"]
Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0))]
Which = RoundName | None
ModelFunction = Annotated[
    str | None,
    Parameter(
        name="--model",
        help=(
            "MODULE:FUNCTION that makes a model of your own, such as my_model:make_model; imported "
            "from the current folder or the Python path."
        ),
    ),
]


def _recipe_under_flags(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give every setting that is not set by a flag its value in the recipe."""
    from aoq.recipes import load_recipe, recipe_as_dict

    given = {argument.name: argument.tokens for argument in arguments}
    source = given["RECIPE"][0].value if given.get("RECIPE") else _chosen(commands, given)
    if source is None:
        return
    behaviours: dict[str, Behaviour] = {"paper": "paper", "official": "official"}
    behaviour = given["--behaviour"][0].value if given["--behaviour"] else ""
    (name,) = commands
    recipe = load_recipe(source, behaviour=behaviours.get(behaviour))
    for flag in ("--round-one", "--round-two"):
        epochs = given.get(f"{flag}.epochs")
        if epochs and epochs[0].value.isdecimal():
            recipe = _shorten_start(recipe, flag, epochs=int(epochs[0].value))
    Dict({name: recipe_as_dict(recipe)}, source=source)(app, commands, arguments)


def _shorten_start(recipe: Recipe, flag: str, *, epochs: int) -> Recipe:
    """Shorten what a round of a recipe starts with, if it would fill all epochs of a flag.

    Flags of its own still take precedence.
    """
    from aoq.progress import say
    from aoq.recipes import with_settings

    name = flag.removeprefix("--").replace("-", "_")
    settings: RoundConfig = getattr(recipe, name)
    longest = {"warmup_epochs": epochs - 1, "rise_epochs": epochs / 2}
    capped = {
        setting: most
        for setting, most in longest.items()
        if getattr(settings, setting) >= epochs > 0
    }
    if not capped:
        return recipe
    changes = " and ".join(f"{setting} {most:g}" for setting, most in capped.items())
    say(f"{flag}.epochs {epochs}: the start of the round is shortened: {changes}")
    return with_settings(recipe, {name: {"epochs": epochs, **capped}}, where=flag)


def _chosen(commands: tuple[str, ...], given: Mapping[str, Sequence[Token]]) -> str | None:
    """Choose the recipe of an `aoq run` that names none."""
    if commands != ("run",) or not given.get("--data"):
        return None
    from aoq.training.choice import choose_recipe

    towers = given.get("--model.image")
    image = towers[0].value if towers else ""
    return choose_recipe(given["--data"][0].value, image=image).recipe


app.config = (_recipe_under_flags,)


def first(runs: tuple[Path, ...]) -> Path:
    """Return the first of the given runs, or raise a `UserError` if there is none."""
    if not runs:
        raise UserError("no run is given; give the folder of a trained model.")
    return runs[0]


def trained_rounds(runs: tuple[Path, ...], which: Which = None) -> tuple[Path, ...]:
    """Return the best round of each given run, or the one that --round selects.

    Prints which round is used if a run has two, and warns if one is still being trained.
    """
    from aoq.progress import say
    from aoq.runs.best_round import best_round

    first(runs)
    choices = [best_round(run, which) for run in runs]
    rounds = tuple(choice.path for choice in choices)
    resolved = [path.resolve() for path in rounds]
    for run, path in zip(runs, resolved, strict=True):
        if resolved.count(path) > 1:
            raise UserError(f"{run} is given twice; give different runs.")
    for choice in choices:
        if choice.sentence:
            say(choice.sentence)
        _warn_of_unfinished(choice)
    return rounds


def trained_round(run: Path, which: Which = None) -> Path:
    """Return the best round of one run, or the one that --round selects."""
    (path,) = trained_rounds((run,), which)
    return path


def own_model(name: str | None, rounds: Sequence[Path]) -> MakeModel | None:
    """Import the function that --model names, if one of the runs has a model that needs it."""
    from aoq.recipes import load_recipe
    from aoq.runs.directory import RunDirectory
    from aoq.runs.named_model import NamedModel

    if name is None:
        return None
    if all(load_recipe(RunDirectory(path).config).model.name != "own" for path in rounds):
        raise UserError(
            f"--model {name} is for a run of your own model, and {rounds[0]} holds one of the "
            "library's; leave --model out."
        )
    return NamedModel.find(name)


def _warn_of_unfinished(choice: RoundChoice) -> None:
    """Warn if a round of a run, the one that is used or the other one, is not finished."""
    from aoq.progress import count_of, warn
    from aoq.runs.directory import ROUNDS
    from aoq.runs.summary import RunSummary

    summary = RunSummary.read(choice.path)
    final = summary.recipe.last_round
    if choice.used is not None and final not in choice.dev:
        warn(f"{choice.run} has no {ROUNDS[final]} yet; {choice.path} is used.")
    if summary.stage == "training":
        warn(
            f"{choice.path} has trained {summary.epochs_done} of "
            f"{count_of(summary.settings.epochs, 'epoch')}; the best weights so far are used."
        )
    if choice.other is not None:
        other = RunSummary.read(choice.run / ROUNDS[choice.other])
        if other.stage == "training":
            warn(
                f"{other.path} has trained {other.epochs_done} of {other.settings.epochs} epochs; "
                "it may become the better one."
            )


def print_metrics(rows: dict[str, dict[str, Any]], *, title: str | None = None) -> None:
    from rich.console import Console

    from aoq.evaluation.tables import metrics_table

    console = Console()
    console.print(metrics_table(rows, title=title, width=console.width), soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value for programs: one line, with characters unescaped."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def console_for(table: Table) -> Console:
    """Make a console as wide as the terminal; for a pipe or a file, as wide as a table."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = natural_width(table)
    return console


def natural_width(table: Table) -> int:
    """Measure a table that wraps no cell."""
    from rich.console import Console

    return Console(width=sys.maxsize).measure(table).maximum


def command(*words: object) -> str:
    """Return a command that can be copied to a shell, whatever the file names contain.

    >>> command("runs", Path("my runs"))
    "aoq runs 'my runs'"
    """
    return shlex.join(["aoq", *map(str, words)])


def next_steps(*commands: str) -> None:
    """Print what to do next; file names are quoted by `command`."""
    from aoq.progress import say

    for step in commands:
        say(f"next: {step}")


@contextmanager
def importing() -> Iterator[None]:
    """Import large libraries without looking for garbage among what they make, then or later.

    Torch makes a million objects that stay; looking through them takes half a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def group_commands(purposes: Mapping[str, Sequence[str]]) -> None:
    """Show the commands of `aoq --help` by purpose, in this order."""
    for place, (purpose, names) in enumerate(purposes.items()):
        group = Group(purpose, sort_key=place)
        for name in names:
            app[name].group = (group,)


def link_pages(pages: Mapping[str, Sequence[str]]) -> None:
    """Name the page of each command at the end of its help, and after its errors on a terminal."""
    for page, names in pages.items():
        for name in names:
            app[name].help_epilogue = f"Explained in {page}."
            _PAGES[name] = page


def main() -> None:
    run_app(app)


def run_app(app: App) -> None:
    """Run a command line; a user error becomes one sentence and exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(exit_on_error=False, print_error=False)
    except UserError as error:
        _fail(error.problems)
    except CycloptsError as error:
        _fail([f"{error} See `{' '.join((app.name[0], *(error.command_chain or ())))} --help`."])
    except OSError as error:
        _fail([_sentence_of(error)])
    except TerminatedError:
        _fail(["terminated; the same command resumes from what is kept, if anything is."], code=143)
    except KeyboardInterrupt:
        _fail(
            ["interrupted; the same command resumes from what is kept, if anything is."], code=130
        )


def _sentence_of(error: OSError) -> str:
    """Describe which operation the system rejected, and what to do."""
    from aoq.disk import is_full

    name = error.filename2 or error.filename
    if is_full(error):
        where = f"on the disk of {Path(str(name)).absolute().parent}" if name else "there"
        return (
            f"no space is left for {name or 'a file'} ({error.strerror}); free some space {where}, "
            "and the same command continues."
        )
    reason = error.strerror or error
    return f"cannot read or write {name or 'a file'} ({reason}); name another place."


class TerminatedError(BaseException):
    """SIGTERM as an exception, so that half-written files are removed on the way out."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError


def _fail(problems: Sequence[str], *, code: int = 2) -> None:
    from aoq.progress import is_silent

    if not is_silent():
        for problem in problems:
            sys.stderr.write(f"error: {problem}\n")
        page = next((_PAGES[word] for word in sys.argv[1:2] if word in _PAGES), None)
        if page and code == 2 and sys.stderr.isatty():  # programs get the sentence alone
            sys.stderr.write(f"see {page}\n")
    sys.exit(code)
