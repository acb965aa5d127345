"""Slack's Web API with one channel: posts, threads, updates, history with metadata, and its own kind of refusals."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from blockkit import check_blocks
from receiver import Moods, Receiver

CHANNEL, TOKEN = "C0123456789", "xoxb-1-2-secret"
# https://docs.slack.dev/reference/methods: those that write take JSON, those that read take forms.
_WRITES = {"chat.postMessage", "chat.update"}
_READS = {"conversations.history", "conversations.replies"}


class SlackWorkspace(Receiver):
    """A workspace with one channel.

    Args:
        moods: How it fails.
        scopes: What the bot may do.
        page: How many messages it shows at once.
    """

    def __init__(
        self,
        moods: Moods,
        scopes: frozenset[str] = frozenset({"chat:write", "channels:history"}),
        page: int = 100,
    ) -> None:
        super().__init__(moods)
        self.page = page
        self.messages: list[dict[str, Any]] = []
        self.scopes = scopes
        self.refuse_once: list[str] = []
        self.calls: list[str] = []

    @property
    def parents(self) -> list[dict[str, Any]]:
        """The messages of the channel itself."""
        return [message for message in self.messages if message["thread_ts"] is None]

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The messages in threads."""
        return [message for message in self.messages if message["thread_ts"] is not None]

    def check(self, path: str, headers: Any, body: bytes) -> None:
        """Hold it to the rules."""
        method = path.removeprefix("/api/")
        assert method in _WRITES | _READS, path
        assert headers["Authorization"] == f"Bearer {TOKEN}"
        if method in _READS:
            assert headers["Content-Type"] == "application/x-www-form-urlencoded"
            return
        assert headers["Content-Type"].startswith("application/json")
        said = json.loads(body)
        assert said["text"], "no_text"
        assert len(said["text"]) <= 4000
        if "blocks" in said:
            check_blocks(said["blocks"])

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        """Do it."""
        del headers
        method = path.removeprefix("/api/")
        self.calls.append(method)
        if self.refuse_once:
            return _answer(ok=False, error=self.refuse_once.pop(0))
        if method in _READS:
            return self._read(method, {key: found[0] for key, found in parse_qs(body.decode()).items()})
        said = json.loads(body)
        if said["channel"] != CHANNEL:
            return _answer(ok=False, error="channel_not_found")
        return self._post(said) if method == "chat.postMessage" else self._update(said)

    def _post(self, said: dict[str, Any]) -> tuple[int, bytes]:
        stamp = f"1795143840.{len(self.messages):06}"
        self.messages.append({"ts": stamp, "thread_ts": said.get("thread_ts"), "said": [said]})
        return _answer(ok=True, channel=CHANNEL, ts=stamp)

    def _update(self, said: dict[str, Any]) -> tuple[int, bytes]:
        for message in self.messages:
            if message["ts"] == said["ts"]:
                message["said"].append(said)
                return _answer(ok=True, channel=CHANNEL, ts=said["ts"])
        return _answer(ok=False, error="message_not_found")

    def _read(self, method: str, asked: dict[str, str]) -> tuple[int, bytes]:
        if "channels:history" not in self.scopes:
            return _answer(ok=False, error="missing_scope", needed="channels:history")
        assert asked["include_all_metadata"] == "true"
        if method == "conversations.history":
            found = self.parents[::-1]
        else:
            found = [each for each in self.messages if asked["ts"] in (each["ts"], each["thread_ts"])]
        start = int(asked.get("cursor") or 0)
        end = start + min(self.page, int(asked["limit"]))
        more = str(end) if end < len(found) else ""
        shown = [_shown(each) for each in found[start:end]]
        return _answer(ok=True, messages=shown, response_metadata={"next_cursor": more})


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    said = message["said"][0]
    shown = {"ts": message["ts"], "text": said["text"], "metadata": said.get("metadata")}
    return shown if message["thread_ts"] is None else {**shown, "thread_ts": message["thread_ts"]}


def _answer(**said: Any) -> tuple[int, bytes]:
    return 200, json.dumps(said).encode()
