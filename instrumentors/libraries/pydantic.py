"""Pydantic: times the validation and serialization of large models.

- A call below 20 µs is not recorded. A validator that calls another timed library belongs to the same stage.
- Stagelens does not read the fields.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class PydanticInstrumentor(CallsInstrumentor):
    """Instrumentor of `BaseModel` and `TypeAdapter`."""

    library = "pydantic"
    title = "Pydantic"
    stages = MappingProxyType(
        {
            "serialize": "`model_validate`, `model_validate_json`, `model_dump` and `model_dump_json` of a model, and the same of a `TypeAdapter`"
        }
    )
    not_timed = ("the constructor `Model(…)`", "Pydantic 1")
    tested = MappingProxyType({"pydantic": "2.14.4"})
    calls = MappingProxyType(
        {
            "pydantic.main": {
                "serialize": (
                    "BaseModel.model_validate",
                    "BaseModel.model_validate_json",
                    "BaseModel.model_validate_strings",
                    "BaseModel.model_dump",
                    "BaseModel.model_dump_json",
                )
            },
            "pydantic.type_adapter": {
                "serialize": (
                    "TypeAdapter.validate_python",
                    "TypeAdapter.validate_json",
                    "TypeAdapter.validate_strings",
                    "TypeAdapter.dump_python",
                    "TypeAdapter.dump_json",
                )
            },
        }
    )
