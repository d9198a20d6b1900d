"""A manifest proves what aoq wrote, and finds what was changed since."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aoq.errors import UserError
from aoq.folders import check_output_folder
from aoq.manifest import (
    BLOCK,
    NAME,
    BlockCheck,
    DamagedFileError,
    check_file,
    check_of,
    create_manifest,
    foreign_files,
    mapped,
    read_checked,
    record,
)
from aoq.storage import (
    append_json_line,
    atomic_file,
    atomic_folder,
    read_json,
    read_json_lines,
    remove_folder,
    write_json,
    write_text,
)


@pytest.fixture
def folder(tmp_path):
    """A run as aoq writes it, with a file in a folder of its own."""
    (tmp_path / "run").mkdir()
    create_manifest(tmp_path / "run", "run")
    write_text(tmp_path / "run" / "config.toml", "seed = 0\n")
    write_json(tmp_path / "run" / "ranks" / "test.json", {"ranks": [1, 2]})
    return tmp_path / "run"


@pytest.mark.parametrize("damage", [b"", b"seed = 1\n", b"seed = 0", b"seed = 0\n\n"])
def test_a_changed_file_is_refused_when_it_is_read(folder, damage):
    path = folder / "config.toml"
    assert read_checked(path) == b"seed = 0\n"
    path.write_bytes(damage)
    with pytest.raises(DamagedFileError, match=r"config\.toml is damaged or was changed"):
        read_checked(path)
    with pytest.raises(DamagedFileError):
        check_file(path)


def test_a_log_that_grows_while_it_is_read_is_not_taken_for_damaged(tmp_path, monkeypatch):
    create_manifest(tmp_path, "run")
    log, read = tmp_path / "events.jsonl", Path.read_bytes
    append_json_line(log, {"event": "start"})

    def read_and_grow(path):
        content = read(path)
        if path == log:
            append_json_line(log, {"event": "steps"})
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_grow)
    assert read_json_lines(log) == [{"event": "start"}]


def test_a_folder_without_a_manifest_is_read_unchecked_and_never_removed(folder):
    (folder / NAME).unlink()
    (folder / "config.toml").write_text("seed = 7\n")
    assert read_checked(folder / "config.toml") == b"seed = 7\n"
    with pytest.raises(UserError, match="aoq did not write it as its run"):
        check_output_folder(folder, what="run", force=True)
    with pytest.raises(UserError, match=r"config\.toml and 1 more, which aoq did not"):
        remove_folder(folder)
    assert (folder / "config.toml").exists()


@pytest.mark.parametrize("name", ["thesis.tex", "ranks/thesis.tex", "src/deep/down/thesis.tex"])
def test_a_foreign_file_anywhere_stops_a_removal_and_is_named(folder, name):
    assert foreign_files(folder) == []
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("years of work")
    with pytest.raises(UserError, match=f"holds {name}, which aoq did not write"):
        check_output_folder(folder, what="run", force=True)
    with pytest.raises(UserError, match=name):
        remove_folder(folder)
    assert (folder / name).read_text() == "years of work"
    assert (folder / "config.toml").exists()


def test_a_folder_of_another_kind_is_not_replaced(folder):
    with pytest.raises(UserError, match="it holds: run"):
        check_output_folder(folder, what="data set", force=True)


def test_what_is_being_written_and_locks_are_not_foreign(folder):
    (folder / ".lock").touch()
    (folder / ".model.safetensors.0123abcd.part").write_text("half")
    (folder / ".data.0123abcd.part").mkdir()
    (folder / ".data.0123abcd.part" / "half").write_text("half")
    assert foreign_files(folder) == []
    remove_folder(folder)
    assert not folder.exists()


def test_killed_before_a_file_takes_its_place_the_old_one_is_valid(folder):
    path = folder / "config.toml"
    for number in range(3):  # killed again and again
        (folder / "half").write_text(f"seed = {number + 1}\n")
        record(path, content=folder / "half")
    assert read_checked(path) == b"seed = 0\n"


def test_a_line_that_a_kill_cut_short_does_not_damage_a_manifest(folder):
    with (folder / NAME).open("ab") as file:
        file.write(b'{"file": "conf')
    assert read_checked(folder / "config.toml")
    write_text(folder / "config.toml", "seed = 5\n")
    assert read_checked(folder / "config.toml") == b"seed = 5\n"


def test_a_damaged_line_of_a_manifest_is_named(folder):
    content = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(content.replace(b'"config.toml"', b'"config.tomk"'))
    with pytest.raises(UserError, match=rf"{NAME}, line 2: it is damaged"):
        read_checked(folder / "config.toml")


@pytest.mark.parametrize(
    "entry",
    [
        {"file": 5, "bytes": 1, "blocks": []},
        {"file": "config.toml"},
        {"file": "config.toml", "bytes": 1, "blocks": 3},
        {"file": "config.toml", "bytes": 1, "blocks": [5]},
        {"pattern": ["*"]},
        {"what": None},
    ],
)
def test_a_line_that_somebody_made_up_is_damaged_though_its_check_is_right(folder, entry):
    line = json.dumps({**entry, "check": check_of(entry)})
    with (folder / NAME).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(UserError, match="it is damaged"):
        read_checked(folder / "config.toml")


def test_a_log_may_have_grown_but_not_shrunk_or_changed(folder):
    log = folder / "events.jsonl"
    for number in range(3):
        append_json_line(log, {"n": number})
    content = log.read_bytes()
    log.write_bytes(content + b'{"n": 3}\n{"n":')  # killed before the manifest was told
    assert [line["n"] for line in read_json_lines(log)] == [0, 1, 2, 3]
    append_json_line(log, {"n": 4})
    assert [line["n"] for line in read_json_lines(log)] == [0, 1, 2, 3, 4]
    log.write_bytes(content[: content.index(b"\n") + 1])
    with pytest.raises(DamagedFileError, match="instead of"):
        read_json_lines(log)
    log.write_bytes(content.replace(b"1", b"7"))
    with pytest.raises(DamagedFileError):
        append_json_line(log, {"n": 5})


def test_a_long_log_is_hashed_at_its_end_only_and_checked_whole_when_read(folder):
    log = folder / "events.jsonl"
    for number in range(5):
        append_json_line(log, {"n": number, "padding": "x" * (BLOCK // 2)})
    assert [line["n"] for line in read_json_lines(log)] == [0, 1, 2, 3, 4]
    content = bytearray(log.read_bytes())
    content[1000] ^= 1  # in a block that an append does not look at
    log.write_bytes(content)
    append_json_line(log, {"n": 5})
    with pytest.raises(DamagedFileError):
        read_json_lines(log)
    content[1000] ^= 1
    log.write_bytes(bytes(content) + b'{"n": 5}\n')
    assert [line["n"] for line in read_json_lines(log)] == [0, 1, 2, 3, 4, 5]


def test_a_manifest_stays_short_however_often_files_are_written(folder, monkeypatch):
    monkeypatch.setattr("aoq.manifest._LONG", 4096)
    for number in range(200):
        append_json_line(folder / "events.jsonl", {"n": number})
        write_text(folder / "config.toml", f"seed = {number}\n")
    assert (folder / NAME).stat().st_size < 2 * 4096
    assert len(read_json_lines(folder / "events.jsonl")) == 200
    assert read_checked(folder / "config.toml") == b"seed = 199\n"
    assert read_json(folder / "ranks" / "test.json") == {"ranks": [1, 2]}
    assert foreign_files(folder) == []
    (folder / "config.toml").write_text("seed = 198\n")  # as if killed before the last one
    assert read_checked(folder / "config.toml")
    (folder / "config.toml").write_text("seed = 7\n")
    with pytest.raises(DamagedFileError):
        read_checked(folder / "config.toml")


def test_processes_that_write_to_one_folder_lose_no_line_of_its_manifest(folder):
    script = (
        "import sys; from pathlib import Path; import aoq.manifest as manifest\n"
        "from aoq.storage import write_text\n"
        "manifest._LONG = 2048\n"
        "for n in range(100): write_text(Path(sys.argv[1]) / f'{sys.argv[2]}-{n}.txt', str(n))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), name]) for name in "abc"
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(list(folder.glob("*.txt"))) == 300
    assert foreign_files(folder) == []


def test_a_damaged_line_of_a_log_is_named_by_its_number(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"n": 0}\n{"n" 1}\n{"n": 2}\n')
    with pytest.raises(UserError, match=r"log\.jsonl, line 2: it is damaged"):
        read_json_lines(log)


def test_a_line_with_a_check_is_checked_in_any_folder(tmp_path):
    log = tmp_path / "log.jsonl"
    for value in ({"rsum": 231.5}, {"rsum": 244.8}):
        append_json_line(log, value, with_check=True)
    assert read_json_lines(log) == [{"rsum": 231.5}, {"rsum": 244.8}]
    log.write_text(log.read_text().replace("244.8", "254.8"))
    with pytest.raises(UserError, match=r"log\.jsonl, line 2: it is damaged"):
        read_json_lines(log)


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_json_that_is_not_an_object_is_one_sentence(tmp_path, content):
    (tmp_path / "origin.json").write_text(content)
    with pytest.raises(UserError, match=r"origin\.json is damaged"):
        read_json(tmp_path / "origin.json")


def test_a_large_file_is_checked_block_by_block_as_it_is_read(folder):
    path = folder / "features.npy"
    with atomic_file(path) as temporary:
        temporary.write_bytes(bytes(range(256)) * (3 * BLOCK // 256) + b"end")
    content = bytearray(path.read_bytes())
    content[2 * BLOCK + 5] ^= 1
    path.write_bytes(content)
    check = BlockCheck(path)
    view = mapped(path)
    check.check(view, 0, 2 * BLOCK)
    check.check(view, 3 * BLOCK, 3 * BLOCK + 3)
    assert check.is_checked(0, 2 * BLOCK)
    assert not check.is_checked(2 * BLOCK, 2 * BLOCK + 1)
    with pytest.raises(DamagedFileError, match=r"3\. mebibyte"):
        check.check(view, 2 * BLOCK - 1, 2 * BLOCK + 1)


def test_an_atomic_folder_lists_all_that_it_holds(tmp_path):
    with atomic_folder(tmp_path / "data", what="data set") as temporary:
        (temporary / "pictures").mkdir()
        (temporary / "pictures" / "a.png").write_bytes(b"pixels")
    assert foreign_files(tmp_path / "data") == []
    (tmp_path / "data" / "pictures" / "a.png").write_bytes(b"pixelz")
    with pytest.raises(DamagedFileError):
        read_checked(tmp_path / "data" / "pictures" / "a.png")
