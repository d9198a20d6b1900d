"""Two small trained runs and a real server for them, made once for all tests of this folder."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from aoq.data.build import build_scenes
from aoq.recipes import load_recipe
from aoq.retrieval.build import Contents, Proposing, build_index
from aoq.retrieval.matcher import Matcher
from aoq.training.two_rounds import run_recipe
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import running
from tests.conftest import write_precomp
from tests.training.cases import small_recipe


@dataclass(frozen=True)
class ServedRuns:
    """VSRN, which mined, and BFAN, which drew from its lists; both with an index of all splits.

    Each is a folder of round two: which round of so small a run is the better one is chance.
    """

    data: Path
    vsrn: Path
    bfan: Path

    @property
    def lists(self) -> Path:
        return self.vsrn.parent / "candidates.safetensors"


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory) -> ServedRuns:
    """Trained once, whichever of several test processes comes first."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "served"
    root.mkdir(exist_ok=True)
    runs = ServedRuns(root / "scenes", root / "vsrn" / "round-two", root / "bfan" / "round-two")
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            _train(runs)
            (root / "done").touch()
    return runs


def _train(runs: ServedRuns) -> None:
    build_scenes(runs.data, size="tiny")
    vsrn = replace(load_recipe("scenes-tiny"), data=str(runs.data)).resolved()
    run_recipe(runs.vsrn.parent, vsrn)
    narrow = replace(load_recipe("bfan-flickr8k").model, joint_width=16, word_width=8)
    run_recipe(runs.bfan.parent, replace(vsrn, model=narrow, candidates=str(runs.lists)))
    for run in (runs.vsrn, runs.bfan):
        build_index(run)


@pytest.fixture(scope="session")
def matchers(served_runs) -> list[Matcher]:
    return [Matcher.load(served_runs.vsrn), Matcher.load(served_runs.bfan)]


def proposed_by_vsrn(runs: ServedRuns, index: Path, *, proposals: int) -> Matcher:
    """BFAN with an index of the test split, in which VSRN proposes."""
    proposing = Proposing(teacher=runs.vsrn, proposals=proposals, sample=10)
    build_index(runs.bfan, Contents(splits=["test"]), out=index, proposing=proposing)
    return Matcher.load(runs.bfan, index=index)


@pytest.fixture(scope="session")
def proposing_server(served_runs, tmp_path_factory) -> Iterator[str]:
    """The address of a server with VSRN, and with BFAN for which it proposes three."""
    index = tmp_path_factory.mktemp("proposed") / "index"
    bfan = proposed_by_vsrn(served_runs, index, proposals=3)
    limits = Limits()
    app = make_app([Matcher.load(served_runs.vsrn), bfan], limits=limits)
    with running(app, limits) as address:
        yield address


@pytest.fixture(scope="session")
def proposing(proposing_server) -> Iterator[tuple[httpx.Client, str]]:
    """A client of that server, and BFAN's name there."""
    with httpx.Client(base_url=proposing_server, timeout=30) as client:
        yield client, "bfan-round-two"


@pytest.fixture(scope="session")
def server(matchers) -> Iterator[str]:
    """The address of a server with the runs vsrn and bfan."""
    limits = Limits()
    with running(make_app(matchers, limits=limits), limits) as address:
        yield address


@pytest.fixture(scope="session")
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=30) as client:
        yield client


@pytest.fixture(scope="session")
def run_names(client) -> list[str]:
    """VSRN's and BFAN's, as addresses have them."""
    return [run["name"] for run in client.get("/api/status").json()["runs"]]


@pytest.fixture(scope="session")
def bare_data(tmp_path_factory):
    """Features that came without pictures, and a run on them."""
    folder = tmp_path_factory.mktemp("bare")
    data = write_precomp(folder / "precomp")
    run_recipe(folder / "run", replace(small_recipe(data), rounds="one"))
    return data, folder / "run"


@pytest.fixture(scope="session")
def bare(bare_data):
    """Twice the same run on features that came without pictures, with an index of dev only."""
    _, run = bare_data
    build_index(run, Contents(splits=["dev"]))
    matcher = Matcher.load(run)
    app = make_app([matcher, matcher])
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def picture_bytes(kind: str = "JPEG", size: tuple[int, int] = (64, 48), **options) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


def many_scans(scans: int, *, side: int = 3000) -> bytes:
    """A small progressive JPEG that says the same over and over, which takes long to decode."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    content, end = buffer.getvalue()[:-2], buffer.getvalue()[-2:]
    last = content[content.rindex(b"\xff\xda") :]
    return content + last * scans + end
