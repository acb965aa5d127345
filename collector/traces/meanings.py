"""What spans are, remembered by their bytes: rules are tried once for each kind of span, not once for each span.

What is remembered is bounded: when it is full, all of it is forgotten, and what comes again is learnt again. Several threads
may read at once; the worst they can do to each other is to learn something twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from ...core.errors import WireError
from ..protobuf_wire import scalar
from ..wire import Attributes, Scalar
from .conditions import KINDS, Facts
from .rules import Meaning, Rules

# An attribute of 128 bytes takes about 400 in memory: 8 MB together.
MAX_ATTRIBUTES = 20_000
MAX_ATTRIBUTE_BYTES = 128
# A kind of span takes a few hundred bytes and 60 for each attribute; counted in attributes, about 25 MB together.
MAX_MEANINGS = 400_000
MAX_SPAN_ATTRIBUTES, MAX_NAME_BYTES = 64, 256
# What each kind of span counts, attributes aside.
_FIXED_COST = 8

# Values of an attribute that does not count, above which it is taken for one that hardly ever says the same twice: were they
# remembered, they would soon have driven out all that does come again.
MAX_UNWANTED_VALUES = 256

_STRING = 0x0A  # the tag of an AnyValue that is one, and of a KeyValue's key


class Attribute:
    """An attribute that counts; known by its identity.

    Args:
        key: Its name.
        value: What it says; for one of which counts only that it is there, just that.
    """

    __slots__ = ("key", "value")

    def __init__(self, key: str, value: Scalar) -> None:
        self.key, self.value = key, value


# None where it does not count.
Token: TypeAlias = Attribute | bool
UNWANTED: Final = False


class Place:
    """Where spans come from; known by its identity.

    Args:
        scope: The name of the instrumentation scope.
        resource: What of the process counts.
    """

    __slots__ = ("resource", "scope")

    def __init__(self, scope: str, resource: Mapping[str, Scalar]) -> None:
        self.scope, self.resource = scope, resource


Key: TypeAlias = tuple[Place, bytes, int, bool, tuple[Token, ...]]


class Tokens(dict[bytes, Token]):
    """What serialized KeyValues count for; what is not there yet is learnt, and remembered if it may come again.

    Args:
        wanted: The names of those that count, each with its attribute if it counts only that it is there, else with None.
        learn: What to make of one.
    """

    def __init__(self, wanted: Mapping[bytes, Attribute | None], learn: Callable[[bytes], Token]) -> None:
        super().__init__()
        self._wanted, self._learn = wanted, learn
        self._unwanted: dict[bytes, int] = {}

    def __missing__(self, attribute: bytes) -> Token:
        # Nearly all begin with a key of less than 128 bytes, and then the value.
        try:
            size = attribute[1]
            tag = attribute[4 + size]
        except IndexError:
            return self._remember(attribute, self._learn(attribute))
        if size >= 0x80 or attribute[0] != _STRING:  # noqa: PLR2004 - a length of several bytes
            return self._remember(attribute, self._learn(attribute))
        key = attribute[2 : 2 + size]
        token = self._wanted.get(key, UNWANTED)
        if token is None:
            return self._remember(attribute, self._learn(attribute))
        if token is UNWANTED:
            values = self._unwanted.get(key, 0)
            if values < MAX_UNWANTED_VALUES:
                if len(self._unwanted) >= MAX_ATTRIBUTES:
                    self._unwanted.clear()
                self._unwanted[key] = values + 1
                self._remember(attribute, UNWANTED)
            return UNWANTED
        # Numbers hardly ever come again, small ones aside.
        if tag == _STRING or len(attribute) == 6 + size:
            return self._remember(attribute, token)
        return token

    def _remember(self, attribute: bytes, token: Token) -> Token:
        if len(attribute) <= MAX_ATTRIBUTE_BYTES:
            if len(self) >= MAX_ATTRIBUTES:
                self.clear()
            self[attribute] = token
        return token


class Meanings:
    """What spans are.

    Args:
        rules: Those that hold.

    Attributes:
        tokens: What attributes count for.
        meanings: What was learnt of spans.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._present = {key: Attribute(key, True) for key in rules.present}
        wanted = {**dict.fromkeys(rules.exact), **self._present}
        self.tokens = Tokens({key.encode(): attribute for key, attribute in wanted.items()}, self._parsed)
        self.meanings: dict[Key, Meaning] = {}
        self._interned: dict[tuple[str, type, Scalar], Attribute] = {}
        self._places: dict[tuple[str, tuple[tuple[str, Scalar], ...]], Place] = {}
        self._cost = 0

    def place(self, scope: str, resource: Attributes) -> Place:
        """Return where spans of *scope* in a process that says *resource* of itself come from."""
        counts = tuple(sorted((key, value) for key, value in resource.items() if key in self.rules.resource))
        found = self._places.get((scope, counts))
        if found is None:
            if len(self._places) >= MAX_ATTRIBUTES:
                self._places.clear()
            found = self._places[scope, counts] = Place(scope, dict(counts))
        return found

    def token_of(self, key: str, value: Scalar | None) -> Token:
        """Return what the attribute *key* counts for that says *value*, None for what is no scalar."""
        present = self._present.get(key)
        if present is not None:
            return present
        if value is None or key not in self.rules.exact:
            return UNWANTED
        # 1, 1.0 and true are equal, but not the same.
        known = (key, type(value), value)
        found = self._interned.get(known)
        if found is None:
            if len(self._interned) >= MAX_ATTRIBUTES:
                self._interned.clear()
            found = Attribute(key, value)
            if len(key) + len(str(value)) <= MAX_ATTRIBUTE_BYTES:
                self._interned[known] = found
        return found

    def _parsed(self, attribute: bytes) -> Token:
        pair = parse_attribute(attribute)
        return self.token_of(pair.key, scalar(pair.value))

    def meaning(self, key: Key) -> Meaning:
        """Return what spans of *key* are, and remember it.

        Raises:
            WireError: The name is not valid UTF-8.
        """
        place, name, kind, root, tokens = key
        try:
            shown = name.decode()
        except UnicodeDecodeError as error:
            msg = f"the name of a span is not valid UTF-8 ({error.reason})"
            raise WireError(msg) from error
        attributes = {token.key: token.value for token in tokens if isinstance(token, Attribute)}
        kind_name = KINDS[kind] if 0 <= kind < len(KINDS) else KINDS[0]
        found = self.rules.meaning(Facts(place.scope, shown, kind_name, attributes, place.resource, root))
        if len(name) <= MAX_NAME_BYTES and len(tokens) <= MAX_SPAN_ATTRIBUTES:
            self._cost += _FIXED_COST + len(tokens)
            if self._cost > MAX_MEANINGS:
                self.meanings.clear()
                self._cost = 0
            self.meanings[key] = found
        return found


def parse_attribute(attribute: bytes) -> KeyValue:
    """Return the serialized KeyValue *attribute*.

    Raises:
        WireError: It is none.
    """
    try:
        return KeyValue.FromString(attribute)
    except DecodeError as error:
        msg = f"an attribute is not a valid KeyValue ({error})"
        raise WireError(msg) from error
