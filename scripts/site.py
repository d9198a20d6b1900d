"""A hook of mkdocs that makes a site of pages which also read well in the repository.

Figures and examples that stand beside docs/ become files of the site, and a link that is named
after the file of a page (`[mining.md](mining.md)`) gets the title of that page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_BESIDE = {"results": "*/figures/*.png", "examples": "*.py"}
_BESIDE_LINK = re.compile(rf"\]\(\.\./({'|'.join(_BESIDE)})/")
_PAGE_LINK = re.compile(r"\[(?:docs/)?(?P<name>[\w-]+\.md)\]\((?P<link>(?P=name)[^)]*)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files beside docs/ under the paths that they have in the repository."""
    root = Path(config.config_file_path).parent
    for folder, pattern in _BESIDE.items():
        for path in sorted((root / folder).glob(pattern)):
            name = path.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Point links to the files of the site, and name pages by their titles."""
    titles = dict(_titles(config.nav))
    return _PAGE_LINK.sub(
        lambda found: f"[{titles.get(found['name'], found['name'])}]({found['link']})",
        _BESIDE_LINK.sub(r"](\1/", markdown),
    )


def _titles(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the file and the title of each page of the navigation."""
    for entry in nav:
        for title, page in entry.items():
            if isinstance(page, str):
                yield page, title
            else:
                yield from _titles(page)
