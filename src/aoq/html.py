"""Self-contained pages: templates filled with untrusted text, pictures embedded."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.errors import require_packages
from aoq.features.pictures import PictureError, load_picture
from aoq.storage import write_text

if TYPE_CHECKING:
    from PIL.Image import Image

_THUMBNAIL = 176  # pixels of a picture's longer side


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill one of the templates in `aoq/templates` and write it."""
    require_packages("jinja2", "PIL", extra="web")
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("aoq"),
        autoescape=True,  # captions are untrusted text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["address"] = svg_address
    write_text(path, environment.get_template(template).render(**values))


def svg_address(svg: str) -> str:
    """Encode a drawing as a data URL, so that its ids do not clash with those of other drawings."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")


def thumbnail(path: Path | None) -> str | None:
    """Return a small JPEG as a data URL; None if the picture is missing or unreadable."""
    small = small_picture(path, side=_THUMBNAIL)
    if small is None:
        return None
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def small_picture(path: Path | None, *, side: int) -> Image | None:
    """Return a picture as models see it, at most `side` pixels long; None if it is unreadable."""
    if path is None or not path.is_file():
        return None
    try:
        small = load_picture(path)
    except PictureError:
        return None
    small.thumbnail((side, side))
    return small
