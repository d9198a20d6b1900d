"""`aoq serve` as people start and stop it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from aoq.cli.serve import serve
from aoq.errors import UserError
from aoq.web.server import address_of, is_loopback, listen


def start(run: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aoq", "serve", str(run), "--port", "0", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_server_says_where_it_is_and_ends_with_its_container(served_runs):
    with start(served_runs.vsrn) as process:
        said = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", said).group()
        assert "Ctrl-C" in said
        assert httpx.get(f"{address}/api/status").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == "stopped\n"
    assert process.returncode == 0


def test_a_server_that_others_can_reach_makes_a_token_logs_no_secret_and_ends_on_a_signal(
    served_runs, tmp_path
):
    log = tmp_path / "access.jsonl"
    with start(served_runs.vsrn, "--host", "0.0.0.0", "--access-log", str(log)) as process:
        port = re.search(r":(\d+) ", process.stderr.readline()).group(1)
        token = re.search(r": (\S+)$", process.stderr.readline()).group(1)
        assert process.stderr.readline().endswith(f":{port}/#token={token}\n")
        address = f"http://127.0.0.1:{port}/api/status"
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx.get(address).status_code == 401
        names = {"10.0.0.1": 200, socket.gethostname(): 200, "photos.example": 400}
        for name, status in names.items():
            answer = httpx.get(f"{address}?text=secret", headers=bearer | {"host": name})
            assert answer.status_code == status, name
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "stopped\n"
    assert process.returncode == 0
    written = log.read_text()
    assert token not in written
    assert "secret" not in written
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["status"] for line in lines] == [401, *names.values()]
    assert lines[1] | {"time": 0, "seconds": 0, "bytes": 0} == {
        "time": 0,
        "client": "127.0.0.1",
        "visitor": "token",
        "method": "GET",
        "path": "/api/status",
        "status": 200,
        "bytes": 0,
        "seconds": 0,
    }


SLOW = """
import sys, time
from pathlib import Path
from aoq.cli import main
from aoq.retrieval.matcher import Matcher
Matcher.images_for = lambda *query, **options: time.sleep(60)
main()
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_while_it_works_after_any_number_of_signals(served_runs, ending):
    command = [sys.executable, "-c", SLOW, "serve", str(served_runs.vsrn), "--port", "0"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        address = re.search(r"http://[^ ]+", process.stderr.readline()).group()
        path = f"{address}/api/runs/vsrn-round-two/images?text=a"
        asked = pool.submit(httpx.get, path, timeout=60)
        time.sleep(1)
        started = time.monotonic()
        for _ in range(3):
            process.send_signal(ending)
            time.sleep(0.2)
        assert process.stderr.read() == "stopped\n"
        assert process.wait() == 0
        assert time.monotonic() - started < 30
        assert isinstance(asked.exception(), httpx.TransportError) or asked.result().is_error


def test_a_port_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} .*--port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1", "ü" * 100])
def test_a_host_that_does_not_exist_is_named(host):
    with pytest.raises(UserError, match="--host"):
        listen(host, 0)


def test_only_loopback_is_private():
    with listen("127.0.0.1", 0) as private, listen("0.0.0.0", 0) as public:
        assert is_loopback(private)
        assert not is_loopback(public)
        assert address_of(private).startswith("http://127.0.0.1:")


def test_a_run_without_an_index_is_refused_with_the_command_that_makes_one(served_runs):
    with pytest.raises(UserError, match="aoq index"):
        serve(served_runs.vsrn.with_name("round-one"), port=0)


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="no run is given"):
        serve()
    with pytest.raises(UserError, match="10 potatoes"):
        serve(Path("nowhere"), max_upload="10 potatoes")
    with pytest.raises(UserError, match="--max-upload is 0;"):
        serve(Path("nowhere"), max_upload="0MB")
    with pytest.raises(UserError, match="cannot be written"):
        serve(Path("nowhere"), access_log="no/such/folder/log")
    with pytest.raises(UserError, match="--index is for a single run"):
        serve(Path("one"), Path("two"), index=Path("index"))
