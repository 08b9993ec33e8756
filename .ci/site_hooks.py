"""What mkdocs calls while it builds the site, from pages that GitHub shows as they are.

Links that need the repository's address (REPOSITORY_URL), alerts, programs, line breaks, and notebooks. A few lines show the
notebooks, whose cells and outputs are text and one picture; nbconvert and what it needs are thirty packages.
"""

from __future__ import annotations

import ast
import builtins
import json
import pathlib
import re
import textwrap
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
# Pages of the site that are files of the repository's root, as people look for them there.
_FROM_ROOT = {
    f"{name}.md": f"{name.upper()}.md" for name in ("roadmap", "changelog", "contributing", "security")
}
_FOR_MAINTAINERS = ("design/", "contributing/", "changelog.md")
# `> [!WARNING]` and a first sentence in bold: GitHub's form of an admonition with a title.
_ALERT = re.compile(r"^> \[!(\w+)\]\n> \*\*(.*?)\.?\*\*(.*\n(?:>.*\n)*)", re.MULTILINE)
_KINDS = {"CAUTION": "danger", "IMPORTANT": "info"}
# The link to an example, alone in its line, which the site replaces with the program.
_PROGRAM = re.compile(r"^\[(examples/\w+\.py)\]\(\.\./\1\)$", re.MULTILINE)
# A line with nothing but two links: on the home page, the two ways in.
_BUTTONS = re.compile(r"^(\[[^\]]+\]\([^)]+\)) · (\[[^\]]+\]\([^)]+\))$", re.MULTILINE)
_BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NOTEBOOK = re.compile(r"\[notebook\]\((notebooks/\w+\.ipynb)\)")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SHOWN_PICTURE = re.compile(r"\('demo/(?:\w+/)?(\w+\.\w+)'\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for each notebook; the notebook itself stays, to be downloaded."""
    from mkdocs.structure.files import File, InclusionLevel

    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        text = show_notebook(json.loads(file.content_string), pathlib.PurePath(file.src_uri).name)
        name = file.src_uri.replace(".ipynb", ".md")
        files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Take root files from there, show alerts and programs, and link Colab where the repository is on GitHub.

    The search ranks pages for maintainers below the others, and leaves notebooks out, whose programs the examples show.
    """
    if page.file.src_uri.startswith("notebooks/"):
        page.meta["search"] = {"exclude": True}
        return markdown
    if page.file.src_uri.startswith(_FOR_MAINTAINERS):
        page.meta["search"] = {"boost": 0.2}
    if name := _FROM_ROOT.get(page.file.src_uri):
        markdown = read_from_root(pathlib.Path(config["config_file_path"]).parent / name)
    markdown = _BUTTONS.sub(r"\1{ .md-button .md-button--primary } \2{ .md-button }", markdown)
    markdown = _PROGRAM.sub(r'??? example "\1"\n    ```{ .python }\n    --8<-- "\1"\n    ```', markdown)
    markdown = with_colab(show_alerts(mark_continued(markdown)), config["repo_url"] or "")
    return _NOTEBOOK.sub(lambda found: found[0].replace(".ipynb)", ".md)"), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Breaks names in headings and cells, never `[1,449-1,482]`, and removes types that the signature has already."""
    html = _HEADING.sub(lambda found: found[1] + breakable(found[2]), html)
    html = _CELL.sub(lambda cell: _CELL_CODE.sub(lambda code: breakable(code[0]), cell[0]), html)
    html = _TYPE.sub(r"\1", html).replace("_Any", "Any")  # optimizers/__init__.py imports it as _Any
    return _QUARTILES.sub(lambda found: f'<span class="unbroken">{found[0]}</span>', html)


def show_notebook(notebook: dict[str, Any], name: str) -> str:
    """Return a page with the cells of a notebook, and what they print and show."""
    first, *cells = notebook["cells"]
    title, _, rest = "".join(first["source"]).partition("\n")
    parts = [
        title.rstrip("."),
        f"[All examples](../examples.md) · [Download the notebook]({name}){{ download={name} }}",
        rest,
    ]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif picture := _SHOWN_PICTURE.search(source):
            parts.append(f"![What the program draws](../assets/{picture[1]})")
        else:
            parts.append(_show_code(source))
            printed = ["".join(each["text"]) for each in cell["outputs"] if "text" in each]
            parts += [_fence("text", _COLOR.sub("", text)) for text in printed]
    return "\n\n".join(parts)


def _show_code(source: str) -> str:
    """A cell: a program that it writes to a file, a command, or a part of the program."""
    if source.startswith("%%writefile "):
        name, _, program = source.removeprefix("%%writefile ").partition("\n")
        return _fence(f'python title="{name}"', program)
    return _fence("sh" if source.startswith(("!", "%")) else "python", source.lstrip("!"))


def _fence(kind: str, text: str) -> str:
    return f"````{kind}\n{text.rstrip()}\n````"


def show_alerts(markdown: str) -> str:
    """Return a page with the alerts of GitHub as admonitions."""

    def make_admonition(found: re.Match[str]) -> str:
        body = re.sub(r"^(?:> ?| )", "    ", found[3], flags=re.MULTILINE)
        return f'!!! {_KINDS.get(found[1], found[1].lower())} "{found[2]}"\n\n{body}'

    return _ALERT.sub(make_admonition, markdown)


def mark_continued(markdown: str) -> str:
    """Return a page with a title above each program that uses names of an earlier one: it does not run alone."""
    earlier: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        uses, makes = _names_in(textwrap.dedent(found[2]))
        continued, _ = uses & earlier - makes, earlier.update(makes)
        return (
            found[0].replace("```python", '```python title="continues the program above"', 1)
            if continued
            else found[0]
        )

    return _BLOCK.sub(mark, markdown)


def _names_in(code: str) -> tuple[set[str], set[str]]:
    """The names that a program reads, and the names that it makes."""
    reads, makes = set(), set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                reads.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                makes.add(name)
            case ast.alias(name=name, asname=new):
                makes.add(new or name.partition(".")[0])
    return reads - {*dir(builtins)}, makes


def breakable(name: str) -> str:
    """A name that a browser may break after its dots, underscores and equals signs."""
    return re.sub(r"([._=(])(?=\w)", r"\1<wbr>", name)


def read_from_root(path: pathlib.Path) -> str:
    """Return the text of a page of the repository's root, with its links as the site needs them."""
    text = path.read_text(encoding="utf-8").replace("](docs/", "](")
    for page, name in _FROM_ROOT.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def with_colab(markdown: str, repository: str) -> str:
    """The text with a second link after each `[notebook](notebooks/NAME.ipynb)`; the same text for another repository."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    if match is None:
        return markdown
    address = f"https://colab.research.google.com/github/{match[1]}/blob/HEAD/docs"
    return _NOTEBOOK.sub(lambda found: f"{found[0]}, [in Colab]({address}/{found[1]})", markdown)
