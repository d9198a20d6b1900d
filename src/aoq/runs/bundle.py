"""A trained round on its own: everything that a later command reads, and nothing of this machine.

A bundle is a run that can be taken elsewhere. Networks that are folders here go with it, and are
named by their place in it; networks of the hub are named only. Of the data set there is its name
and size. What a bundle may hold is listed here, so that a run from elsewhere can be held to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from aoq.data.inputs import Inputs
from aoq.errors import UserError
from aoq.manifest import check_file, create_manifest, record_rest
from aoq.recipes import load_recipe, save_recipe
from aoq.runs.data_facts import DataFacts
from aoq.runs.directory import CONFIG, COPIED, RunDirectory
from aoq.storage import read_json, read_json_lines, write_json, write_text

WHAT = "run"
_TAKEN = ("model.safetensors", "vocabulary.json", "results.jsonl")
_REWRITTEN = (CONFIG, "inputs.json", "data.json", "origin.json", "events.jsonl")
_NETWORKS = (PurePosixPath(COPIED).name, "pretrained")  # folders
_PLACE = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
_NETWORK_FILE = re.compile(r"[\w\-.]+\.(json|safetensors|txt|model)")


def is_known(name: str) -> bool:
    """Return whether a bundle may hold a file of this name.

    >>> is_known("towers/0/vit/config.json"), is_known("towers/../x.json"), is_known("run.py")
    (True, False, False)
    """
    if name in _TAKEN + _REWRITTEN:
        return True
    *places, file = name.split("/")
    return (
        bool(places)
        and places[0] in _NETWORKS
        and all(map(_PLACE.fullmatch, places))
        and _NETWORK_FILE.fullmatch(file) is not None
    )


def write_bundle(run: RunDirectory, folder: Path) -> None:
    """Write the bundle of a trained round into an empty folder; files as they are become links."""
    create_manifest(folder, WHAT)
    bundle, recipe, facts = RunDirectory(folder), load_recipe(run.config), DataFacts.of_run(run)
    for name in _TAKEN:
        if (run.path / name).is_file():
            _link(run.path / name, folder / name)
    if run.pretrained.is_dir():
        _link_network(run.pretrained, bundle.pretrained)
    networks = _Networks(run, folder)
    alone = replace(recipe, data="", candidates="", model=recipe.model.at(networks.keep))
    save_recipe(alone, bundle.config)
    if run.inputs.is_file():
        inputs = Inputs.from_dict(read_json(run.inputs)).at(networks.keep)
        write_json(bundle.inputs, inputs.as_dict())
    write_json(bundle.data_facts, facts.at(networks.keep).as_dict())
    if run.origin.is_file():
        write_json(bundle.origin, without_places(run.read_origin()))
    events = [json.dumps(without_places(event)) + "\n" for event in read_json_lines(run.events)]
    write_text(bundle.events, "".join(events))
    record_rest(folder)


def without_places(value: Any) -> Any:
    """Return a JSON value in which absolute paths are their last names.

    >>> without_places({"model": "/home/someone/models/clip", "epoch": 3})
    {'model': 'clip', 'epoch': 3}
    """
    if isinstance(value, dict):
        return {key: without_places(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_places(each) for each in value]
    is_place = isinstance(value, str) and Path(value).is_absolute()
    return Path(value).name if is_place else value


@dataclass
class _Networks:
    """Takes networks that are folders into a bundle, each once."""

    run: RunDirectory
    folder: Path
    kept: dict[Path, str] = field(default_factory=dict)

    def keep(self, network: str) -> str:
        """Return the name of a network in the bundle."""
        path = Path(self.run.place_of(network))
        if not path.is_absolute():  # none, or one of the hub
            return network
        if self.run.pretrained.is_dir():  # the one that the run holds, wherever it was
            return ""
        if not path.is_dir():
            raise UserError(
                f"{path} is not there, a network that {self.run.path} goes on from; bring it back."
            )
        if path.resolve() not in self.kept:
            # Its name stays: it is a part of the network's id.
            name = f"{COPIED}/{len(self.kept)}/{path.name}"
            _link_network(path, self.folder / name)
            self.kept[path.resolve()] = name
        return self.kept[path.resolve()]


def _link_network(network: Path, place: Path) -> None:
    """Take the files of a network that transformers reads; weights are safetensors only."""
    for file in _files_of(network):
        _link(file, place / file.relative_to(network))


def _files_of(network: Path) -> Iterator[Path]:
    files = [*network.iterdir(), network / "1_Pooling" / "config.json"]
    yield from (file for file in files if file.is_file() and _NETWORK_FILE.fullmatch(file.name))


def _link(file: Path, place: Path) -> None:
    check_file(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.resolve())
