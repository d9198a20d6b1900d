"""The images and texts of an index in the API's words: listed, searched by words, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from starlette.exceptions import HTTPException

from aoq.retrieval.hits import Hit
from aoq.retrieval.index import ImageEntry, Index, TextEntry
from aoq.storage import hash_parts
from aoq.types import EntryKind
from aoq.web.schemas import EntriesAnswer, EntryAnswer, EntryQuery, HitAnswer, OneEntryAnswer


class IndexEntries:
    """The entries of the index of one run, whose addresses contain the run's name."""

    def __init__(self, index: Index, *, run_name: str) -> None:
        self.images, self.texts = index.images, index.texts
        self._index = index
        self.by_kind: dict[EntryKind, Sequence[ImageEntry | TextEntry]] = {
            "image": index.images,
            "text": index.texts,
        }
        self._address = f"/api/runs/{run_name}/pictures"
        self._words: dict[EntryKind, list[str]] = {
            "image": [self._words_of(image) for image in index.images],
            "text": [f" {text.text}".casefold() for text in index.texts],
        }
        self._images_by_hash = _images_by_hash(index)
        self.index_hash = list(self._images_by_hash)[-1]

    def require(self, kind: EntryKind, number: int) -> None:
        """Raise 404 for a number that the index does not have."""
        count = len(self.by_kind[kind])
        if number >= count:
            raise HTTPException(404, f"There is no {kind} {number}; the index has {count:,}.")

    def require_any(self, kind: EntryKind) -> None:
        if not self.by_kind[kind]:
            raise HTTPException(409, f"The index holds no {kind}s to be found.")

    def require_same_index(self, number: int, index_hash: str) -> None:
        """Raise 404 if an image's number is that of another index."""
        if number >= self._images_by_hash.get(index_hash, 0):
            raise HTTPException(
                404, "The picture is of an index that is not served here; load the page again."
            )

    def page(self, wanted: EntryQuery) -> EntriesAnswer:
        """List a page of the entries that have all words of a query, or a random sample of them.

        The beginning of a word is enough; an image's words are its id and all its captions.
        """
        kind, beginnings = wanted.kind, [f" {word}" for word in wanted.query.casefold().split()]
        found = [
            entry.number
            for entry, words in zip(self.by_kind[kind], self._words[kind], strict=True)
            if wanted.split in (None, entry.split)
            and wanted.id in (None, entry.id)
            and all(beginning in words for beginning in beginnings)
        ]
        if wanted.sample is None:
            page = found[wanted.offset : wanted.offset + wanted.limit]
        else:
            page = Random(wanted.sample).sample(found, min(wanted.limit, len(found)))
        return EntriesAnswer(total=len(found), entries=[self.view(kind, each) for each in page])

    def with_partners(self, kind: EntryKind, number: int) -> OneEntryAnswer:
        """Return an image with its texts, or a text with its images."""
        self.require(kind, number)
        if kind == "image":
            partners = [self.view("text", text) for text in self.images[number].texts]
        else:
            partners = [self.view("image", image) for image in self.texts[number].images]
        known = self._index.metadata.row(number) if kind == "image" else {}
        columns = {name: value for name, value in known.items() if value not in (None, "")}
        return OneEntryAnswer(entry=self.view(kind, number), partners=partners, columns=columns)

    def view(self, kind: EntryKind, number: int) -> EntryAnswer:
        """Return one entry as the API shows it."""
        if kind == "text":
            text = self.texts[number]
            return EntryAnswer(number=number, id=text.id, text=text.text, split=text.split)
        image = self.images[number]
        is_gone = image.picture_gone
        return EntryAnswer(
            number=number,
            id=image.id,
            text=self.texts[image.texts[0]].text if image.texts else "",
            picture=None if image.picture is None or is_gone else self._picture_address(number),
            picture_gone=is_gone,
            content=image.content,
            split=image.split,
        )

    def hits(self, hits: Sequence[Hit]) -> list[HitAnswer]:
        """Return search hits as the API shows them."""
        return [self._hit(hit) for hit in hits]

    def _hit(self, hit: Hit) -> HitAnswer:
        is_gone = hit.picture_gone
        has_picture = hit.picture is not None and not is_gone
        address = self._picture_address(hit.number) if has_picture else None
        return HitAnswer(**vars(hit) | {"picture": address, "picture_gone": is_gone})

    def _picture_address(self, number: int) -> str:
        return f"{self._address}/{number}?index={self.index_hash}"

    def _words_of(self, image: ImageEntry) -> str:
        captions = (self.texts[text].text for text in image.texts)
        return " ".join(["", image.id, *captions]).casefold()


def _images_by_hash(index: Index) -> dict[str, int]:
    """Count images by the hash of the index, and by the hashes of what it has grown from.

    Photos that are added are numbered last, so the addresses that a page holds stay valid.
    """
    hashes: list[bytes] = []
    counts, images = dict[str, int](), 0
    for part in index.manifest.parts:
        hashes.append(part.entries_hash.encode())
        images += part.n_images
        counts[hash_parts(*hashes)[:12]] = images
    return counts
