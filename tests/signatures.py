"""`python -m tests.signatures` adds the forms of today's versions to `compat/signatures.txt`, after the suite passed."""

from unisono.compat.upstream import SIGNATURES, list_forms

if __name__ == "__main__":
    known = set(SIGNATURES.read_text().splitlines()) if SIGNATURES.exists() else set()
    found = {f"{name} {form}" for name, form in list_forms().items() if form != "missing"}
    SIGNATURES.write_text("".join(f"{line}\n" for line in sorted(known | found)))
