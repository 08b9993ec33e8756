"""All uses of private names of Keras and TensorFlow, and the functions of Keras that are replaced. No other package has any.

All names are checked on the first import of this package.
"""

import importlib
import pkgutil

from .versions import describe_unsupported, find_missing_attributes

try:
    for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(_module.name)
    _missing = find_missing_attributes()
except (ImportError, AttributeError, KeyError) as _error:
    raise ImportError(describe_unsupported(f"a name that it needs ({_error})")) from _error
if _missing:
    raise ImportError(describe_unsupported(", ".join(_missing)))
