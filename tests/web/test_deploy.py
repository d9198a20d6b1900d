"""The examples in `deploy/`, run as far as a machine has what they are for."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from aoq.web.access import Gate, Rate, Tokens
from aoq.web.app import make_app
from aoq.web.limits import Limits
from aoq.web.monitoring import open_access_log
from aoq.web.server import listen, running
from tests.web.cases import VSRN
from tests.web.conftest import picture_bytes

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME, TOKEN = "photos.example.org", "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}", "Host": NAME}
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
ANALYZE = shutil.which("systemd-analyze")

FRAME = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {example}
}}
"""


def with_places(example: str, folder: Path, *, backend: int, port: int) -> str:
    """Replace the certificate, the ports and the second family of the example."""
    example = example.replace("/etc/ssl/photos.example.org", f"{folder}/own")
    example = example.replace("listen [::]:443 ssl;", "").replace("443", f"127.0.0.1:{port}")
    return FRAME.format(folder=folder, example=example.replace(":8000", f":{backend}"))


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")
def test_nginx_forwards_the_name_the_token_and_the_address_of_visitors(matchers, tmp_path):
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    certificate += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    certificate += ["-keyout", str(tmp_path / "own.key"), "-out", str(tmp_path / "own.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    log = open_access_log(str(tmp_path / "access.jsonl"))
    gate = Gate(Tokens({TOKEN: "anna"}), Rate(100))
    app = make_app(matchers, gate=gate, hosts={NAME}, access_log=log)
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with running(app, Limits()) as backend:
        example = (DEPLOY / "nginx.conf").read_text()
        settings = tmp_path / "nginx.conf"
        place = int(re.search(r":(\d+)$", backend).group(1))
        settings.write_text(with_places(example, tmp_path, backend=place, port=port))
        command = [NGINX, "-p", str(tmp_path), "-c", str(settings), "-e", str(tmp_path / "log")]
        with subprocess.Popen(command) as process:
            try:
                trust = ssl.create_default_context(cafile=str(tmp_path / "own.pem"))
                trust.check_hostname = False
                with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust) as client:
                    _wait(client)
                    _check(client)
            finally:
                process.terminate()
    for handler in log.handlers:
        handler.close()
    assert '"visitor": "anna"' in (tmp_path / "access.jsonl").read_text()


def _wait(client: httpx.Client) -> None:
    for _ in range(100):
        try:
            client.get("/healthz")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("nginx did not start")


def _check(client: httpx.Client) -> None:
    assert client.get("/api/status", headers={"Host": NAME}).status_code == 401
    assert client.get("/api/status", headers=BEARER).status_code == 200
    assert client.get("/metrics", headers=BEARER).status_code == 404
    page = {"Origin": f"https://{NAME}", "Host": NAME}
    begun = client.post("/api/session", json={"token": TOKEN}, headers=page)
    assert begun.status_code == 204
    assert "secure" in begun.headers["set-cookie"].lower()
    upload = {"picture": picture_bytes()}
    sent = client.post(f"/api/runs/{VSRN}/texts", files=upload, headers=BEARER | page)
    assert sent.status_code == 200, sent.text
    foreign = {"Origin": "https://evil.example"}
    answer = client.post(f"/api/runs/{VSRN}/texts", files=upload, headers=BEARER | foreign)
    assert answer.status_code == 403


@pytest.mark.skipif(ANALYZE is None, reason="no systemd on this machine")
def test_systemd_understands_the_unit(tmp_path):
    program = tmp_path / "aoq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "aoq.service"
    unit.write_text((DEPLOY / "aoq.service").read_text().replace("/opt/aoq/bin/aoq", str(program)))
    done = subprocess.run([ANALYZE, "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["aoq.service", "Dockerfile"])
def test_examples_use_options_that_there_are(name):
    from aoq.cli.serve import serve

    written = re.findall(r"(?<=\s)--([a-z-]+)", "".join(_serving(DEPLOY / name)))
    assert written
    known = {option.replace("_", "-") for option in serve.__annotations__}
    assert set(written) <= known


def _serving(file: Path) -> list[str]:
    """Read the command that serves, to its last continued line."""
    lines = file.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if " serve runs" in line)
    last = next(at for at in range(first, len(lines)) if not lines[at].endswith("\\"))
    return lines[first : last + 1]
