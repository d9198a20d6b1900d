"""The command `aoq`.

Flags are the fields of `aoq.config.Recipe`: a recipe (TOML) gives their values, flags override
it. Heavy imports happen inside the commands, so that `aoq --help` answers at once. Mistakes of
the user end with one clear sentence and exit code 2, never with a traceback.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.config import Dict
from cyclopts.validators import Number

from aoq import __version__
from aoq.config import Behaviour, ModelName, Precision, Recipe
from aoq.errors import UserError

if TYPE_CHECKING:
    from aoq.data.dataset import PairDataset
    from aoq.mining.candidates import CandidateLists

app = App(
    name="aoq",
    version=__version__,
    help="Train, mine and judge image-text matching models with offline hard negatives.",
    help_epilogue="New here: `aoq demo` does it all on an embedded data set in a few minutes.",
    suppress_keyboard_interrupt=False,
)
data_app = App(name="data", help="Build and check data sets.")
app.command(data_app)
mine_app = App(name="mine")
app.command(mine_app)

_SETTINGS = Group(
    "Settings",
    help="What the recipe sets, and flags change. The defaults shown are the paper's.",
    sort_key=1,
)
Settings = Annotated[Recipe, Parameter(name="*", group=_SETTINGS)]
_PAPER = Recipe()
Size = Literal["tiny", "small", "large"]
Flag = Annotated[bool, Parameter(negative=())]
Count = Annotated[int, Parameter(validator=Number(gte=1))]


def _recipe_under_flags(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give every setting that no flag names the value it has in the recipe."""
    from aoq.recipes import load_recipe, recipe_as_dict

    given = {argument.name: argument.tokens for argument in arguments}
    if not given.get("RECIPE"):
        return
    source = given["RECIPE"][0].value
    behaviours: dict[str, Behaviour] = {"paper": "paper", "official": "official"}
    flag = given["--behaviour"][0].value if given["--behaviour"] else ""
    (command,) = commands
    values = {command: recipe_as_dict(load_recipe(source, behaviour=behaviours.get(flag)))}
    Dict(values, source=source)(app, commands, arguments)


app.config = (_recipe_under_flags,)


@app.command
def demo(
    *, out: Path = Path("runs/demo"), size: Size = "small", seed: int = 0, force: Flag = False
) -> None:
    """Train four settings on the embedded data set, compare them and write a report.

    Round one, mining, then round two with the losses online, OffTri, OffQuin and AdapOffQuin.
    Interrupted, the same command continues.

    Parameters
    ----------
    out
        Folder of the demo's run.
    size
        Size of the data set.
    seed
        Seed of the training.
    force
        Start anew where `out` exists.
    """
    from aoq.experiments.demo import run_demo
    from aoq.progress import say
    from aoq.storage import RunDirectory

    settings = run_demo(out, size=size, seed=seed, force=force)
    _print_metrics(
        {setting.title: setting.result for setting in settings},
        title="Test split, best epoch on dev, one seed",
    )
    say(f"the report: {RunDirectory(out).report}")
    best = max(settings, key=lambda setting: float(setting.result["rsum"])).folder
    data = out / f"scenes-{size}"
    _next_steps(
        f"aoq evaluate {best} --split dev",
        f"aoq mine {best}",
        f"aoq run scenes-small --data {data} --out runs/other --seed 1",
        f"aoq data check {data}",
    )


@data_app.command
def build(
    source: str,
    /,
    *,
    out: Path,
    pictures: Path | None = None,
    splits: Path | None = None,
    size: Size = "small",
    seed: int = 0,
    force: Flag = False,
) -> None:
    """Build a data set: captions and region features of pictures.

    Parameters
    ----------
    source
        A captions file (CSV or JSON lines of image, caption[, split]; Karpathy or COCO JSON; a
        Flickr token file), or `scenes` for the embedded data set.
    out
        Folder to write.
    pictures
        Folder of the pictures; default: the folder of the captions file.
    splits
        Folder with train.txt, dev.txt and test.txt, for Flickr token files.
    size
        Of scenes.
    seed
        Of scenes.
    force
        Replace `out` if it exists.
    """
    from aoq.data.build import build_dataset, build_scenes
    from aoq.data.formats import read_records

    if source == "scenes":
        build_scenes(out, size=size, seed=seed, force=force)
    else:
        file = Path(source)
        records = read_records(file, pictures=pictures or file.parent, splits=splits)
        build_dataset(records, out, name=out.name, force=force)
    check(out)
    _next_steps(f"aoq run scenes-small --data {out} --out runs/{out.name}")


@data_app.command
def check(folder: Path, /) -> None:
    """Report everything that is wrong or odd in a data set, and its sizes.

    Parameters
    ----------
    folder
        A folder that `aoq data build` wrote, or a SCAN precomp folder.
    """
    from aoq.data.check import check_dataset
    from aoq.progress import say, warn

    report = check_dataset(folder)
    for warning in report.warnings:
        warn(warning)
    report.raise_for_errors()
    for what, count in report.facts.items():
        say(f"{what}: {count:,}")
    if not report.warnings:
        say("nothing odd found")


@app.command
def train(
    recipe: str,
    /,
    *,
    out: Path,
    round: Literal["one", "two"] = "one",  # noqa: A002
    candidates: Path | None = None,
    force: Flag = False,
    settings: Settings = _PAPER,
) -> None:
    """Train one round.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe: scenes-tiny, scenes-small (small enough for
        two cores), vsrn-f30k, vsrn-coco, scan-f30k, scan-coco, bfan-f30k, bfan-coco (the paper's;
        they want a GPU).
    out
        Folder of the run; one that was started with the same settings is continued.
    round
        Round one, or round two with the lists of --candidates.
    candidates
        Candidate lists, as `aoq mine` writes them.
    force
        Start anew where `out` exists.
    """
    from aoq.storage import RunDirectory
    from aoq.training.inputs import open_training_data
    from aoq.training.two_rounds import train_round

    if candidates is not None and round == "one":
        raise UserError("--candidates is for round two; add --round two or leave it out.")
    data = open_training_data(settings)
    train_round(out, settings, data, which=round, candidates=candidates, force=force)
    _next_steps(f"aoq evaluate {out}")
    if round == "one":
        lists = RunDirectory(out).candidates
        _next_steps(
            f"aoq mine {out}",
            f"aoq train {recipe} --round two --candidates {lists} --data {settings.data} --out ...",
        )


@mine_app.default
def mine(
    *runs: Path,
    out: Path | None = None,
    data: Path | None = None,
    proposals: Path | None = None,
    sample: Annotated[int, Parameter(validator=Number(gte=0))] = 100,
    depth_texts: Count | None = None,
    depth_images: Count | None = None,
    memory: str | None = None,
    precision: Precision | None = None,
    skip_first: int | None = None,
    score_share: float | None = None,
    equal_captions: bool | None = None,
    near_captions: float | None = None,
    force: Flag = False,
) -> None:
    """Rank the whole training set with a trained model and keep the hardest negatives.

    Interrupted, the same command continues. With many cores or machines:
    `torchrun --nproc-per-node 4 -m aoq mine RUN`.

    Parameters
    ----------
    runs
        Folder of a trained model; of several, their ensemble (mean score) mines.
    out
        File to write; default: candidates.safetensors in the first run.
    data
        Data set to mine; default: the one the model was trained on.
    proposals
        Deep lists of a faster model: for a model that is too slow to rank everything (scan, bfan),
        which then ranks only what is in them.
    sample
        With --proposals: images, and texts, that are ranked against everything to tell how much
        the proposals miss; 0 for none.
    depth_texts
        Hardest texts kept for each image; default, as of all that follows: the run's recipe.
    depth_images
        Hardest images kept for each text.
    memory
        Budget for lists, blocks of scores and what they are computed from, such as 4GiB.
    precision
        Round encodings to float16 or bfloat16 before they are scored.
    skip_first
        Against false negatives: leave the first so many candidates of every list out.
    score_share
        Against false negatives: drop what scores above this share of the best positive (0.95).
    equal_captions
        Against false negatives: drop captions with the words of one of the image's own.
    near_captions
        Against false negatives: drop captions that share so much of their words (0.8) with one.
    force
        Replace `out` if it exists.
    """
    from rich.console import Console

    from aoq.experiments.mining_report import report_view
    from aoq.mining.report import MiningReport, report_file
    from aoq.processes import join_processes
    from aoq.recipes import load_recipe
    from aoq.storage import RunDirectory
    from aoq.training.trained import mine_run

    directory = RunDirectory(_first(runs)).require_trained()
    out = _vacant(out or directory.candidates, force=force)
    flags = {
        "depth_texts": depth_texts,
        "depth_images": depth_images,
        "memory": memory,
        "precision": precision,
        "skip_first": skip_first,
        "score_share": score_share,
        "equal_captions": equal_captions,
        "near_captions": near_captions,
    }
    changes: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    config = replace(load_recipe(directory.config).mining, **changes)
    with join_processes() as processes:
        mine_run(
            runs,
            out,
            data=data,
            config=config,
            proposals=proposals,
            sample=sample,
            processes=processes,
        )
        if processes.is_first:
            Console().print(report_view(MiningReport.load(report_file(out))))
            place = "" if out == directory.candidates and data is None else " --data ..."
            _next_steps(f"aoq mine inspect {out}{place}")


@mine_app.command
def inspect(
    lists: Path,
    /,
    *,
    data: Path | None = None,
    image: tuple[str, ...] = (),
    text: tuple[str, ...] = (),
    depth: Count = 10,
    html: Path | None = None,
    seed: int = 0,
    force: Flag = False,
) -> None:
    """Show the candidate lists of some images and texts.

    Parameters
    ----------
    lists
        Candidate lists, as `aoq mine` writes them.
    data
        Data set that they were mined on; default: that of the run whose folder they are in.
    image
        Image to show, by id, file name or number; can be repeated.
    text
        Text to show, by id, number or (part of) its words; can be repeated.
    depth
        Candidates to show of each list.
    html
        Also write a page with pictures.
    seed
        Of the images and texts that are shown where none is named.
    force
        Replace `html` if it exists.
    """
    from rich.console import Console

    from aoq.experiments.inspection import (
        find_image,
        find_text,
        sample_anchors,
        terminal_view,
        write_inspection,
    )
    from aoq.progress import say

    if html is not None:
        _vacant(html, force=force)
    candidates, dataset = _open_lists(lists, data)
    anchors = [find_image(dataset, wanted) for wanted in image]
    anchors += [find_text(dataset, wanted) for wanted in text]
    anchors = anchors or sample_anchors(dataset, seed=seed)
    Console().print(terminal_view(candidates, dataset, anchors, depth=depth))
    if html is not None:
        write_inspection(html, candidates, dataset, anchors, depth=depth)
        say(f"the page: {html}")


@mine_app.command
def export(
    lists: Path,
    /,
    *,
    data: Path | None = None,
    out: Path,
    form: Literal["jsonl", "npy"] = "jsonl",
    depth: Count | None = None,
    force: Flag = False,
) -> None:
    """Write candidate lists for other programs.

    Parameters
    ----------
    lists
        Candidate lists, as `aoq mine` writes them.
    data
        Data set that they were mined on; default: that of the run whose folder they are in.
    out
        Folder to write to: i2t and t2i, as .jsonl or .npy.
    form
        jsonl: lines of anchor, positive and negatives; npy: ids only, as the AOQ program has them.
    depth
        Candidates of each list to write, hardest first; default: all.
    force
        Replace files that exist.
    """
    from aoq.mining.export import export_lists
    from aoq.mining.published import write_published_lists
    from aoq.progress import say

    i2t, t2i = (_vacant(out / f"{side}.{form}", force=force) for side in ("i2t", "t2i"))
    candidates, dataset = _open_lists(lists, data)
    if form == "npy":
        write_published_lists(candidates.cut(depth), i2t, t2i)
    else:
        export_lists(candidates, dataset, i2t, direction="i2t", depth=depth)
        export_lists(candidates, dataset, t2i, direction="t2i", depth=depth)
    say(f"written: {i2t} and {t2i}")


def _open_lists(lists: Path, data: Path | None) -> tuple[CandidateLists, PairDataset]:
    """Lists and the training set they belong to."""
    from aoq.data.dataset import open_dataset
    from aoq.mining.candidates import CandidateLists
    from aoq.recipes import load_recipe
    from aoq.storage import RunDirectory

    config = RunDirectory(lists.parent).config
    own = load_recipe(config).data if config.is_file() else ""
    if data is None and not own:
        raise UserError(f"{lists} is in no folder of a run with data; name its data with --data.")
    dataset = open_dataset(data or Path(own), "train")
    return CandidateLists.load(lists).require_fit(dataset, source=lists), dataset


def _vacant(out: Path, *, force: bool) -> Path:
    """A file that may be written."""
    if out.is_dir() or (out.exists() and not force):
        hint = "name a file" if out.is_dir() else "name another file or add --force"
        raise UserError(f"{out} exists already; {hint}.")
    return out


@app.command
def run(
    recipe: str,
    /,
    *,
    out: Path,
    plan: Flag = False,
    force: Flag = False,
    settings: Settings = _PAPER,
) -> None:
    """Run a whole recipe: round one, mining, round two, evaluation.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe: scenes-tiny, scenes-small (small enough for
        two cores), vsrn-f30k, vsrn-coco, scan-f30k, scan-coco, bfan-f30k, bfan-coco (the paper's;
        they want a GPU).
    out
        Folder of the run; one that was started with the same settings is continued.
    plan
        Only print steps, time, disk and memory, measured on a few steps; nothing is written.
    force
        Start anew where `out` exists.
    """
    from aoq.training.two_rounds import ROUND_TWO, run_recipe

    if plan:
        from aoq.training.plan import make_plan

        _print_table(make_plan(settings).rows())
        return
    _print_metrics({"round two": run_recipe(out, settings, force=force)})
    _next_steps(f"aoq evaluate {out / ROUND_TWO} --split dev")


@app.command
def evaluate(
    *runs: Path,
    split: str = "test",
    data: Path | None = None,
    memory: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Recalls, ranks and rsum of a trained model.

    Parameters
    ----------
    runs
        Folder of a trained model; of several, each is judged, and then their ensemble (mean score).
    split
        Split to judge on.
    data
        Data set; default: the one the model was trained on.
    memory
        Budget for encodings and blocks of scores, such as 2GiB.
    as_json
        Print JSON for programs.
    """
    from aoq.training.trained import evaluate_runs

    _first(runs)
    results = evaluate_runs(runs, split=split, data=data, memory=memory)
    rows = {name: metrics.as_dict() for name, metrics in results}
    if as_json:
        sys.stdout.write(json.dumps(rows if len(runs) > 1 else rows[str(runs[0])]) + "\n")
    else:
        _print_metrics(rows, title=f"split {split}")


def _first(runs: tuple[Path, ...]) -> Path:
    if not runs:
        raise UserError("no run is named; give the folder of a trained model.")
    return runs[0]


@app.command(name="import")
def import_(
    checkpoint: Path,
    /,
    *,
    vocabulary: Path,
    out: Path,
    data: Path | None = None,
    i2t: Path | None = None,
    t2i: Path | None = None,
    model: ModelName | None = None,
    force: Flag = False,
) -> None:
    """Make a run of the files that SCAN, BFAN, VSRN, VSE++ or AOQ publish.

    Nothing in these files is run; one that holds more than weights and options is refused.

    Parameters
    ----------
    checkpoint
        A model, .pth.tar.
    vocabulary
        The vocabulary it was trained with, .json or .pkl.
    out
        Folder of the run.
    data
        Data set of the run; the lists are checked against it.
    i2t
        Candidate lists of the images, .npy.
    t2i
        Candidate lists of the texts, .npy.
    model
        Which model it is, where the checkpoint does not tell.
    force
        Replace `out` if it is a run.
    """
    from aoq.training.imported import PublishedFiles, import_run

    files = PublishedFiles(checkpoint=checkpoint, vocabulary=vocabulary, i2t=i2t, t2i=t2i)
    run = import_run(out, files, data=data, model=model, force=force)
    place = "" if data is not None else " --data FOLDER"
    _next_steps(f"aoq evaluate {out}{place}")
    if i2t is None:
        _next_steps(f"aoq mine {out}{place}")
    else:
        lists = run.candidates
        _next_steps(
            f"aoq train RECIPE --round two --candidates {lists} --data {data} --out ...",
        )


def _print_metrics(rows: dict[str, dict[str, Any]], *, title: str | None = None) -> None:
    from rich.console import Console

    from aoq.experiments.tables import metrics_table

    Console().print(metrics_table(rows, title=title))


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _next_steps(*commands: str) -> None:
    from aoq.progress import say

    for command in commands:
        say(f"next: {command}")


def main() -> None:
    """Run the command; a mistake of the user is one sentence and exit code 2."""
    try:
        app(exit_on_error=False, print_error=False)
    except UserError as error:
        _fail(error.problems)
    except CycloptsError as error:
        _fail([f"{error} See `{' '.join(('aoq', *(error.command_chain or ())))} --help`."])
    except OSError as error:
        reason = error.strerror or error
        _fail(
            [f"cannot read or write {error.filename or 'a file'} ({reason}); name another place."]
        )
    except KeyboardInterrupt:
        _fail(["interrupted; the same command continues where it stopped."], code=130)


def _fail(problems: Sequence[str], *, code: int = 2) -> None:
    for problem in problems:
        sys.stderr.write(f"error: {problem}\n")
    sys.exit(code)
