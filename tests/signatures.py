"""`python -m tests.signatures` adds the forms of today's versions to `compat/signatures.txt`, after the suite passed."""

import ast
import pathlib

from unisono.compat import upstream, versions
from unisono.compat.upstream_places import PART_OF

COMPAT = pathlib.Path(__file__).parents[1] / "compat"


def list_uses():
    """The attributes that files of `compat` use of a name of the table, and those that classes of ours override."""
    found = {f"{owner}.{name}" for owner, names in versions.OVERRIDDEN.items() for name in names}
    for path in COMPAT.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [
            n for n in nodes if isinstance(n, ast.ImportFrom) and "upstream_places" in (n.module or "")
        ]
        ours = {each.asname or each.name: each.name for n in imports for each in n.names}
        read = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        found |= {f"{ours[n.value.id]}.{n.attr}" for n in read if ours.get(n.value.id) in PART_OF}
    return found


if __name__ == "__main__":
    known = upstream.read_forms()
    for name in {*upstream.list_names(), *list_uses()}:
        forms = known.setdefault(name, set())
        forms |= {form for form in [upstream.describe(name)] if form != "missing"}
        forms -= {""} if len(forms) > 1 else set()
    used = {n for n in known if (":" in n or n.partition(".")[0] in PART_OF) and upstream.find_files(n)}
    lines = [f"{name} {form}" for name in used for form in known[name]]
    upstream.SIGNATURES.write_text("".join(f"{line}\n" for line in sorted(lines)))
