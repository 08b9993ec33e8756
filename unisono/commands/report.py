"""`python -m unisono report`: the report of a training run, written again from its numbers, or of several on one page."""

from collections.abc import Sequence

from .parser import Parser, local, place

PARSER = Parser(
    "report",
    "Rewrite the report of a training run from its numbers, or compare several runs on one page.",
    examples=["runs/", "a.jsonl b.jsonl --output both.html", "s3://bucket/runs -o runs.html"],
    exit_codes={
        0: "the page was written, and its path printed",
        1: "there are no numbers, or the page cannot be written",
        2: "an argument is wrong, or a file is missing or not a report",
    },
)
_add = PARSER.add_argument
_add(
    "paths",
    type=place,
    nargs="+",
    help="folders with the .jsonl files of TrainingReport, or such files; also URLs",
)
_add("-o", "--output", type=local, help="the page to write (default: report.html in the first folder)")


def main(argv: Sequence[str]) -> int:
    """Write the page and print its path; return the status that `--help` explains."""
    options, failed = PARSER.parse_args(argv), PARSER.fail
    if options.output:
        PARSER.make_folder("--output", options.output.parent)
        if options.output.is_dir():
            PARSER.error(f"--output must be a file. Received the folder {str(options.output)!r}")
    from ..callbacks import SaveError  # imports TensorFlow, which `--help` need not wait for
    from ..callbacks.report.page import write_page

    try:
        page, count = write_page(options.paths, options.output, "--output")
    except (ImportError, SaveError, ValueError) as error:
        return failed(str(error), 2)
    except OSError as error:
        return failed(str(error), 1)
    print(f"{page}: {count} training run{'s' * (count > 1)}")
    return 0
