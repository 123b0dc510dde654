"""A hook of MkDocs: the site has pages that stand outside `docs/`, and links lead to the same pages as on GitHub."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
    "research/README.md": "research.md",
    "src/esper/training/policy/generalist-v2/README.md": "generalist-v2.md",
    "src/esper/networks/tasks/data/LICENCE.txt": "data-licence.txt",
}
"""Files of the repository that the site has too, and their paths in it."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
"""The path in a link or a picture."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that stand outside `docs/`."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replace the paths in the links of a page, which are relative to its place in the repository."""
    places = {target: source for source, target in OUTSIDE.items()}
    target = page.file.src_uri
    folder = str(Path(places.get(target, f"docs/{target}")).parent)

    def site_path(link: re.Match[str]) -> str:
        path = normpath(join(folder, link[1]))
        found = OUTSIDE.get(path, path.removeprefix("docs/"))
        return relpath(found, str(Path(target).parent))

    return LINK.sub(site_path, markdown)
