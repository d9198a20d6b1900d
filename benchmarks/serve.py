"""The server under load: 32 visitors at once for half a minute, and a bare loop in Python.

Visitors do what the page does: search in words, by numbers and with pictures, open photos, page
through the index. Each has a connection of its own and asks again as soon as it is answered; any
answer but 200 is an error. The loop asks the searches of the same run in one thread, one after the
other: what the server answers in the same time is held against it.

It serves what `make demo` trains, which it does first where nobody has.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import quote, urlsplit

from aoq.errors import UserError
from aoq.retrieval.location import INDEX_FOLDER
from aoq.retrieval.matcher import Matcher

DEMO = Path("runs/demo")
WARM_UP = 5.0
_BOUNDARY = "benchmark"


@dataclass(frozen=True)
class Question:
    """A request; where it is a search, what it looks for or with."""

    path: str
    images_for: str | int | None = None
    texts_for: bytes | int | None = None
    query: Mapping[str, Any] | None = None
    "Of a POST to `search`."

    @property
    def is_search(self) -> bool:
        return self.images_for is not None or self.texts_for is not None

    def ask(self, matcher: Matcher) -> None:
        """Ask a matcher in this process, without a server."""
        if self.images_for is not None:
            matcher.images_for(self.images_for, top=12)
        if self.texts_for is not None:
            matcher.texts_for(self.texts_for, top=12)

    def send(self, connection: http.client.HTTPConnection, headers: Mapping[str, str]) -> int:
        """The status of the answer, when all of it has come."""
        if self.query is not None:
            given = {**headers, "Content-Type": "application/json"}
            connection.request("POST", self.path, json.dumps(self.query), given)
        elif isinstance(self.texts_for, bytes):
            head = 'Content-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
            start, end = f"--{_BOUNDARY}\r\n{head}".encode(), f"\r\n--{_BOUNDARY}--\r\n".encode()
            kind = f"multipart/form-data; boundary={_BOUNDARY}"
            body = start + self.texts_for + end
            connection.request("POST", self.path, body, {**headers, "Content-Type": kind})
        else:
            connection.request("GET", self.path, headers=dict(headers))
        answer = connection.getresponse()
        answer.read()
        return answer.status


def questions(matcher: Matcher, name: str, *, count: int = 25, seed: int = 0) -> list[Question]:
    """As visitors ask: for `count` texts and images, in every way."""
    draw = random.Random(seed)
    root = f"/api/runs/{name}"
    asked = [Question("/"), Question("/api/status"), Question(f"{root}/curves")]
    for text in draw.choices(matcher.index.texts, k=count):
        words = " ".join(text.text.split()[:6])
        asked += [
            Question(f"{root}/images?text={quote(words)}", images_for=words),
            Question(f"{root}/images?text_number={text.number}", images_for=text.number),
            Question(f"{root}/entries?query={quote(text.text.split()[0])}"),
        ]
    for image in draw.choices(matcher.index.images, k=count):
        asked.append(Question(f"{root}/texts?image={image.number}", texts_for=image.number))
        if image.picture is not None:
            asked += [
                Question(f"{root}/texts", texts_for=image.picture.read_bytes()),
                Question(f"{root}/pictures/{image.number}"),
                Question(f"{root}/pictures/{image.number}?size=full"),
            ]
    return asked


def queries(matcher: Matcher, name: str, *, count: int = 25, seed: int = 0) -> list[Question]:
    """Searches that ask several things at once, as the page does."""
    draw = random.Random(seed)
    path = f"/api/runs/{name}/search"
    texts, images = matcher.index.texts, range(len(matcher.index.images))
    asked: list[dict[str, Any]] = []
    for text in draw.choices(texts, k=count):
        words = " ".join(text.text.split()[:6])
        asked += [
            {"texts": [words]},
            {"texts": [text.number], "collapse": True},
            {"texts": [words], "like": [draw.choice(images)], "where": f"split = {text.split}"},
        ]
    return [Question(path, query=query) for query in asked]


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    address: str
    process: subprocess.Popen[str]
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def connect(self) -> http.client.HTTPConnection:
        place = urlsplit(self.address)
        return http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)

    def memory(self) -> float:
        """What it holds, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def serving(*runs: Path, token: str | None = None) -> Iterator[Server]:
    """`aoq serve` on any free port, ended as Ctrl-C ends it."""
    command = [sys.executable, "-m", "aoq", "serve", *map(str, runs), "--port", "0"]
    surroundings = os.environ | ({} if token is None else {"AOQ_TOKEN": token})
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.search(r"http://[^ ]+", said)
            if found is None:
                raise UserError(f"the server did not start: {said or 'it said nothing'}")
            yield Server(found.group(), process, token)
        finally:
            process.send_signal(signal.SIGINT)


@dataclass
class Tally:
    """What visitors got: seconds an answer, and how often it was no answer."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def visit(server: Server, asked: Sequence[Question], *, clients: int, seconds: float) -> Tally:
    """So many visitors at once, each asking everything in an order of its own, over and over."""
    tally, end = Tally(), time.monotonic() + seconds

    def one(seed: int) -> None:
        mine = random.Random(seed).sample(asked, len(asked))
        connection = server.connect()
        at = 0
        while time.monotonic() < end:
            question = mine[at % len(mine)]
            at += 1
            started = time.perf_counter()
            try:
                status = question.send(connection, server.headers)
            except (OSError, http.client.HTTPException) as error:
                tally.errors.append(f"{question.path}: {error!r}")
                connection.close()
                continue
            tally.seconds.append(time.perf_counter() - started)
            if status != 200:
                tally.errors.append(f"{question.path}: {status}")
        connection.close()

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


@dataclass(frozen=True)
class Load:
    """Visitors of the demo's last run, measured from outside."""

    name: str
    clients: int = 32
    seconds: float = 30.0

    def run(self) -> dict[str, Any]:
        run = prepare_demo()
        matcher = Matcher.load(run)
        with serving(run) as server:
            asked = questions(matcher, _only_name(server))
            visit(server, asked, clients=self.clients, seconds=WARM_UP)
            before = server.memory()
            tally = visit(server, asked, clients=self.clients, seconds=self.seconds)
            after = server.memory()
            searches = [question for question in asked if question.is_search]
            searched = visit(server, searches, clients=self.clients, seconds=WARM_UP)
        direct = _direct_rate(matcher, searches, seconds=WARM_UP)
        over_http = len(searched.seconds) / WARM_UP
        cuts = quantiles(tally.seconds, n=100)
        result = {
            "name": self.name,
            "what": f"{self.clients} visitors for {self.seconds:g} s, a mix of requests",
            "baseline": "the same searches called in Python, one after the other, in one thread",
            "requests": len(tally.seconds),
            "requests_per_second": round(len(tally.seconds) / self.seconds, 1),
            "errors": len(tally.errors + searched.errors),
            "first_errors": (tally.errors + searched.errors)[:5],
            "p50_ms": round(1000 * cuts[49], 1),
            "p95_ms": round(1000 * cuts[94], 1),
            "p99_ms": round(1000 * cuts[98], 1),
            "memory_before_mib": round(before, 1),
            "memory_after_mib": round(after, 1),
            "searches_per_second": round(over_http, 1),
            "direct_searches_per_second": round(direct, 1),
        }
        return result | {"sentence": _sentence(result)}


def prepare_demo() -> Path:
    """The demo's last run, with its index."""
    from aoq.experiments.demo import run_demo
    from aoq.retrieval.build import build_index

    run = DEMO / "adap-off-quin"
    if not run.is_dir():
        run_demo(DEMO)
    if not (run / INDEX_FOLDER).is_dir():
        build_index(run)
    return run


def _only_name(server: Server) -> str:
    connection = server.connect()
    connection.request("GET", "/api/status")
    name: str = json.loads(connection.getresponse().read())["runs"][0]["name"]
    connection.close()
    return name


def _direct_rate(matcher: Matcher, searches: Sequence[Question], *, seconds: float) -> float:
    """Searches a second without a server."""
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for question in searches:
            question.ask(matcher)
        done += len(searches)
    return done / (time.perf_counter() - started)


def _sentence(result: dict[str, Any]) -> str:
    return (
        f"{result['requests_per_second']:.0f} requests/s, {result['errors']} errors, "
        f"p50 {result['p50_ms']:.0f} ms, p95 {result['p95_ms']:.0f} ms; "
        f"{result['memory_before_mib']:.0f} MiB after warm-up and {result['memory_after_mib']:.0f} "
        f"at the end; {result['searches_per_second']:.0f} searches/s over HTTP, "
        f"{result['direct_searches_per_second']:.0f}/s in a plain loop"
    )


COMPARISONS = [Load(name="serve, the demo's run")]
