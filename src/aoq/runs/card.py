"""The model card of a run: what it is, its figures, its networks and their licences, its use.

Everything in it comes from the run. A figure or a licence that is not known is not stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq import __version__
from aoq.config import ModelConfig
from aoq.data.inputs import Inputs
from aoq.errors import require_packages
from aoq.evaluation.metrics import PAPER_FIGURES
from aoq.features.backbones import DEFAULT_BACKBONE
from aoq.progress import count_of
from aoq.recipes import load_recipe
from aoq.runs.checkpoint import hash_model
from aoq.runs.data_facts import DataFacts
from aoq.runs.directory import RunDirectory
from aoq.runs.summary import RunSummary
from aoq.storage import read_json, read_json_lines

_HEADINGS = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "rsum")
_TOWERS = "pretrained towers whose vectors are compared"
_KINDS = {
    "vsrn": "VSRN (one vector an image, by reasoning over its regions)",
    "scan": "SCAN (cross attention between words and regions)",
    "bfan": "BFAN (focal attention between words and regions)",
    "vse": "VSE++ (one vector an image, the mean of its regions)",
    "own": "a model of the author's own",
}
_LEARNED = {
    "heads": "heads on frozen towers",
    "top": "heads and the last blocks",
    "lora": "heads and low-rank adapters",
    "full": "everything",
}


@dataclass(frozen=True)
class Network:
    """A pretrained network that a run goes on from."""

    name: str
    "On the hub of Hugging Face, or a folder."
    reads: str
    licence: str | None

    @property
    def is_on_hub(self) -> bool:
        return _is_on_hub(self.name)

    @property
    def link(self) -> str:
        shown = Path(self.name).name if not self.is_on_hub else self.name
        return f"[{shown}](https://huggingface.co/{shown})" if self.is_on_hub else shown


def write_card(run: RunDirectory, *, name: str, licence: str | None = None) -> str:
    """Write the card of a trained round that goes to the hub as `name`.

    The licence of the run is `licence`, or that of its networks if all have the same.
    """
    require_packages("jinja2", "huggingface_hub", extra="hub")
    from jinja2 import Environment, PackageLoader

    recipe, summary, data = (
        load_recipe(run.config),
        RunSummary.read(run.path),
        DataFacts.of_run(run),
    )
    networks = networks_of(run, data)
    results = _results(run, summary)
    environment = Environment(
        loader=PackageLoader("aoq"), autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("card.md.j2").render(
        metadata=_metadata(recipe.model, networks, licence),
        title=name.rpartition("/")[2],
        summary=_summary(recipe.model),
        facts=_facts(summary, data),
        headings=_HEADINGS,
        results={label: _cells(line) for label, line in results.items()},
        with_intervals=any("intervals" in line for line in results.values()),
        with_dev=summary.dev is not None,
        networks=networks,
        commands=_commands(recipe.model, name),
        note=_note(recipe.model, data),
    )


def networks_of(run: RunDirectory, data: DataFacts) -> list[Network]:
    """List the pretrained networks by which a run reads images and texts, each once."""
    inputs = Inputs.from_dict(read_json(run.inputs)) if run.inputs.is_file() else Inputs()
    inputs = inputs.at(run.place_of)
    images = inputs.images or data.source
    imported = run.read_origin().get("imported", {}).get("model") if run.pretrained.is_dir() else ""
    readers: dict[str, list[str]] = {}
    if images is not None:
        readers.setdefault(imported or images.backbone, []).append("images")
    if inputs.texts is not None:
        readers.setdefault(imported or inputs.texts.tower, []).append("texts")
    return [Network(name, " and ".join(reads), licence_of(name)) for name, reads in readers.items()]


def licence_of(network: str) -> str | None:
    """Find the licence in the model card of a network; None if it has no card that says."""
    from huggingface_hub import HfApi, metadata_load

    with suppress(Exception):  # a card of others may hold anything, and the hub may be away
        if _is_on_hub(network):
            card = HfApi().model_info(network, timeout=10).card_data
            found = None if card is None else card.license
        else:
            found = (metadata_load(Path(network, "README.md")) or {}).get("license")
        return found if isinstance(found, str) else None
    return None


def _is_on_hub(network: str) -> bool:
    return network != DEFAULT_BACKBONE and not (
        Path(network).is_absolute() or Path(network).is_dir()
    )


def _metadata(model: ModelConfig, networks: Sequence[Network], licence: str | None) -> str:
    from huggingface_hub import ModelCardData

    of_networks = {network.licence for network in networks}
    shared = of_networks.pop() if len(of_networks) == 1 else None
    return ModelCardData(
        library_name="aoq",
        pipeline_tag="feature-extraction",
        tags=["image-text-retrieval", model.name],
        base_model=[network.name for network in networks if network.is_on_hub] or None,
        license=licence or shared or "unknown",
    ).to_yaml()


def _summary(model: ModelConfig) -> str:
    kind = _TOWERS if model.name == "towers" else _KINDS[model.name]
    return f"Scores how well a photo and a sentence fit, to search one by the other: {kind}."


def _facts(summary: RunSummary, data: DataFacts) -> dict[str, str]:
    """Return the lines of the first table; what is not known is left out."""
    recipe, settings = summary.recipe, summary.settings
    facts: dict[str, str] = {"model": recipe.model.name}
    if recipe.model.name == "towers":
        facts["learned"] = _LEARNED[recipe.model.learn]
        facts["heads"] = recipe.model.head
    if data.name:
        facts["data set"] = data.name
    for split, (images, captions) in data.sizes.items():
        facts[split] = f"{count_of(images, 'image')}, {count_of(captions, 'caption')}"
    if summary.epochs_done:  # neither imported nor interpolated
        facts["training"] = (
            f"round {summary.round}, loss {settings.loss.name}, "
            f"{count_of(summary.epochs_done, 'epoch')} of batches of {settings.batch_size}, "
            f"{settings.optimizer}, learning rate {settings.learning_rate:g}, seed {recipe.seed}"
        )
    return {**facts, "written by": f"aoq {__version__}"}


def _results(run: RunDirectory, summary: RunSummary) -> dict[str, Mapping[str, Any]]:
    """Return the last result of these weights on each split, by what it is called."""
    model = hash_model(run.path)
    lines: dict[tuple[str, str], Mapping[str, Any]] = {}
    for line in read_json_lines(run.results):
        if line.get("model") == model and all(name in line for name in PAPER_FIGURES):
            key = (str(line.get("split")), str(line.get("data")))
            if "intervals" in line or "intervals" not in lines.get(key, {}):
                lines[key] = line
    splits = [split for split, _ in lines]
    named = {
        split if splits.count(split) == 1 else f"{split} of data {data[:8]}": line
        for (split, data), line in lines.items()
    }
    dev = {} if summary.dev is None or "dev" in named else {"dev": summary.dev.metrics}
    return {**dev, **named}


def _cells(line: Mapping[str, Any]) -> list[str]:
    intervals = line.get("intervals", {})
    cells = []
    for name in PAPER_FIGURES:
        low, high = intervals.get(name, (None, None))
        bounds = "" if low is None else f" [{low:.1f}, {high:.1f}]"
        cells.append(f"{line[name]:.1f}{bounds}")
    return cells


def _commands(model: ModelConfig, name: str) -> list[str]:
    run = f"runs/{name.rpartition('/')[2]}"
    own = " --model MODULE:FUNCTION" if model.name == "own" else ""
    return [
        f"aoq pull {name} --out {run}",
        f"aoq index {run} --pictures photos --without-data{own}",
        f'aoq search {run} "a dog in the snow"{own}',
    ]


def _note(model: ModelConfig, data: DataFacts) -> str:
    if model.name == "own":
        return (
            "The repository holds the weights of this model, and not the program that makes it, "
            "which `--model` names."
        )
    if model.name != "towers" and data.source is None:
        return (
            "Nothing says how the regions of the images were made, so photos cannot be indexed: "
            "name a data set with the same features (`aoq index --data FOLDER`)."
        )
    return ""
