"""Programs that tests start import the tested tree, not what is installed."""

import os
from collections.abc import MutableMapping
from pathlib import Path

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[1]


def import_tested_tree(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets PYTHONPATH for all programs that get these variables, those that they start included.

    An editable install names one working tree, which need not be this one.
    """
    others = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, others)]))
