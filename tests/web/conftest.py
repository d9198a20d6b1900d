"""Two small trained runs and a real server for them, made once for all tests of this folder."""

from __future__ import annotations

import fcntl
import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from aoq.data.build import build_scenes
from aoq.recipes import load_recipe
from aoq.retrieval.indexing import build_index
from aoq.retrieval.matcher import Matcher
from aoq.training.two_rounds import run_recipe
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.server import address_of, listen, make_server


@dataclass(frozen=True)
class ServedRuns:
    """VSRN, which mined, and BFAN, which drew from its lists; both with an index of all splits."""

    data: Path
    vsrn: Path
    bfan: Path


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory) -> ServedRuns:
    """Trained once, whichever of several test processes comes first."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "served"
    root.mkdir(exist_ok=True)
    runs = ServedRuns(root / "scenes", root / "vsrn", root / "bfan")
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            _train(runs)
            (root / "done").touch()
    return runs


def _train(runs: ServedRuns) -> None:
    build_scenes(runs.data, size="tiny")
    vsrn = replace(load_recipe("scenes-tiny"), data=str(runs.data)).resolved()
    run_recipe(runs.vsrn, vsrn)
    narrow = replace(load_recipe("bfan-flickr8k").model, joint_width=16, word_width=8)
    lists = str(runs.vsrn / "candidates.safetensors")
    run_recipe(runs.bfan, replace(vsrn, model=narrow, candidates=lists))
    for run in (runs.vsrn, runs.bfan):
        build_index(run)


@pytest.fixture(scope="session")
def matchers(served_runs) -> list[Matcher]:
    return [Matcher.load(served_runs.vsrn), Matcher.load(served_runs.bfan)]


@contextmanager
def running(app: FastAPI, limits: Limits) -> Iterator[str]:
    """The address of a server that runs beside the test."""
    listener = listen("127.0.0.1", 0)
    server = make_server(app, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the server does not end"


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


def picture_bytes(kind: str = "JPEG", size: tuple[int, int] = (64, 48), **options) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()
