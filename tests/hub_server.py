"""A hub on this machine, which speaks what huggingface_hub needs to upload and to download models.

Files of up to `REGULAR` bytes are part of a commit, larger ones are uploaded first (LFS), as on the
hub. Tests point huggingface_hub at it and read or damage what it holds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

REGULAR = 2_000
WRITE, READ = "hf_may_write", "hf_may_read"  # tokens
Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    """Repositories by name: the files of each commit, oldest first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.repositories: dict[str, dict[str, Files]] = {}
        self.uploaded: Files = {}
        self.downloads: list[str] = []
        self.cards: dict[str, dict[str, str]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, name: str) -> Files:
        return list(self.repositories[name].values())[-1]

    def commit(self, name: str, files: Files) -> str:
        """Add a commit that holds exactly these files."""
        commits = self.repositories.setdefault(name, {})
        described = json.dumps([len(commits), *sorted(files)])
        sha = hashlib.sha1(described.encode(), usedforsecurity=False).hexdigest()
        commits[sha] = files
        return sha


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set HF_ENDPOINT, which huggingface_hub reads once."""
    files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)


@contextmanager
def only_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a hub, and let huggingface_hub know it alone, with a cache of its own."""
    with running_hub() as hub:
        at(hub.address, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setenv("HF_TOKEN", WRITE)
        yield hub


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            self._tree(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(*found.groups())
        else:
            self._answer(404)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        if self.headers.get("Authorization") != f"Bearer {WRITE}":
            self._answer(403, {"error": "this token may not write"})
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body))
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            self._choose_modes(json.loads(body))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._offer_uploads(json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._answer(404)

    def do_PUT(self) -> None:
        content = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.uploaded[oid] = content
        self._answer(200)

    # Reading

    def _files_at(self, name: str, revision: str | None) -> tuple[str, Files] | None:
        """Find a commit; answer that there is none otherwise."""
        commits = self.server.repositories.get(name)
        if commits is None:
            self._answer(404, headers={"X-Error-Code": "RepoNotFound"})
            return None
        sha = list(commits)[-1] if revision in (None, "main") else str(revision)
        if sha not in commits:
            self._answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            return None
        return sha, commits[sha]

    def _info(self, name: str, revision: str | None) -> None:
        if found := self._files_at(name, revision):
            sha, files = found
            siblings = [{"rfilename": file} for file in files]
            card = self.server.cards.get(name)
            self._answer(200, {"id": name, "sha": sha, "siblings": siblings, "cardData": card})

    def _tree(self, name: str, revision: str) -> None:
        if found := self._files_at(name, revision):
            entries = [
                {"type": "file", "path": file, "size": len(content), "oid": _oid(content)}
                for file, content in found[1].items()
            ]
            self._answer(200, entries)

    def _file(self, name: str, revision: str, file: str) -> None:
        if found := self._files_at(name, revision):
            sha, files = found
            if file not in files:
                self._answer(404, headers={"X-Error-Code": "EntryNotFound"})
                return
            if self.command == "GET":
                self.server.downloads.append(file)
            headers = {"X-Repo-Commit": sha, "ETag": f'"{_oid(files[file])}"'}
            self._answer(200, files[file], headers=headers)

    # Writing

    def _validate(self, asked: dict[str, Any]) -> None:
        """Reject cards with a licence that is none."""
        is_wrong = "license: wrong" in asked["content"]
        errors = [{"message": '"license" must be one of ...'}] if is_wrong else []
        self._answer(400 if is_wrong else 200, {"errors": errors, "warnings": []})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        is_taken = name in self.server.repositories
        if not is_taken:
            self.server.commit(name, {".gitattributes": b"*.safetensors filter=lfs\n"})
        self._answer(409 if is_taken else 200, {"url": f"{self.server.address}/{name}"})

    def _choose_modes(self, asked: dict[str, Any]) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["size"] <= REGULAR else "lfs",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        self._answer(200, {"files": modes})

    def _offer_uploads(self, asked: dict[str, Any]) -> None:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.server.address}/lfs/{each['oid']}"}}}
            for each in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.server.files(name))
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.uploaded[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = self.server.commit(name, files)
        address = f"{self.server.address}/{name}"
        self._answer(200, {"commitUrl": f"{address}/commit/{sha}", "commitOid": sha})

    # HTTP

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(
        self, status: int, content: Any = None, *, headers: dict[str, str] | None = None
    ) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
