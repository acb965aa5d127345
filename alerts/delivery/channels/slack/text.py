"""Texts of others as Slack shows them: what they mean to Slack is taken away."""

from __future__ import annotations

from ...truncation import line

# A row of a message, not a page.
MAX_ROW_CHARS = 400
# Slack has no escape for its own marks; these look alike.
_HARMLESS = str.maketrans({"*": "\N{ASTERISK OPERATOR}", "~": "\N{TILDE OPERATOR}", "`": "'"})


def escape(raw: str) -> str:
    """Return *raw* so that Slack shows it as it is.

    https://docs.slack.dev/messaging/formatting-message-text#escaping

    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    return raw.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mild(raw: str, limit: int = MAX_ROW_CHARS) -> str:
    """Return *raw* as one line that cannot end the bold, italic, struck or code text it may stand in.

    >>> mild("a`b` <!channel>")
    "a'b' &lt;!channel&gt;"
    """
    return escape(line(raw, limit).translate(_HARMLESS))


def sentence(said: str) -> str:
    """Return *said*, half a sentence, as a whole one, and mild.

    >>> sentence("queue grew")
    'Queue grew.'
    """
    said = line(said, MAX_ROW_CHARS)
    return mild(said[:1].upper() + said[1:] + ".")
