"""What MkDocs calls to build the site: adds pages from the repository and from the code to those in docs/.

Strategy: docs/*.md are written for code hosts, where links go to files of the repository. A linked file outside of
docs/ becomes a page under project/ (a source file as a listing), and the README the first page; links are rewritten
before MkDocs reads them, so it checks them itself. Reference pages are generated (docs/reference.py).
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
#: Pages that the navigation has; what they and docs/*.md link follows by itself.
DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "examples/README.md",
    "tests/README.md",
)
_LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_IMAGES: Final = {".png", ".svg", ".jpg"}
#: How much a hit in a page counts, by the beginning of its place on the site. Guides come first, what lists comes last.
_BOOSTS: Final = {
    "operations": 4.0,
    "project/": 0.1,
    "reference/": 0.5,
    "reference/library": 0.1,
    "performance": 0.2,
    "style": 0.1,
    "reading": 0.1,
}
_LANGUAGES: Final = {
    ".py": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".sh": "bash",
    ".service": "ini",
}


def slug(text: str, separator: str) -> str:
    """The anchor of a heading as code hosts make it, so that a link works in both places."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def _outside_of_code(markdown: str, change: Callable[[re.Match[str]], str]) -> str:
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(change, part) for part in parts)


def _target(document: str, link: str) -> str:
    """The file of the repository that a link leads to; a folder is its README."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), link))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    if not (ROOT / path).is_file():
        raise FileNotFoundError(f"{document}: {link} leads nowhere")
    return path


def _place(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return f"project/{path}" if path.endswith(".md") or Path(path).suffix in _IMAGES else f"project/{path}.md"


def rewritten(document: str, markdown: str) -> tuple[str, set[str]]:
    """A document of the repository with links to pages of the site, and the files that it links to."""
    linked = set()

    def change(found: re.Match[str]) -> str:
        path = _target(document, found[1])
        linked.add(path)
        start = posixpath.dirname(_place(document)) or "."
        return f"]({posixpath.relpath(_place(path), start)}{found[2] or ''})"

    return _outside_of_code(markdown, change), linked


def _content(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def _reference() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("consumerd_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors of headings are those of code hosts."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is outside of docs/ and what is generated."""
    waiting = list(DOCUMENTS)
    for file in files.documentation_pages():
        waiting += rewritten(f"docs/{file.src_uri}", file.content_string)[1]
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in added or path.startswith("docs/"):  # which MkDocs copies itself
            continue
        added.add(path)
        if Path(path).suffix in _IMAGES:
            files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
            continue
        content, linked = _content(path), set[str]()
        if path.endswith(".md"):
            content, linked = rewritten(path, content)
            waiting += linked
        files.append(File.generated(config, _place(path), content=content))
    for place, content in _reference().items():
        files.append(File.generated(config, place, content=content))
    return files


def boost(place: str) -> float:
    """How much a hit in the page at this place counts: the longest beginning decides."""
    return _BOOSTS[max(fitting, key=len)] if (fitting := [each for each in _BOOSTS if place.startswith(each)]) else 1.0


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of docs/*.md; those of other pages were rewritten when they were added."""
    page.meta.setdefault("search", {"boost": boost(page.file.src_uri)})
    if page.file.generated_by is not None:
        return markdown
    return rewritten(f"docs/{page.file.src_uri}", markdown)[0]


def on_post_build(config: MkDocsConfig) -> None:
    """Words that are searched for are ANDed: docs/search.js stands before the worker of the theme."""
    (worker,) = Path(config.site_dir, "assets", "javascripts", "workers").glob("search.*.min.js")
    ours = (ROOT / "docs" / "search.js").read_text("utf-8")
    worker.write_text(f"{ours}\n{worker.read_text('utf-8')}", "utf-8")
