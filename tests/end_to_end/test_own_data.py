"""The way of docs/own-data.md, command by command, with a copy of a thousand real photos."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
FLICKR8K = Path(os.environ.get("AOQ_FLICKR8K", REPOSITORY.parent / "shared" / "flickr8k"))
PHOTOS = {"train": 800, "dev": 100, "test": 100}
FEWER_EPOCHS = [
    *("--round-one.epochs", "3", "--round-one.warmup-epochs", "1"),
    *("--round-two.epochs", "3", "--round-two.warmup-epochs", "1"),
]


def documented_commands() -> list[list[str]]:
    """The block of the page that trains a model, without its comments."""
    page = (REPOSITORY / "docs" / "own-data.md").read_text(encoding="utf-8")
    block = re.findall(r"```\n(.*?)```", page, flags=re.DOTALL)[1]
    return [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]


def copy_photos(folder: Path) -> None:
    """Photos with their captions as a CSV file; one of them has the name that the page uses."""
    captions: dict[str, list[str]] = {}
    for line in (FLICKR8K / "captions.tsv").read_text(encoding="utf-8").splitlines():
        name, caption = line.split("\t")
        captions.setdefault(name, []).append(caption)
    (folder / "photos").mkdir()
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "split"])
        for split, count in PHOTOS.items():
            names = (FLICKR8K / f"{split}.txt").read_text().splitlines()[:count]
            for number, name in enumerate(names):
                own = "one.jpg" if (split, number) == ("test", 0) else name
                shutil.copy(FLICKR8K / "images" / name, folder / "photos" / own)
                writer.writerows([own, caption, split] for caption in captions[name])


def aoq(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aoq", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def ask(address: str) -> dict[str, object]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason=f"{FLICKR8K} is absent; set AOQ_FLICKR8K")
def test_photos_become_a_search_by_the_commands_of_the_page(tmp_path):
    copy_photos(tmp_path)
    commands = [command[1:] for command in documented_commands()]
    names = [command[0] for command in commands]
    assert names == [
        "extract",
        "data",
        "data",
        "run",
        "index",
        "search",
        "search",
        "score",
        "serve",
    ]
    said = {}
    for command in commands[:-1]:
        given = [*command, *FEWER_EPOCHS] if command[0] == "run" else command
        done = aoq(tmp_path, *given)
        assert done.returncode == 0, f"{shlex.join(given)}: {done.stderr}"
        said[shlex.join(command)] = done.stdout + done.stderr
    assert "1,000" in said[shlex.join(commands[0])]  # pictures that were extracted
    run = tmp_path / "runs" / "mine"
    result = json.loads((run / "round-two" / "results.jsonl").read_text().splitlines()[-1])
    assert result["rsum"] > 75  # chance is about 48
    found = json.loads(aoq(tmp_path, *commands[6], "--json").stdout)
    assert {hit["rank"] for hit in found["hits"]} == set(range(1, 11))

    serve = [sys.executable, "-m", "aoq", *commands[-1], "--port", "0"]
    with subprocess.Popen(serve, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(
                found.group()
                for line in server.stderr
                if (found := re.search(r"http://\S+\d", line))
            )
            (served,) = ask(f"{address}/api/status")["runs"]
            assert (served["images"], served["texts"]) == (1000, 5000)
            answer = ask(f"{address}/api/runs/{served['name']}/images?text=a+dog+in+the+snow")
            assert len(answer["hits"]) > 0
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
