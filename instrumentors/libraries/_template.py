"""Template of an instrumented library: copy this file, and replace the made-up library `tinymodel` by yours.

The docstring of the module is the text of its page in `docs/libraries/`. Registration takes one line in `bootstrap.LIBRARIES`;
then run `make docs`, and add tests against the real library.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure, timed
from ..records import clock, current, has_capacity


class TemplateInstrumentor(Instrumentor):
    """Instrumentor of `tinymodel.Model` and its functions."""

    library = "tinymodel"  # the import name
    title = "Tiny Model"  # the name in the documentation
    stages = {"preprocess": "`prepare`", "forward": "`Model.predict`"}
    facts = ("model",)  # facts that this module records about a request
    not_timed = ("`Model.train`",)
    tested = {"tinymodel": "1.0"}  # distribution and version of the tests

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch function of each module by import name; it runs when the module is imported."""
        return {"tinymodel": self._patch}

    def _patch(self, module: ModuleType) -> None:
        # `timed` makes each call of a plain function a stage; a missing attribute (in another version) is skipped.
        self.replace(module, "prepare", timed("preprocess"))
        self.replace(module.Model, "predict", _predict)


def _predict(original: Any) -> Any:
    """Wrap `Model.predict`: take the marks of the running request, call the original, record the stage."""

    def predict(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:  # outside of requests nothing is recorded
            return original(self, *args, **options)
        started = clock()
        try:
            return original(self, *args, **options)
        finally:
            if has_capacity(marks):
                marks.extend(("forward", started, clock()))
                try:
                    marks.extend(("@model", self.name, 0))
                except Exception:  # anything but a plain `extend` may fail, and nothing may reach the user's code
                    log_failure("naming a model of tinymodel")

    return predict
