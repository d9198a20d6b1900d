"""The vocabularies of the published programs: JSON of SCAN and BFAN, pickles of VSRN.

A pickle can ask for any function of any module and call it, so this reader provides only stand-ins:
for the class `Vocabulary`, which becomes an object that holds attributes, and for the two functions
with which pickles of every protocol create an object. A file that asks for anything else is
rejected, and nothing in it is executed. Its instructions are checked first, because a few bytes can
request gigabytes of memory.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary
from aoq.errors import UserError
from aoq.parsing import shown

_SHARE_OF_BYTE_STRINGS = 0.005  # far above the share of real words such as "b'day"
_CLASSES = {("vocab", "Vocabulary"), ("__main__", "Vocabulary")}
_OBJECTS = {("builtins", "object"), ("__builtin__", "object")}
_MODULES_OF_MAKERS = ("copyreg", "copy_reg")
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
# Instructions for values that are huge or stored outside of the pickle.
_NEEDLESS = frozenset(
    {
        "BINBYTES8",
        "BINPERSID",
        "BINUNICODE8",
        "BYTEARRAY8",
        "LONG4",
        "NEXT_BUFFER",
        "PERSID",
        "READONLY_BUFFER",
    }
)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a published vocabulary, in JSON or pickled by Python 2 or 3."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; expected a vocabulary, .json or .pkl.")
    with path.open("rb") as file:
        is_json = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    return Vocabulary.load(path) if is_json else _read_pickle(path)


def byte_string_words(vocabulary: Vocabulary) -> list[str]:
    """Return the words that start like Python's byte strings, if they are too many to be words.

    A program that reads captions as bytes and splits `str(caption)` learns "b'a" for "a".

    >>> byte_string_words(Vocabulary(("<pad>", "<start>", "<end>", "<unk>", "b'a", "b'two", "dog")))
    ["b'a", "b'two"]
    """
    words = vocabulary.words[len(SPECIAL_WORDS) :]
    found = [word for word in words if word.startswith(("b'", 'b"')) and len(word) > 2]
    return found if len(found) > max(1, _SHARE_OF_BYTE_STRINGS * len(words)) else []


def _read_pickle(path: Path) -> Vocabulary:
    wanted = "expected a pickled Vocabulary with word2idx, idx2word and idx, as VSRN writes it"
    try:
        data = path.read_bytes()
        _check_sizes(data)
        content = _Unpickler(data).load()
    except _ForbiddenError as error:
        raise UserError(
            f"{path} asks for {error} when it is loaded, which no vocabulary needs; nothing in it "
            "was run; do not use this file, get the vocabulary from its authors again."
        ) from None
    except Exception as error:  # damaged pickles make pickle raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{path} is not a vocabulary, or it is truncated or damaged ({reason}); {wanted}."
        ) from None
    attributes = content if isinstance(content, dict) else getattr(content, "__dict__", {})
    ids = attributes.get("word2idx")
    if not isinstance(ids, dict):
        raise UserError(f"{path} holds {type(content).__name__} without word2idx; {wanted}.")
    wrong = [
        (word, number)
        for word, number in ids.items()
        if not isinstance(word, str) or type(number) is not int
    ]
    if wrong:
        raise UserError(
            f"{path}: word2idx holds {shown(wrong[0])}; expected words and their numbers."
        )
    return Vocabulary.from_ids(ids, source=path)


def _check_sizes(data: bytes) -> None:
    """Reject content that would need far more memory than the file, without executing it.

    pickle allocates a table up to the largest index, and each BUILD copies a state.
    """
    builds = 0
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in _PUTS and not 0 <= int(argument or 0) <= len(data):
            raise _ForbiddenError(f"a table of {argument} values")
        if instruction.name in _NEEDLESS:
            raise _ForbiddenError(f"the instruction {instruction.name}")
        builds += instruction.name == "BUILD"
        if builds > 1:
            raise _ForbiddenError("more than one object with attributes")


class _ForbiddenError(Exception):
    """Names what a pickle asked for and did not get."""


class _Unpickler(pickle.Unpickler):
    """Builds plain values, and stand-ins for objects of the class `Vocabulary`.

    The stand-ins are created for each file, so that changes to them end with it.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._allowed = _stand_ins()

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self._allowed:
            raise _ForbiddenError(f"{module}.{name}")
        return self._allowed[module, name]


def _stand_ins() -> Mapping[tuple[str, str], Callable[..., Any] | None]:
    """Map everything that a pickled vocabulary may ask for to its stand-in."""

    class PickledVocabulary:
        """Holds attributes and can do nothing."""

    def make(*_: object) -> PickledVocabulary:
        """Stand in for _reconstructor and __newobj__, whatever they should make."""
        return PickledVocabulary()

    return {
        **dict.fromkeys(_CLASSES, PickledVocabulary),
        **dict.fromkeys(_OBJECTS, None),
        **{
            (module, name): make
            for module in _MODULES_OF_MAKERS
            for name in ("_reconstructor", "__newobj__")
        },
    }
