"""Self-contained pages: templates filled with anybody's text, pictures embedded."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from aoq.errors import require_packages
from aoq.storage import write_text

_THUMBNAIL = 176  # pixels of a picture's longer side


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill one of the templates of this folder and write it."""
    require_packages("jinja2", "PIL", extra="web")
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("aoq.experiments"),
        autoescape=True,  # captions are anybody's text
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_text(path, environment.get_template(template).render(**values))


def thumbnail(path: Path | None) -> str | None:
    """A small JPEG as a data address; none where the picture is missing or cannot be read."""
    if path is None or not path.is_file():
        return None
    from PIL import Image, ImageOps

    buffer = io.BytesIO()
    try:
        with Image.open(path) as picture:
            small = ImageOps.exif_transpose(picture).convert("RGB")
            small.thumbnail((_THUMBNAIL, _THUMBNAIL))
            small.save(buffer, format="JPEG", quality=80)
    except Exception:  # damaged files make Pillow's decoders raise almost anything
        return None
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
