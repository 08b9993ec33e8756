"""Pages, docstrings, comments and messages are plain technical English in the field's terms.

`OLD` lists words that were used before, with their replacements. It has only words that can be matched reliably.
"""

import ast
import collections
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLD = {
    r"(?<!open )\brows?\b": "sample (row: only of a matrix)",  # "open rows" is a key in backups
    r"numbers of (one|a single) device|one device does": "single-device result, parity",
    r"unison rule": "replica parity",
    r"join rules?\b|\bjoined (over|by|as|on|like)\b|replicas? joins?\b|rule joins": "reduced, reduction",
    r"\bto the bit\b": "bit-for-bit, bitwise identical",
    r"\bverdicts?\b": "finite check, overflow check",
    r"(?<!Graph )\bexecutions?\b": "compiled call",
    r"\bslots?\b": "optimizer state",
    r"\b(held|kept|hold|holds) in parts\b|\bput together\b|whole for a moment": "sharded, all-gathered, transient",
    r"\bcomput\w+ again\b|\brecomput\w+": "rematerialization",
    r"\bin step\b(?! (\d|\{|of|N\b))": "synchronous",
    r"(?<!py )\bmeetings?\b|\broll call|\baccus(es|ed|ation)\b|\bguilty\b": "barrier, the process that failed first",
    r"\bweight total": "total sample weight, normalizer",
    r"\btrainings\b|\ba training(?=[.,;:)]| (is|was|that|of|on|and|in|whose|which)\b)": "a training run",
    r"(?<!connection )\brefus(e|es|ed|al|als|ing)\b": "rejects, raises",
    r"\bremed(y|ies)\b|\bcures?\b|\bmend(s|ed)?\b|\bmisfits?\b": "fix",
    r"(?<!matplotlib )\bfigures\b": "benchmarks, numbers",
    r"\b(step|loop|layer|loss|metric|code|model|class|rule|optimizer)s? of (your|one's|the user's|their) own\b": "custom",
    r"\bby hand\b": "hand-written, manually",
    r"without a trace\b|leaves? no trace": "without side effects",
    r"\blooked at\b|\bobserved step": "traced, analysed",
    r"\bbrought along\b|\bmoved in(?= |\.)(?! (to|place))": "moved into the strategy's scope",
    r"\b(un)?tied\b|\btold\b|\bwakes?\b|\bwoken\b": "called every step, notified",
    r"\bmore machines will bring": "scaling estimate",
    r"\bbeside\b|\bin place of\b|\bof one's own\b": "next to, compared with; instead of; custom",
    r"\brooms?\b|\bhouses?\b|\bthinned\b|\btravel(s|led)?\b": "the plain word",
}
# Turns of phrase that read as translated, in sentences of pages and docstrings.
TRANSLATED = {
    r"\banother\b[^.;:,]{0,60}\bthan\b": "a different ... from, or a relative clause",
    r"\bsay\)": "such as, for example",
    r"\b[Gg]ive CODE (a|an|CODE|one|more)\b": "pass",
    r":\s.*[a-z]:\s": "one colon in a sentence",
}
# They stand for a noun that the reader then has to look for: repeat the noun, or split the sentence.
STANDS_FOR_A_NOUN = re.compile(r"\b(that|those) of\b|\bof (which|whom)\b", re.IGNORECASE)
AS_WRITTEN_ONCE = re.compile(r"docs/design/|CHANGELOG")  # what was decided, and what changed
# A sentence with one of these may say "row": of a matrix, a table, a sparse gradient, or a table of text.
MATRIX = re.compile(r"matri|table|sparse|IndexedSlices|embedding|slices|unique|CSV|Parquet", re.IGNORECASE)
# The partition has one row an operation, and the table of upstream's names one a module.
OF_ROWS = re.compile(
    r"trainer/partition/|tests/partition/|compat/upstream_places|docs/contributing/new-operation|docs/design/003[01]"
)
FILE_NAMES = r"room|house|verdict|meeting|accusation|wake|travel|misfit|words|unison-rule|see.training"


def name_of(path):
    return str(path.relative_to(ROOT))


PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ROADMAP.md", "SECURITY.md", "CHANGELOG.md")]
    + [ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
)
# Packages whose docstrings, comments, messages and other texts are checked.
PACKAGES = ("benchmarks", "callbacks", "compat", "distribute", "examples", "mixed_precision", "optimizers")
PACKAGES += ("state", "tests", "trainer", "unisono")
LIBRARY = (
    "callbacks",
    "compat",
    "distribute",
    "mixed_precision",
    "optimizers",
    "state",
    "trainer",
    "unisono",
)

PARTICIPLES = {
    "made",
    "kept",
    "held",
    "known",
    "given",
    "taken",
    "shown",
    "drawn",
    "found",
    "sent",
    "seen",
    "written",
    "lost",
}


def prose(text):
    """A page without comments, code, API names, images and URLs."""
    text = re.sub(r"(?ms)^:::.*?$|<!--.*?-->|^ *```.*?^ *```", "", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"`[^`\n]+`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(text, ends=".!?:;"):
    """The sentences of each paragraph and item of a page, without headings and tables."""
    text = re.sub(r"(?m)^ *(\||#|<|\$|\?\?\?|    options|    \w+:).*$", "", prose(text))
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield [
            each
            for each in re.split(
                rf"(?<=[{ends}])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])", " ".join(paragraph.split())
            )
            if len(each.split()) > 1
        ]


def old_words(text, path):
    """The old words in the text of a file, with their replacements."""
    for each in re.split(r"(?<=[.!?])\s|\n\s*\n|(?<=\|)\n", text):
        for pattern, new in OLD.items():
            found = re.search(pattern, each, re.IGNORECASE)
            says_row = found and found[0].lower().startswith("row")
            if found and not (says_row and (MATRIX.search(each) or OF_ROWS.match(name_of(path)))):
                yield f"{found[0]!r} (write: {new}) in: {' '.join(each.split())[:120]}"


def said(path):
    """The comments of a Python file, and its strings that contain a space, without names of arguments and variables."""
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        name = tokenize.tok_name[token.type]
        if name == "COMMENT" or (name in ("STRING", "FSTRING_MIDDLE") and " " in token.string.strip()):
            text = re.sub(r"``?[^`\n]+``?|^ +\w+(, \w+)*:", "CODE", token.string, flags=re.MULTILINE)
            comments.append(re.sub(r"\{[^{}\n]*\}", "{}", text).strip("\"'#"))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            comments.append("\n\n")
    return re.sub(r"\n\n[\s]*\n", "\n\n", " ".join(comments))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_short_sentences_in_the_terms_of_the_field(page):
    text = page.read_text(encoding="utf-8")
    assert list(old_words(prose(text), page)) == []
    if page.parent.name == "design":
        assert re.search(r"\n\nStatus: (accepted|superseded by \[\d{4}\])", text)
    lengths = {each: len(each.split()) for paragraph in sentences(text) for each in paragraph}
    average = sum(lengths.values()) / max(1, len(lengths))
    found = [each for each, length in lengths.items() if length > 40]
    assert average <= 20 and not found, (average, found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_reads_as_written_in_english(page):
    found = []
    for paragraph in sentences(page.read_text(encoding="utf-8"), ".!?"):
        short = "".join(str(int(len(each.split()) < 9 and "**" not in each)) for each in paragraph)
        found += [f"join short sentences: {paragraph}"] if "111" in short else []
        for each in paragraph:
            found += [f"{new}: {each}" for pattern, new in TRANSLATED.items() if re.search(pattern, each)]
    assert found == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if not AS_WRITTEN_ONCE.match(name_of(page))], ids=name_of
)
def test_page_repeats_a_noun(page):
    text = " ".join(prose(page.read_text(encoding="utf-8")).split())
    found = [text[max(0, each.start() - 60) : each.end() + 40] for each in STANDS_FOR_A_NOUN.finditer(text)]
    assert found == []


@pytest.mark.parametrize("package", ["trainer", "callbacks", "distribute"])
def test_messages_repeat_a_noun(package):
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        docstrings = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
        texts = [each for each in nodes if isinstance(each, ast.Constant) and id(each) not in docstrings]
        found += [each.value for each in texts if STANDS_FOR_A_NOUN.search(str(each.value))]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_uses_the_terms_of_the_field(package):
    paths = [path for path in sorted((ROOT / package).glob("**/*.py")) if path != pathlib.Path(__file__)]
    found = {name_of(path): list(old_words(said(path), path)) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


def test_files_are_named_for_what_they_hold():
    files = [path for folder in (*PACKAGES, "docs") for path in (ROOT / folder).rglob("*.*")]
    assert [path for path in files if re.search(FILE_NAMES, path.stem)] == []


def test_each_file_of_the_library_has_a_name_of_its_own():
    paths = [path for package in LIBRARY for path in (ROOT / package).rglob("*.py") if not path.is_symlink()]
    counts = collections.Counter(path.name for path in {path.resolve() for path in paths})
    assert [name for name, count in counts.items() if count > 1 and name != "__init__.py"] == []


def test_functions_are_named_by_verbs():
    """A participle says neither what a function does nor what it returns; properties and nested functions may have one."""
    found = []
    for path in {path.resolve() for package in LIBRARY for path in (ROOT / package).rglob("*.py")}:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [tree.body, *(each.body for each in ast.walk(tree) if isinstance(each, ast.ClassDef))]
        for each in (each for body in bodies for each in body if isinstance(each, ast.FunctionDef)):
            word = each.name.strip("_").split("_")[0]
            if (
                not each.decorator_list
                and (word in PARTICIPLES or re.search(r"(?<!e)ed$", word))
                and word != "shared"
            ):
                found.append(f"{name_of(path)}: {each.name}")
    assert len(found) <= 5, sorted(found)


def anchors(text):
    """The heading anchors of a page, as the site and GitHub create them."""
    without_code = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    heads = re.findall(r"^#+ (.*?)\s*$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:|\.\./\.\./actions/", link):  # other sites, and GitHub's own pages
            target = page.parent / link if link else page
            assert target.exists(), f"{name_of(page)} links to {link}"
            if anchor and "unisono." not in anchor:  # mkdocs --strict checks those of docstrings
                assert anchor in anchors(target.read_text(encoding="utf-8")), (link, anchor)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in navigation] == []
