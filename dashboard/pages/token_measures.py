"""What the tokens of a selection were like in a few numbers, by one definition at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.histogram import Histogram
from ...core.names import DEFINITIONS, FIRST_TOKEN, OUTPUT_TOKEN, STREAM_GAP, TOKENS, TOKENS_IN, TOKENS_OUT
from ...store import Selection
from ..format import enough
from ..source import Source
from .page import Context

# What tables call the columns of times.
TIME_COLUMNS = {"n": "requests", "p50_seconds": "p50 (s)", "p99_seconds": "p99 (s)"}
NO_COUNTS = (
    "Agents read token counts from generate of transformers and from what model servers answer; "
    "who sends inference.tokens over OTLP is counted too."
)


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    """The answers of a selection that came token by token.

    Args:
        definition: How their times were measured; "" where nothing was.
        definitions: Requests by definition.
        first: Time to the first token. [seconds]
        pace: Mean time from one token to the next of each request. [seconds]
        gap: The longest wait of each request for a next part. [seconds]
        taken_in: Tokens of the prompts, whatever the definition. [tokens]
        put_out: Tokens of the answers, whatever the definition. [tokens]
    """

    definition: str
    definitions: Mapping[str, int]
    first: Histogram
    pace: Histogram
    gap: Histogram
    taken_in: Histogram
    put_out: Histogram

    @property
    def timed(self) -> int:
        """How many requests were measured by the chosen definition."""
        return self.definitions.get(self.definition, 0)

    @property
    def otherwise(self) -> int:
        """How many were measured by another one, and are in no time of this page."""
        return sum(self.definitions.values()) - self.timed


def token_measures(source: Source, selection: Selection | None, definition: str | None) -> TokenMeasures:
    """Return the measures of *selection* by *definition*, or by the one most requests were measured by; of None, empty ones."""
    found = {
        metric: source.ask(source.read.streams, selection, metric) if selection else {}
        for metric in (FIRST_TOKEN, OUTPUT_TOKEN, STREAM_GAP, TOKENS)
    }
    definitions = {name: each.count for name, each in (found[FIRST_TOKEN] or found[OUTPUT_TOKEN]).items()}
    commonest = max(definitions, key=lambda name: (definitions[name], name), default="")
    chosen = definition if definition is not None and (definition in definitions or not definitions) else commonest
    timed = (found[metric].get(chosen, Histogram()) for metric in (FIRST_TOKEN, OUTPUT_TOKEN, STREAM_GAP))
    counted = (found[TOKENS].get(kind, Histogram()) for kind in (TOKENS_IN, TOKENS_OUT))
    return TokenMeasures(chosen, definitions, *timed, *counted)


def of_window(context: Context) -> TokenMeasures:
    """Return the measures of the window, by the definition the address names."""
    return token_measures(context.source, context.selection, context.view.text("by"))


def value_at(histogram: Histogram, quantile: float) -> float | None:
    """Return the value at *quantile*; None where too few requests stand above it."""
    found = histogram.quantile(quantile) if enough(histogram.count, quantile) else None
    return found.value if found else None


def definition_words(definition: str) -> str:
    """Say how a time by *definition* was measured."""
    return DEFINITIONS.get(definition, f"by a definition of its own, {definition}")
