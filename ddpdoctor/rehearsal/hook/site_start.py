"""Copied to `sitecustomize.py` in the folder of a rehearsal: every Python process that a rank starts loads the hook with it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

from ddpdoctor.rehearsal.hook.install import prepare


def _load_other() -> None:
    """Run the `sitecustomize` of the installation, which this one hides."""
    own = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", [path for path in sys.path if os.path.abspath(path) != own]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_load_other()
prepare()
