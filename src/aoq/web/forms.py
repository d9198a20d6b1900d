"""Multipart forms with exactly one file in them.

The whole body is in memory already, and small; python-multipart takes it apart with limits of its
own on the headers of a part. File names and content types are the sender's claims: not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aoq.web.refusals import RefusedError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


def read_form(body: bytes, content_type: str, *, field: str) -> bytes:
    """The content of the one part of a form, which has to be the file `field`."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    expected = f"send one picture as the file {field!r} of a multipart form."
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RefusedError(422, f"The request holds no form; {expected}")
    form = _OneFile(field, expected)
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise RefusedError(422, f"The form is damaged or cut short; {expected}") from None
    if not form.is_whole:
        raise RefusedError(422, f"The form is empty or cut short; {expected}")
    return bytes(form.content)


class _OneFile:
    """Collects the first part and refuses a second one."""

    def __init__(self, field: str, expected: str) -> None:
        self.content = bytearray()
        self.is_whole = False
        self._field = field
        self._expected = expected
        self._parts = 0
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._check_name,
            "on_part_data": lambda data, start, end: self.content.extend(data[start:end]),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise RefusedError(422, f"The form has several fields; {self._expected}")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _check_name(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._disposition)
        if options.get(b"name", b"") != self._field.encode() or b"filename" not in options:
            raise RefusedError(422, f"The form has another field; {self._expected}")

    def _end(self) -> None:
        self.is_whole = self._parts == 1
