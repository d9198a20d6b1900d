"""`aoq import`: make runs from published files."""

from __future__ import annotations

from pathlib import Path

from aoq.cli.base import Flag, app, command, next_steps
from aoq.config import ModelName


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
    """Make a run from the files that SCAN, BFAN, VSRN, VSE++ or AOQ publish.

    Nothing in these files is executed; a file with more than weights and options is rejected.

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
        Which model it is, if the checkpoint does not state it.
    force
        Replace `out` if it is a run.
    """
    from aoq.published.importer import PublishedFiles, import_run

    files = PublishedFiles(checkpoint=checkpoint, vocabulary=vocabulary, i2t=i2t, t2i=t2i)
    run = import_run(out, files, data=data, model=model, force=force)
    place = () if data is not None else ("--data", "FOLDER")
    next_steps(command("evaluate", out, *place))
    if i2t is None:
        next_steps(command("mine", out, *place))
    else:
        lists = ("--candidates", run.candidates)
        next_steps(
            command("train", "RECIPE", "--round", "two", *lists, "--data", data) + " --out ..."
        )
