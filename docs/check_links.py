"""Check that every file and every anchor that the built pages link to exists.

    python docs/check_links.py docs/_build/html

Links to other sites are not followed, so no network is needed.
"""

from __future__ import annotations

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REFERRING = {"a": "href", "img": "src", "link": "href", "script": "src", "source": "src"}


class Page(HTMLParser):
    """A page's links and anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.places: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value for key, value in attrs if value}
        self.places.update(given[key] for key in ("id", "name") if key in given)
        if (attribute := REFERRING.get(tag)) in given:
            self.links.append(given[attribute])


def faults(site: Path) -> list[str]:
    """Return the broken links, each with the page that contains it."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for page in pages.values():
        for link in dict.fromkeys(page.links):
            scheme, host, path, _, place = urlsplit(link)
            if scheme or host:
                continue
            target = (page.path.parent / unquote(path)).resolve() if path else page.path.resolve()
            where = f"{page.path.relative_to(site)}: {link}"
            if not target.is_file():
                found.append(f"{where}: no such file")
            elif place and target in pages and unquote(place) not in pages[target].places:
                found.append(f"{where}: no such anchor")
    if not pages:
        found.append(f"{site}: no pages found")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="folder of the built pages")
    found = faults(parser.parse_args().site)
    print(*found, sep="\n" if found else "", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
