"""Vocabularies of the published programs: JSON and pickles of every age, and hostile ones."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import pytest

from aoq.data.vocabulary import SPECIAL_WORDS, Vocabulary
from aoq.errors import UserError
from aoq.published.vocabularies import byte_string_words, read_vocabulary

WORDS = (*SPECIAL_WORDS, "a", "dog", "café", "'s")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def attributes(words=WORDS):
    return {
        "word2idx": {word: number for number, word in enumerate(words)},
        "idx2word": dict(enumerate(words)),
        "idx": len(words),
    }


@pytest.fixture(params=["vocab", "__main__"])
def published_class(request, monkeypatch):
    """A class as the programs have it, which is gone when its pickles are read."""

    class Vocabulary:
        pass

    Vocabulary.__module__, Vocabulary.__qualname__ = request.param, "Vocabulary"
    module = ModuleType(request.param)
    module.Vocabulary = Vocabulary
    monkeypatch.setitem(sys.modules, request.param, module)
    return Vocabulary


def pickled(published_class, protocol, words=WORDS):
    vocabulary = published_class()
    vars(vocabulary).update(attributes(words))
    data = pickle.dumps(vocabulary, protocol)
    del sys.modules[published_class.__module__].Vocabulary
    return data


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "f30k_precomp_vocab.pkl"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pickles_of_every_protocol_are_read(file, published_class, protocol):
    file.write_bytes(pickled(published_class, protocol))
    assert read_vocabulary(file).words == WORDS


PYTHON2 = {
    "an object in protocol 2": (
        b"\x80\x02cvocab\nVocabulary\n)\x81}(U\x08word2idx}(U\x05<pad>K\x00U\x07<start>K\x01"
        b"U\x05<end>K\x02X\x05\x00\x00\x00<unk>K\x03U\x05caf\xc3\xa9K\x04uU\x08idx2word}U\x03idx"
        b"K\x05ub."
    ),
    "an object in protocol 0": (
        b"ccopy_reg\n_reconstructor\n(cvocab\nVocabulary\nc__builtin__\nobject\nNtR(dS'word2idx'\n"
        b"(dS'<pad>'\nI0\nsS'<start>'\nI1\nsS'<end>'\nI2\nsV<unk>\nI3\nsVcaf\\u00e9\nI4\nssb."
    ),
    "an object of an old class": (
        b"(ivocab\nVocabulary\n(dS'word2idx'\n(dS'<pad>'\nI0\nsS'<start>'\nI1\nsS'<end>'\nI2\ns"
        b"V<unk>\nI3\nsVcaf\\u00e9\nI4\nssb."
    ),
}


@pytest.mark.parametrize("kind", PYTHON2)
def test_pickles_of_python_2_are_read(file, kind):
    file.write_bytes(PYTHON2[kind])
    assert read_vocabulary(file).words == (*SPECIAL_WORDS, "café")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickled_dictionary_is_read(file, protocol):
    file.write_bytes(pickle.dumps(attributes(), protocol))
    assert read_vocabulary(file).words == WORDS


def test_the_json_of_scan_is_read(tmp_path):
    Vocabulary(WORDS).save(tmp_path / "vocab.json")
    assert read_vocabulary(tmp_path / "vocab.json").words == WORDS


# Files that want to run something


class Payload:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("function", [os.mkdir, exec, Path, getattr, type])
def test_whatever_else_a_pickle_asks_for_is_refused_by_name_and_not_run(
    tmp_path, file, function, protocol
):
    trace = tmp_path / "trace"
    argument = f"open({str(trace)!r}, 'w')" if function is exec else str(trace)
    file.write_bytes(pickle.dumps(attributes() | {"more": Payload(function, argument)}, protocol))
    with pytest.raises(UserError, match="nothing in it was run") as caught:
        read_vocabulary(file)
    assert f"{function.__name__} when it is loaded" in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "__builtin__ eval", "copyreg add_extension", "vocab os", "os system"]
)
def test_only_whole_names_are_allowed(file, name):
    module, attribute = name.split()
    file.write_bytes(f"c{module}\n{attribute}\n(tR.".encode())
    with pytest.raises(UserError, match=f"{module}.{attribute} when it is loaded"):
        read_vocabulary(file)


def test_stand_ins_make_nothing_but_themselves(file):
    """copyreg._reconstructor asked for a str gives a stand-in that has no words."""
    file.write_bytes(b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\nS'x'\nNtR.")
    with pytest.raises(UserError, match="holds PickledVocabulary without word2idx"):
        read_vocabulary(file)


def test_what_a_file_does_to_a_stand_in_ends_with_it(file, published_class):
    """State of a class, in the form that sets attributes: the next file meets a fresh one."""
    good = pickled(published_class, 2)
    file.write_bytes(b"cvocab\nVocabulary\n(N}S'__setstate__'\nccopyreg\n__newobj__\nstb.")
    with pytest.raises(UserError):
        read_vocabulary(file)
    file.write_bytes(good)
    assert read_vocabulary(file).words == WORDS


# Files that want all the memory


@pytest.fixture
def little_memory():
    """Fails where more than a few megabytes are taken at once."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("index", [2**22, 2**31 - 1])
@pytest.mark.parametrize("form", ["binary", "text"])
def test_a_few_bytes_that_ask_for_a_huge_table_are_refused(file, index, form):
    put = b"r" + struct.pack("<I", index) if form == "binary" else b"p%d\n" % index
    file.write_bytes(b"\x80\x02N" + put + b".")
    with pytest.raises(UserError, match=f"asks for a table of {index} values"):
        read_vocabulary(file)


@pytest.mark.parametrize("value", [bytearray(9), 1 << 3000], ids=["bytearray", "number"])
def test_instructions_that_no_vocabulary_needs_are_refused(file, value):
    file.write_bytes(pickle.dumps(attributes() | {"more": value}, 5))
    with pytest.raises(UserError, match="asks for the instruction"):
        read_vocabulary(file)


@pytest.mark.usefixtures("little_memory")
def test_a_state_is_not_copied_into_many_objects(file):
    """3,000 objects, each of which would get 3,000 attributes."""
    state = b"}(" + b"".join(b"I%d\nN" % number for number in range(3000)) + b"uq\x00"
    file.write_bytes(b"(" + state + b"(ivocab\nVocabulary\nh\x00b" * 3000 + b"l.")
    with pytest.raises(UserError, match="asks for more than one object"):
        read_vocabulary(file)


@pytest.mark.usefixtures("little_memory")
def test_a_value_that_would_be_endless_to_spell_is_shown_in_short(file):
    value = []
    for _ in range(40):
        value = [value, value]
    file.write_bytes(pickle.dumps({"word2idx": {"a": value}}, 2))
    with pytest.raises(UserError, match="word2idx holds") as caught:
        read_vocabulary(file)
    assert len(str(caught.value)) < 2000


# Files that are damaged or something else


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not a vocabulary, or it is truncated"),
        (b"hello", "is not a vocabulary, or it is truncated"),
        (pickle.dumps(attributes())[:-20], "is not a vocabulary, or it is truncated"),
        (pickle.dumps([1, 2]), "holds list without word2idx"),
        (pickle.dumps({"idx": 3}), "holds dict without word2idx"),
        (pickle.dumps({"word2idx": {b"a": 0}}), "word2idx holds (b'a', 0)"),
        (pickle.dumps({"word2idx": {"a": "0"}}), "word2idx holds ('a', '0')"),
        (pickle.dumps(attributes(("a", "dog", "cat", "<unk>"))), "ids 0 to 3 are ['a', 'dog'"),
        (pickle.dumps({"word2idx": {"a": 7}}), "without gaps"),
        (pickle.dumps(attributes((*WORDS, "\ud800"))), "is not text"),
        (b'{"word2idx": {"a": Infinity}}', "is not a vocabulary"),
        (b'{"word2idx": [', "is not a vocabulary"),
        (b"[" * 100_000, "is not a vocabulary"),
        (b'{"a":' * 100_000, "is not a vocabulary"),
    ],
)
def test_what_is_not_a_vocabulary_is_refused(file, data, sentence):
    file.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_vocabulary(file)
    assert sentence in str(caught.value)


def test_a_missing_file_is_refused(file):
    with pytest.raises(UserError, match="is not a file"):
        read_vocabulary(file)


# The byte-string trap


def test_words_of_byte_strings_are_noticed_by_their_share():
    honest = tuple(f"word{n}" for n in range(1000))
    few, many = ("b'day",), tuple(f"b'first{n}" for n in range(20))
    assert byte_string_words(Vocabulary((*SPECIAL_WORDS, *honest, *few))) == []
    assert byte_string_words(Vocabulary((*SPECIAL_WORDS, *honest, *many))) == list(many)
    assert byte_string_words(Vocabulary((*SPECIAL_WORDS, "b'a", 'b"two', "dog"))) == [
        "b'a",
        'b"two',
    ]
    assert byte_string_words(Vocabulary(WORDS)) == []


def test_a_program_that_splits_byte_strings_makes_such_words():
    captions = [str(b"a dog runs."), str(b"two dogs")]
    assert byte_string_words(Vocabulary.build(captions, min_count=1)) == ["b'a", "b'two"]
