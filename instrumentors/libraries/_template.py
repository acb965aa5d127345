"""Template of an instrumented library: copy this file, and replace the made-up library `tinymodel` by yours.

The docstring of the module is the text of its page in `docs/libraries/`. Registration takes one line in `bootstrap.LIBRARIES`;
then run `make docs`, and add tests against the real library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..instrumentor import Instrumentor, Target, log_failure, timed
from ..records import clock, current, has_capacity


class TemplateInstrumentor(Instrumentor):
    """Instrumentor of `tinymodel.Model` and its functions."""

    library = "tinymodel"  # the import name
    title = "Tiny Model"  # the name in the documentation
    stages = {"preprocess": "`prepare`", "forward": "`Model.predict`"}
    facts = ("model",)  # facts that this module records about a request
    not_timed = ("`Model.train`",)
    tested = {"tinymodel": "1.0"}  # distribution and version of the tests

    def targets(self) -> Iterable[Target]:
        """Return what is replaced when the module is imported: place, what makes the replacement, and names."""
        return (
            # `timed` makes each call of a plain function a stage; a missing attribute (in another version) is skipped.
            ("tinymodel", timed("preprocess"), "prepare"),
            ("tinymodel:Model", _predict, "predict"),
        )


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
