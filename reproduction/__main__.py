"""`python -m reproduction`: run the paper's experiments, report them, and write docs/results.md."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from aoq.cli.base import Count, Flag, print_table, run_app
from aoq.cli.data import build
from aoq.cli.experiment import SEVERAL, ExperimentCommand
from aoq.data.splits import MANIFEST
from aoq.errors import UserError, require_packages
from aoq.experiments.definition import load_definition
from aoq.experiments.results import Experiment
from reproduction import EXPERIMENTS, RESULTS, ROOT, TOWER_LOSSES, Name, definition_file
from reproduction.claims import load_paper_table
from reproduction.details import DETAIL_RESULTS, measure_details
from reproduction.forecast import power_table
from reproduction.grid import all_comparisons
from reproduction.page import write_pages
from reproduction.peers import PEER_RESULTS
from reproduction.peers.rows import SetupName
from reproduction.report import PaperReport
from reproduction.right_answers import measure
from reproduction.small_sets import write_small_sets
from reproduction.tower_losses import TOWER_LOSS_RESULTS, tower_losses
from reproduction.towers import ROWS as TOWER_ROWS
from reproduction.towers import TOWER_RESULTS, TowerTrainings
from reproduction.verdicts import claims_table
from reproduction.words import WORD_RESULTS, search_test

app = App(
    name="python -m reproduction",
    help="The paper's tables on Flickr8k.",
    suppress_keyboard_interrupt=False,
)


@app.default
def experiment(
    name: Name | None = None,
    /,
    *,
    data: Path | None = None,
    out: Path = Path("runs/flickr8k"),
    seeds: Annotated[tuple[int, ...], SEVERAL] = (),
    rows: Annotated[tuple[str, ...], SEVERAL] = (),
    jobs: Count | None = None,
    results: Path = RESULTS,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    plan: Flag = False,
    report: Path | None = None,
    force: Flag = False,
) -> None:
    """Run one of the paper's experiments.

    Without a name, list them. If interrupted, the same command continues; finished runs are not
    repeated.

    Parameters
    ----------
    name
        An experiment, such as `table1`.
    data
        Folder of the data set.
    out
        Folder of the runs; all experiments share it.
    seeds
        Seeds to use instead of the experiment's, or a subset of them.
    rows
        Only the rows with these labels, and the teachers they need.
    jobs
        Parallel runs, which share the cores; default: one per core, one on a GPU.
    results
        File to which each result is added as a line of JSON; its results count as finished.
    list_
        Only list the rows, with rsum if they are finished.
    plan
        Only print how small a difference the seeds can find (claim by claim: `power`).
    report
        Only write tables, figures and a page about the finished runs, with the paper's claims, to
        this folder.
    force
        Repeat runs that were done with other settings or data.
    """
    if name is None:
        definitions = {each: load_definition(definition_file(each)) for each in EXPERIMENTS}
        print_table([(each, found.description) for each, found in definitions.items()])
        return
    found = _experiment(name, data=data, out=out, seeds=seeds, rows=rows, results=results)
    if list_:
        found.show()
    elif plan:
        found.show_forecast()
    elif report is None:
        found.run(jobs=jobs, force=force)
    else:
        paper = _paper_report(name, found)
        found.write(
            paper.complete(),
            report,
            tables=[claims_table(paper.verdicts)] if paper.verdicts else [],
        )
        for drawing in paper.photographs():
            drawing.save(report / "photographs")


@app.command(name="all")
def all_(
    captions: Path, pictures: Path, splits: Path, /, *, out: Path = Path("runs/flickr8k")
) -> None:
    """Run everything, from the photos to docs/results.md.

    If interrupted, the same command continues. Results in results/flickr8k.jsonl count as
    finished. Without that file everything is trained again, which takes about eight hours on two
    cores.

    Parameters
    ----------
    captions
        The file Flickr8k.token.txt.
    pictures
        The folder Flicker8k_Dataset.
    splits
        Folder with train.txt, dev.txt and test.txt.
    out
        Folder for the data set and the runs, several gigabytes.
    """
    data = out / "data"
    if not (data / MANIFEST).is_file():
        build(str(captions), out=data, pictures=pictures, splits=splits, grid=3)
    for name in EXPERIMENTS:
        _experiment(name, data=data, out=out / "runs").run(jobs=None, force=False)
    page(data=data, out=out / "runs")


@app.command
def peers(
    setup: SetupName | None = None,
    /,
    *,
    data: Path,
    image: str,
    text: str,
    out: Path = Path("runs/peers"),
    seeds: Annotated[tuple[int, ...], SEVERAL] = (0, 1, 2),
    rows: Annotated[tuple[str, ...], SEVERAL] = (),
    results: Path = PEER_RESULTS,
) -> None:
    """Train the same towers with aoq and with sentence-transformers, on one thread.

    If interrupted, the same command continues with the training that was under way; recorded
    results are not repeated. It needs `pip install "sentence-transformers[train]"`.

    Parameters
    ----------
    setup
        `heads` (on frozen towers) or `text` (the text tower learns too); default: both.
    data
        Folder of the data set, with its photos.
    image
        Image tower: a folder or hub name.
    text
        Text tower: a folder or hub name.
    out
        Folder of the trainings.
    seeds
        Seeds; rows that only chose settings on dev have the first.
    rows
        Only the rows with these labels, and those whose model they mine with.
    results
        File to which each result is added as a line of JSON; its results count as finished.
    """
    require_packages("accelerate", "datasets", "sentence_transformers", extra="dev")
    from reproduction.peers.compare import Comparison
    from reproduction.peers.rows import ROWS

    _require_known(rows, [row.label for row in ROWS])
    chosen = [row for row in ROWS if setup in (None, row.setup) and (not rows or row.label in rows)]
    Comparison(data, image, text, out, results).run(chosen, seeds)


@app.command
def towers(
    *,
    data: Path,
    patches: Path,
    image: str,
    text: str,
    out: Path = Path("runs/towers"),
    seeds: Annotated[tuple[int, ...], SEVERAL] = (0,),
    rows: Annotated[tuple[str, ...], SEVERAL] = (),
    results: Path = TOWER_RESULTS,
) -> None:
    """Train pretrained towers by the shipped recipes.

    If interrupted, the same command continues; recorded results are not repeated.

    Parameters
    ----------
    data
        Folder of a data set with the image tower's vectors (`aoq data build --vector pooled`).
    patches
        Folder of one with its patches (`aoq data build --grid 3`).
    image
        Image tower: a folder or hub name.
    text
        Text tower: a folder or hub name.
    out
        Folder of the runs.
    seeds
        Seeds of every row.
    rows
        Only the rows with these labels.
    results
        File to which each result is added as a line of JSON; its results count as finished.
    """
    chosen = [row for row in TOWER_ROWS if not rows or row.label in rows]
    _require_known(rows, [row.label for row in TOWER_ROWS])
    TowerTrainings(data, patches, image, text, out, results).train(chosen, seeds)


@app.command
def details(
    *runs: Path,
    labels: Annotated[tuple[str, ...], SEVERAL] = (),
    data: Path | None = None,
    results: Path = DETAIL_RESULTS,
) -> None:
    """Measure how often runs score a caption above the same with one word swapped; then run `page`.

    Parameters
    ----------
    runs
        Folders of runs.
    labels
        Their names in the table; default: the names of the folders.
    data
        Folder of the data set; default: that of each run.
    results
        File to which the rows are added.
    """
    names = labels or tuple(run.name for run in runs)
    if not runs or len(names) != len(runs) or len(set(names)) < len(runs):
        raise UserError(
            f"{len(runs)} runs are named {', '.join(names) or 'nothing'}; expected one run or "
            "more, with a name of its own for each: --labels."
        )
    measure_details(dict(zip(names, runs, strict=True)), data, results=results)


@app.command(name=TOWER_LOSSES)
def towers_losses(
    *,
    data: Path | None = None,
    image: str = "",
    text: str = "",
    out: Path = Path("runs") / TOWER_LOSSES,
    seeds: Annotated[tuple[int, ...], SEVERAL] = (),
    rows: Annotated[tuple[str, ...], SEVERAL] = (),
    jobs: Count | None = None,
    results: Path = TOWER_LOSS_RESULTS,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    plan: Flag = False,
    force: Flag = False,
) -> None:
    """Train heads on frozen towers with every loss, and the controls of Eq. 5.

    If interrupted, the same command continues; finished runs are not repeated.

    Parameters
    ----------
    data
        Folder of a data set with the image tower's vectors (`aoq data build --vector pooled`).
    image
        Image tower: a folder or hub name.
    text
        Text tower: a folder or hub name.
    out
        Folder of the runs.
    seeds
        Seeds to use instead of the experiment's, or a subset of them.
    rows
        Only the rows with these labels, and the teachers they need.
    jobs
        Parallel runs, which share the cores; default: one per core, one on a GPU.
    results
        File to which each result is added as a line of JSON; its results count as finished.
    list_
        Only list the rows, with rsum if they are finished.
    plan
        Only print how small a difference the seeds can find.
    force
        Repeat runs that were done with other settings or data.
    """
    definition = tower_losses(image=image, text=text)
    experiment = Experiment(
        definition=definition, out=out, data=data, file=results, seeds=seeds, rows=rows
    )
    towers = [f"--{name} {shlex.quote(t)}" for name, t in (("image", image), ("text", text)) if t]
    found = ExperimentCommand(
        experiment, words=" ".join(["python -m reproduction", TOWER_LOSSES, *towers])
    )
    if list_:
        found.show()
    elif plan:
        found.show_forecast()
    elif not image:
        raise UserError("the image tower is missing; name its folder with --image.")
    else:
        found.run(jobs=jobs, force=force)


@app.command(name="small-sets")
def small_sets(*, data: Path) -> None:
    """Write the figures of models for small sets from results/small-sets.jsonl; then run `page`.

    Parameters
    ----------
    data
        Folder of the data set.
    """
    write_small_sets(data)


@app.command
def words(run: Path, /, *, index: Path, results: Path = WORD_RESULTS) -> None:
    """Search photos of test by the model, by words of captions, and by both.

    Parameters
    ----------
    run
        Folder of a run.
    index
        Folder of its index of dev and test; made if it is not there.
    results
        File to write.
    """
    search_test(run, index, results=results)


@app.command
def power(
    name: Name | None = None, /, *, seeds: Count | None = None, results: Path = RESULTS
) -> None:
    """Tell how likely each claim is to be found with its seeds, and how many seeds it needs.

    Parameters
    ----------
    name
        An experiment; default: all.
    seeds
        Number of seeds; default: the experiment's.
    results
        File whose results tell how much trainings differ.
    """
    for each in EXPERIMENTS if name is None else (name,):
        table = power_table(each, results, seeds=seeds)
        if table.rows:
            sys.stdout.write(f"{each}\n\n{table.markdown()}\n")


@app.command
def page(*, data: Path | None = None, out: Path = Path("runs/flickr8k")) -> None:
    """Write docs/results.md and the README's table from the files in results/.

    Parameters
    ----------
    data
        Folder of the data set; with it, the tables and figures in results/ are rewritten first.
    out
        Folder of the runs; without runs, scores of pair classes and online shares stay unchanged.
    """
    for name in EXPERIMENTS if data is not None else ():
        report = _paper_report(name, _experiment(name, data=data, out=out)).complete()
        report.write_files(ROOT / "results" / report.title)
    write_pages()


def _require_known(rows: tuple[str, ...], labels: list[str]) -> None:
    """Refuse a row that does not exist."""
    for label in rows:
        if label not in labels:
            known = ", ".join(dict.fromkeys(labels))
            raise UserError(f"the row {label!r} does not exist; expected one of: {known}.")


def _experiment(
    name: str,
    *,
    data: Path | None,
    out: Path,
    seeds: tuple[int, ...] = (),
    rows: tuple[str, ...] = (),
    results: Path = RESULTS,
) -> ExperimentCommand:
    experiment = Experiment(
        definition=load_definition(definition_file(name)),
        out=out,
        data=data,
        file=results,
        seeds=seeds,
        rows=rows,
    )
    return ExperimentCommand(experiment, words=f"python -m reproduction {name}")


def _paper_report(name: str, found: ExperimentCommand) -> PaperReport:
    paper = load_paper_table(name, found.experiment.definition)
    return PaperReport(found.read(), paper, all_comparisons(found.experiment.results_file))


@app.command(name="right-answers")
def right_answers(*, data: Path, out: Path = Path("runs/right-answers")) -> None:
    """Measure right answers among the hardest negatives, and losses on captions that many share.

    Parameters
    ----------
    data
        Folder of Flickr8k with features of one vector a photo, or a few regions.
    out
        Folder of the trainings.
    """
    measure(data, out)


if __name__ == "__main__":
    run_app(app)
