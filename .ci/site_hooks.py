"""What mkdocs calls while it builds the site: links that need the repository's address, which CI sets (REPOSITORY_URL)."""

from __future__ import annotations

import re
from typing import Any

_NOTEBOOK = re.compile(r"\[notebook\]\((notebooks/\w+\.ipynb)\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Adds a link that opens a notebook in Colab to each link to a notebook, where the repository is on GitHub."""
    return with_colab(markdown, config["repo_url"] or "")


def with_colab(markdown: str, repository: str) -> str:
    """The text with a second link after each `[notebook](notebooks/NAME.ipynb)`; the same text for another repository."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    if match is None:
        return markdown
    address = f"https://colab.research.google.com/github/{match[1]}/blob/HEAD/docs"
    return _NOTEBOOK.sub(lambda found: f"{found[0]}, [in Colab]({address}/{found[1]})", markdown)
