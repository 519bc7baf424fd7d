"""Surroundings that TensorFlow's own test files expect, as a pytest plugin.

They are programs that read their command line, and the copies in Intel's repository take TensorFlow's test classes from a
module of Intel's, in whose place TensorFlow's own are put here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from absl import flags
from tensorflow.python.framework import test_util
from tensorflow.python.platform import googletest, test

_INTEL = "intel_extension_for_tensorflow"


def _module(name: str, **contents: Any) -> None:
    found = ModuleType(name)
    found.__path__ = []
    vars(found).update(contents)
    sys.modules[name] = found


for _name in (_INTEL, f"{_INTEL}.python"):
    _module(_name)
_module(f"{_INTEL}.python.test_func", test=test, test_util=test_util)
assert googletest is not None  # which defines the flags that are read now
flags.FLAGS(["pytest"])
