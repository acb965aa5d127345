"""Hugging Face Tokenizers: times the encoding and decoding of text.

- The tokenizers of [Transformers](transformers.md) call these methods: together they are one stage. Calls inside a model or `generate` belong to it.
- A call below 20 µs is not recorded.
- Stagelens does not read texts or token ids.
"""

from __future__ import annotations

from types import MappingProxyType

from .torch.models import OutsideInstrumentor


class TokenizersInstrumentor(OutsideInstrumentor):
    """Instrumentor of `Tokenizer`, a class written in Rust whose methods can be replaced."""

    library = "tokenizers"
    title = "Tokenizers"
    stages = MappingProxyType(
        {
            "tokenize": "`encode`, `encode_batch` and `encode_batch_fast` of a `Tokenizer`",
            "postprocess": "`decode` and `decode_batch` of a `Tokenizer`",
        }
    )
    not_timed = ("`async_encode` and the other methods of asyncio: they run in threads of Rust",)
    tested = MappingProxyType({"tokenizers": "0.23.3"})
    calls = MappingProxyType(
        {
            "tokenizers": {
                "tokenize": ("Tokenizer.encode", "Tokenizer.encode_batch", "Tokenizer.encode_batch_fast"),
                "postprocess": ("Tokenizer.decode", "Tokenizer.decode_batch"),
            }
        }
    )
