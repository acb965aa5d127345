"""Hook of PyInstaller: Stagelens loads the module of an instrumented library by name, when the library is imported."""

from __future__ import annotations

import sys

from PyInstaller.utils.hooks import copy_metadata  # pyright: ignore[reportMissingModuleSource]

from stagelens.instrumentors.bootstrap import LIBRARIES

_PACKAGE = "stagelens.instrumentors.libraries"

hiddenimports = sorted({f"{_PACKAGE}.{library.module}" for library in LIBRARIES})
# What these modules import when their library is loaded is no reason to bundle it.
excludedimports = sorted({library.trigger.partition(".")[0] for library in LIBRARIES} - sys.stdlib_module_names)
datas = copy_metadata("stagelens")
