"""What mkdocs calls while it builds the site: links that need the repository's address (REPOSITORY_URL), and line breaks."""

from __future__ import annotations

import re
from typing import Any

_HEADING = re.compile(r'(<span class="doc doc-object-name[^"]*">)([\w.]+)')
# The type that begins the description of an argument whose type is known from its annotation.
_TYPE = re.compile(
    r"""(</b>\s*\(<code>(?!<span title="typing.Any")(?:(?!</?li).)*?<div class="doc-md-description">\s*<p>)"""
    r"(?:int|float|bool|str)(?: or None)?; ",
    re.DOTALL,
)
_QUARTILES = re.compile(r"\[[\d.,]+-[\d.,]+\]")
_CELL_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_NOTEBOOK = re.compile(r"\[notebook\]\((notebooks/\w+\.ipynb)\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Adds a link that opens a notebook in Colab to each link to a notebook, where the repository is on GitHub."""
    return with_colab(markdown, config["repo_url"] or "")


def on_page_content(html: str, **_: Any) -> str:
    """Breaks names in headings and cells, never `[1,449-1,482]`, and removes types that the signature has already."""
    html = _HEADING.sub(lambda found: found[1] + breakable(found[2]), html)
    html = _CELL.sub(lambda cell: _CELL_CODE.sub(lambda code: breakable(code[0]), cell[0]), html)
    html = _TYPE.sub(r"\1", html).replace("_Any", "Any")  # optimizers/__init__.py imports it as _Any
    return _QUARTILES.sub(lambda found: f'<span class="unbroken">{found[0]}</span>', html)


def breakable(name: str) -> str:
    """A name that a browser may break after its dots, underscores and equals signs."""
    return re.sub(r"([._=(])(?=\w)", r"\1<wbr>", name)


def with_colab(markdown: str, repository: str) -> str:
    """The text with a second link after each `[notebook](notebooks/NAME.ipynb)`; the same text for another repository."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    if match is None:
        return markdown
    address = f"https://colab.research.google.com/github/{match[1]}/blob/HEAD/docs"
    return _NOTEBOOK.sub(lambda found: f"{found[0]}, [in Colab]({address}/{found[1]})", markdown)
