"""Sources that people bring: what is read from them, and what is said about their mistakes."""

from __future__ import annotations

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.data.sources.records import Record, rank_into_splits, read_records
from aoq.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
FLICKR8K = Path(os.environ.get("AOQ_FLICKR8K", REPOSITORY.parent / "shared" / "flickr8k"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (folder / name).write_text(f"{name} is never decoded by the readers")
    return folder


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(pictures: Path, name: str, content: str | bytes, **options: Path) -> list[Record]:
    return read_records(write(pictures.parent, name, content), pictures=pictures, **options)


def refusal(pictures: Path, name: str, content: str | bytes, **options: Path) -> str:
    """The report about a source, after which nothing lies around that was not there before."""
    path = write(pictures.parent, name, content)
    before = sorted(pictures.parent.rglob("*"))
    with pytest.raises(UserError) as caught:
        read_records(path, pictures=pictures, **options)
    assert sorted(pictures.parent.rglob("*")) == before
    return str(caught.value)


def karpathy(*images: Mapping[str, object]) -> str:
    return json.dumps({"dataset": "coco", "images": images})


def test_a_table_gives_uneven_captions_in_the_order_of_the_file(pictures: Path) -> None:
    text = 'split,image,caption\ntest,b.jpg,"a dog, running"\ntrain,a.jpg,a cat\ntest,b.jpg,a dog\n'
    records = read(pictures, "captions.csv", text)
    assert [record.image_id for record in records] == ["b.jpg", "a.jpg"]
    assert records[0].captions == ("a dog, running", "a dog")
    assert records[0].caption_ids == ("b.jpg#0", "b.jpg#1")
    assert [record.split for record in records] == ["test", "train"]
    assert records[0].picture == pictures / "b.jpg"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.txt", "image,caption\na.jpg,a cat\n"),
        ("captions.csv", "\ufeffImage;Caption\r\na.jpg;a cat\r\n"),
        ("captions.tsv", "image\tcaption\n./a.jpg\ta  cat \n"),
        ("captions.jsonl", '{"image": "a.jpg", "caption": "a cat"}\n'),
        ("results.token", "a.jpg#0\ta cat\n"),
        ("captions.tsv", "a.jpg\ta cat"),
        (
            "dataset.json",
            karpathy({"filename": "a.jpg", "split": "train", "sentences": [{"raw": "a cat"}]}),
        ),
        (
            "coco.json",
            json.dumps(
                {
                    "images": [{"id": 1, "file_name": "a.jpg"}],
                    "annotations": [{"image_id": 1, "caption": "a cat"}],
                }
            ),
        ),
    ],
)
def test_every_format_is_recognised_by_its_content(pictures: Path, name: str, content: str) -> None:
    (record,) = read(pictures, name, content)
    assert record.picture == pictures / "a.jpg"
    assert record.captions == ("a cat",)
    assert record.split == "train"


def test_karpathy_keeps_coco_and_sentence_ids_and_maps_the_splits(pictures: Path) -> None:
    (pictures / "val2014").mkdir()
    (pictures / "a.jpg").rename(pictures / "val2014" / "a.jpg")
    records = read(
        pictures,
        "dataset_coco.json",
        karpathy(
            {
                "filepath": "val2014",
                "filename": "a.jpg",
                "split": "restval",
                "cocoid": 0,
                "sentences": [{"tokens": ["a", "cat"], "sentid": 70}],
            },
            {
                "filename": "b.jpg",
                "split": "val",
                "cocoid": 9,
                "sentences": [{"raw": "A dog.\n", "sentid": 71}],
            },
        ),
    )
    assert [(r.image_id, r.split, r.caption_ids) for r in records] == [
        ("0", "train", ("70",)),
        ("9", "dev", ("71",)),
    ]
    assert records[0].picture == pictures / "val2014" / "a.jpg"
    assert records[1].captions == ("A dog.",)


def test_split_lists_decide_and_pictures_in_none_are_left_out_with_a_warning(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(pictures.parent, "train.txt", "b.jpg\n")
    write(pictures.parent, "dev.txt", "a.jpg\n")
    tokens = "a.jpg#0\ta cat\nb.jpg#0\ta dog\nb.jpg#1\tdogs\nc.jpg#0\ta cow\n"
    records = read(pictures, "results.token", tokens, splits=pictures.parent)
    assert [(record.image_id, record.split) for record in records] == [
        ("a.jpg", "dev"),
        ("b.jpg", "train"),
    ]
    warning = capsys.readouterr().err
    assert "are left out: 1, the first is c.jpg" in " ".join(warning.split())


def test_pictures_without_a_line_are_left_out_with_a_warning(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read(pictures, "captions.csv", "image,caption\na.jpg,a cat\n")) == 1
    assert "pictures without a caption in" in capsys.readouterr().err


def test_a_refused_file_warns_of_nothing_besides(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pictures of refused lines have captions: to call them left out would mislead."""
    refusal(pictures, "x.csv", "image,caption\na.jpg,a cat\nb.jpg,a dog, running\n")
    write(pictures.parent, "train.txt", "b.jpg\nno.jpg\n")
    tokens = "a.jpg#0\ta cat\nb.jpg#0\ta dog\n"
    refusal(pictures, "x.token", tokens, splits=pictures.parent)
    assert capsys.readouterr().err == ""


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(pictures: Path) -> None:
    report = refusal(pictures, "x.csv", "image,caption\nA.JPG,a cat\nz.jpg,a dog\n")
    assert "x.csv, line 2: the picture A.JPG is not in" in report
    assert "; a.jpg exists: write that name." in report
    assert "x.csv, line 3: the picture z.jpg is not in" in report
    assert "; put it there, or remove its captions." in report


NFC, NFD = (unicodedata.normalize(form, "Käse/Brötchen.jpg") for form in ("NFC", "NFD"))
MIXED = NFC.split("/")[0] + "/" + NFD.split("/")[1]


def with_accents(pictures: Path, *names: str) -> None:
    for name in names:
        (pictures / name).parent.mkdir(exist_ok=True)
        write(pictures, name, ascii(name))


@pytest.mark.parametrize(("there", "written"), [(NFD, NFC), (NFC, NFD), (MIXED, NFC)])
def test_a_picture_is_found_however_its_accents_are_encoded(
    pictures: Path, there: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Macs encode them in another way than most programs, and archives keep that."""
    with_accents(pictures, there)
    lines = f"{written},bread\n{there},bread and cheese\na.jpg,a cat\nb.jpg,a dog\nc.jpg,a cow\n"
    record, *others = read(pictures, "x.csv", f"image,caption\n{lines}")
    assert len(others) == 3
    assert record.image_id == written
    assert record.picture == pictures / there
    assert record.captions == ("bread", "bread and cheese")
    assert capsys.readouterr().err == ""  # no picture is without a caption


def test_split_lists_may_encode_accents_otherwise(pictures: Path) -> None:
    with_accents(pictures, NFD)
    write(pictures.parent, "dev.txt", f"{MIXED}\n")
    (record,) = read(pictures, "x.token", f"{NFC}#0\tbread\n", splits=pictures.parent)
    assert (record.image_id, record.split, record.picture) == (NFC, "dev", pictures / NFD)


def test_of_pictures_that_look_the_same_the_exact_one_is_meant_or_none(pictures: Path) -> None:
    with_accents(pictures, NFC, NFD)
    records = read(pictures, "x.csv", f"image,caption\n{NFD},bread\n{NFC},cheese\n")
    assert [record.picture for record in records] == [pictures / NFD, pictures / NFC]
    report = refusal(pictures, "x.csv", f"image,caption\n{MIXED},bread\n")
    assert f"x.csv, line 2: the picture {MIXED} is not in" in report
    assert "encode accents differently" in report


def test_a_split_list_without_endings_is_answered_with_the_names(pictures: Path) -> None:
    write(pictures.parent, "train.txt", "a\n")
    report = refusal(pictures, "x.token", "a.jpg#0\ta cat\n", splits=pictures.parent)
    assert "train.txt, line 1: a has no caption in" in report
    assert "; a.jpg exists: write that name." in report


def test_images_of_coco_may_name_their_split(pictures: Path) -> None:
    images = [{"id": n, "file_name": f"{name}.jpg"} for n, name in enumerate("abc")]
    annotations = [{"image_id": n, "id": 70 + n, "caption": "a cat"} for n in range(3)]
    for image, split in zip(images, ("val", "test", "train"), strict=True):
        image["split"] = split
    document = {"images": images, "annotations": annotations}
    records = read(pictures, "x.json", json.dumps(document))
    assert [(r.image_id, r.split, r.caption_ids) for r in records] == [
        ("0", "dev", ("70",)),
        ("1", "test", ("71",)),
        ("2", "train", ("72",)),
    ]


def test_split_lists_serve_every_format(pictures: Path) -> None:
    write(pictures.parent, "train.txt", "b.jpg\n")
    write(pictures.parent, "test.txt", "a.jpg\n")
    document = {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "annotations": [{"image_id": n, "caption": "a cat"} for n in (1, 2)],
    }
    records = read(pictures, "x.json", json.dumps(document), splits=pictures.parent)
    assert [record.split for record in records] == ["test", "train"]


def test_split_lists_stand_above_splits_that_the_captions_name(pictures: Path) -> None:
    write(pictures.parent, "train.txt", "b.jpg\n")
    write(pictures.parent, "test.txt", "a.jpg\n")
    table = "image,caption,split\na.jpg,a cat,train\nb.jpg,a dog,elsewhere\n"
    records = read(pictures, "x.csv", table, splits=pictures.parent)
    assert [record.split for record in records] == ["test", "train"]


def test_whole_paths_of_pictures_in_the_folder_are_their_names(pictures: Path) -> None:
    write(pictures.parent, "train.txt", f"{pictures}/a.jpg\nb.jpg\n")
    table = f"image,caption\n{pictures}/a.jpg,a cat\na.jpg,cats\n{pictures.resolve()}/b.jpg,a dog\n"
    records = read(pictures, "x.csv", table, splits=pictures.parent)
    assert [(record.image_id, record.picture) for record in records] == [
        ("a.jpg", pictures / "a.jpg"),
        ("b.jpg", pictures / "b.jpg"),
    ]
    assert records[0].captions == ("a cat", "cats")


def test_spaces_after_a_comma_belong_to_no_cell(pictures: Path) -> None:
    table = 'image, caption\na.jpg, "a dog, running"\nb.jpg, "a girl"\n'
    captions = [record.captions for record in read(pictures, "x.csv", table)]
    assert captions == [("a dog, running",), ("a girl",)]


@given(st.sets(st.text(min_size=1), min_size=3, max_size=60))
def test_ranked_splits_are_80_10_10_whatever_the_order(names: set[str]) -> None:
    split_of = rank_into_splits(sorted(names))
    assert split_of == rank_into_splits(sorted(names, reverse=True))
    counts = Counter(split_of.values())
    assert counts["dev"] == counts["test"] == max(1, round(len(names) / 10))
    assert counts.total() == len(names)


def test_copies_of_a_picture_are_shared_out_together(pictures: Path) -> None:
    """In every order of the file, and with the one of them that has a split."""
    names = [f"{number}.jpg" for number in range(40)]
    for number, name in enumerate(names):
        write(pictures, name, f"picture {number % 10}")
    lines = [f"{name},a cat\n" for name in names]
    records = read(pictures, "x.csv", "image,caption\n" + "".join(lines))
    split_of = {record.image_id: record.split for record in records}
    assert Counter(split_of.values()) == {"train": 32, "dev": 4, "test": 4}
    assert all(split_of[name] == split_of[f"{n % 10}.jpg"] for n, name in enumerate(names))
    again = read(pictures, "x.csv", "image,caption\n" + "".join(reversed(lines)))
    assert {record.image_id: record.split for record in again} == split_of
    given = ROW + "".join(f"{name},a cat,{'dev' if name == '39.jpg' else ''}\n" for name in names)
    settled = {record.image_id: record.split for record in read(pictures, "x.csv", given)}
    assert {settled[name] for name in ("9.jpg", "19.jpg", "29.jpg", "39.jpg")} == {"dev"}


def test_hidden_files_are_not_pictures_without_captions(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `aoq extract` does not look at is not missed either."""
    (pictures / ".thumbnails").mkdir()
    for name in (".hidden.jpg", ".thumbnails/a.jpg"):
        write(pictures, name, "")
    read(pictures, "x.csv", "image,caption\na.jpg,a cat\nb.jpg,a dog\n")
    assert "are left out: 1, the first is c.jpg" in capsys.readouterr().err


def test_karpathy_keeps_the_folder_of_pictures_that_are_elsewhere(pictures: Path) -> None:
    """Regions are named like their pictures, folder and all."""
    images = [
        {"filepath": "val2014", "filename": f"{n}.jpg", "split": "val", "sentences": [{"raw": "a"}]}
        for n in ("a", "x")
    ]
    path = write(pictures.parent, "x.json", karpathy(*images))
    records = read_records(path, pictures=pictures, need_pictures=False)
    assert [record.picture.relative_to(pictures).as_posix() for record in records] == [
        "a.jpg",
        "val2014/x.jpg",
    ]


ROW = "image,caption,split\n"
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "an empty caption": (
        "x.csv",
        ROW + "a.jpg,a cat,train\na.jpg,  ,train\n",
        "x.csv, line 3: the caption of a.jpg is empty",
    ),
    "one image in two splits": (
        "x.csv",
        ROW + "a.jpg,a cat,train\na.jpg,a cat,test\n",
        "x.csv, line 3: a.jpg is in test here and in train at",
    ),
    "an unknown split": (
        "x.csv",
        ROW + "a.jpg,a cat,training\n",
        "x.csv, line 2: the split 'training' is unknown",
    ),
    "a missing picture": (
        "x.csv",
        ROW + "no.jpg,a cat,train\n",
        "x.csv, line 2: the picture no.jpg is not in",
    ),
    "a name too long for any file": (
        "x.csv",
        ROW + "a" * 5000 + ",a cat,train\n",
        "aaa is not in",
    ),
    "a name with a NUL": (
        "x.jsonl",
        '{"image": "a\\u0000.jpg", "caption": "a cat"}',
        "x.jsonl, line 1: the picture a\0.jpg is not in",
    ),
    "a path out of the folder": (
        "x.csv",
        ROW + "../x.csv,a cat,train\n",
        "x.csv, line 2: ../x.csv leads out of",
    ),
    "an absolute path": (
        "x.csv",
        ROW + "/etc/passwd,a cat,train\n",
        "x.csv, line 2: /etc/passwd leads out of",
    ),
    "a comma without quotes": (
        "x.csv",
        ROW + "a.jpg,a cat, a dog,train\n",
        "x.csv, line 2: 4 cells where the header has 3",
    ),
    "a quote that never ends": (
        "x.csv",
        ROW + 'a.jpg,"a cat,train\n',
        "x.csv, line 2: not valid CSV",
    ),
    "a missing column": (
        "x.csv",
        "image,text\na.jpg,a cat\n",
        "x.csv, line 1: the columns are 'image,text'",
    ),
    "a column twice": (
        "x.csv",
        "image,caption,caption\na.jpg,a,b\n",
        "x.csv, line 1: the column caption occurs twice",
    ),
    "no image name": ("x.csv", ROW + ",a cat,train\n", "x.csv, line 2: image is ''"),
    "text that is no UTF-8": (
        "x.csv",
        b"image,caption\na.jpg,a cat\na.jpg,caf\xe9\n",
        "x.csv, line 3: byte 0xe9 is not UTF-8",
    ),
    "a bad JSON line": (
        "x.jsonl",
        '{"image": "a.jpg", "caption": "a"}\n{"image": \n',
        "x.jsonl, line 2: not valid JSON",
    ),
    "a JSON line that is no object": (
        "x.jsonl",
        '{"image": "a.jpg", "caption": "a"}\n[1]\n',
        "x.jsonl, line 2: [1] is not a JSON object",
    ),
    "a JSON key twice": (
        "x.jsonl",
        '{"image": "a.jpg", "image": "b.jpg", "caption": "a"}\n{}\n',
        "x.jsonl, line 1: not valid JSON (a key occurs twice)",
    ),
    "a JSON line without a caption": (
        "x.jsonl",
        '{"image": "a.jpg"}\n',
        "x.jsonl, line 1: caption is None",
    ),
    "a truncated JSON document": (
        "x.json",
        '{"images":\n [{"filename"',
        "x.json, line 2: not valid JSON",
    ),
    "an image without sentences": (
        "x.json",
        karpathy({"filename": "a.jpg", "split": "train", "sentences": []}),
        "x.json, images[0]: a.jpg has no sentences",
    ),
    "an image without a split": (
        "x.json",
        karpathy({"filename": "a.jpg", "sentences": [{"raw": "a"}]}),
        "x.json, images[0]: split is None; expected text",
    ),
    "an image twice": (
        "x.json",
        karpathy(*[{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "a"}]}] * 2),
        "x.json, images[1]: a.jpg is already used",
    ),
    "a sentence id twice": (
        "x.json",
        karpathy(
            {
                "filename": "a.jpg",
                "split": "train",
                "sentences": [{"raw": "a", "sentid": 1}, {"raw": "b", "sentid": 1}],
            }
        ),
        "x.json, images[0].sentences[1]: the caption id 1 is taken by",
    ),
    "an image without annotations": (
        "x.json",
        json.dumps({"images": [{"id": 7, "file_name": "a.jpg"}], "annotations": []}),
        "x.json: the image 7 (a.jpg) has no annotation",
    ),
    "an annotation of no image": (
        "x.json",
        json.dumps({"images": [], "annotations": [{"image_id": 7, "caption": "a"}]}),
        "x.json, annotations[0]: the image 7 is not among",
    ),
    "a token line without a tab": (
        "x.token",
        "a.jpg#0\ta cat\na.jpg#1 a cat\n",
        "x.token, line 2: 'a.jpg#1 a cat'; expected a picture name, a tab",
    ),
    "a token number twice": (
        "x.token",
        "a.jpg#0\ta cat\na.jpg#0\ta dog\n",
        "x.token, line 2: the caption id a.jpg#0 is taken by",
    ),
    "a file of another kind": (
        "x.txt",
        "hello\n",
        "x.txt, line 1: 'hello' is not a format of captions",
    ),
    "an empty file": ("x.csv", "image,caption\n", "x.csv holds no captions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_file_and_the_place(pictures: Path, case: str) -> None:
    name, content, sentence = REFUSED[case]
    assert sentence in refusal(pictures, name, content)


def test_a_listed_picture_without_captions_is_refused(pictures: Path) -> None:
    write(pictures.parent, "train.txt", "a.jpg\nb.jpg\n")
    report = refusal(pictures, "x.token", "a.jpg#0\ta cat\n", splits=pictures.parent)
    assert "train.txt, line 2: b.jpg has no caption in" in report


def test_a_picture_in_two_lists_is_refused(pictures: Path) -> None:
    write(pictures.parent, "train.txt", "a.jpg\n")
    write(pictures.parent, "test.txt", "a.jpg\n")
    report = refusal(pictures, "x.token", "a.jpg#0\ta cat\n", splits=pictures.parent)
    assert "test.txt, line 1: a.jpg is in test here" in report


def test_a_missing_file_or_folder_is_refused(pictures: Path) -> None:
    with pytest.raises(UserError, match=r"none.csv cannot be read"):
        read_records(pictures / "none.csv", pictures=pictures)
    with pytest.raises(UserError, match="is not a folder"):
        read_records(pictures / "none.csv", pictures=pictures / "none")
    assert "no train.txt" in refusal(pictures, "x.token", "a.jpg\ta", splits=pictures)


def test_all_problems_of_a_source_come_in_one_report(pictures: Path) -> None:
    report = refusal(pictures, "x.csv", ROW + "a.jpg,,train\nno.jpg,a cat,train\nb.jpg,a cat,x\n")
    assert [line.split(":")[0][-6:] for line in report.splitlines()] == [
        "line 4",
        "line 2",
        "line 3",
    ]


def test_a_fault_of_quotes_hides_no_other(pictures: Path) -> None:
    lines = 'a.jpg,"a "small" cat",train\nno.jpg,a cat,train\nb.jpg,"a "big" dog",train\n'
    report = refusal(pictures, "x.csv", ROW + lines)
    assert "x.csv, line 2: not valid CSV" in report
    assert "x.csv, line 3: the picture no.jpg is not in" in report
    assert "x.csv, line 4: not valid CSV" in report
    assert report.count('those inside of a cell doubled ("")') == 2


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason=f"Flickr8k is not at {FLICKR8K} (AOQ_FLICKR8K)")
def test_flickr8k_is_read_whole() -> None:
    records = read_records(FLICKR8K / "captions.tsv", pictures=FLICKR8K / "images", splits=FLICKR8K)
    counts = Counter(record.split for record in records)
    assert counts == {"train": 6000, "dev": 1000, "test": 1000}
    assert all(len(record.captions) == 5 for record in records)


def test_captions_that_are_byte_strings_are_refused_in_one_sentence(pictures: Path) -> None:
    text = "image,caption\na.jpg,a cat\na.jpg,b'a dog runs .'\nb.jpg,b'two dogs'\nb.jpg,a cat\n"
    report = refusal(pictures, "captions.csv", text)
    assert len(report.splitlines()) == 1
    assert "captions.csv, line 3: the caption \"b'a dog runs .'\" is a byte string" in report
    assert "2 such captions in all; expected text" in report
