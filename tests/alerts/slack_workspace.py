"""Simulated Slack Web API with one channel: posts, threads, updates, history with metadata, files, and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from tests.alerts.blockkit import check_blocks
from tests.alerts.receiver import Moods, Receiver

CHANNEL, TOKEN = "C0123456789", "xoxb-1-2-secret"
# https://docs.slack.dev/reference/methods: methods that write accept JSON, methods that read accept forms.
_JSON = {"chat.postMessage", "chat.update", "files.completeUploadExternal"}
_READS = {"conversations.history", "conversations.replies"}
_FORMS = {*_READS, "files.getUploadURLExternal"}
_UPLOAD = "/upload/v1/"


@dataclass
class File:
    """File of the bot.

    Args:
        length: Announced length. [bytes]
        alt: Alternative text.
        png: Uploaded content.
        complete: Whether the upload was completed, after which a message may show the file.
    """

    length: int
    alt: str
    png: bytes = b""
    complete: bool = False


class SlackWorkspace(Receiver):
    """Slack workspace with one channel.

    Args:
        moods: Failures of the server.
        scopes: Scopes of the bot's token.
        page: Number of messages per page.

    Attributes:
        refuse: Error codes of methods that always fail; `upload` is the upload of file content.
        looks_at_files: Number of updates that fail because Slack still processes the file.
    """

    def __init__(
        self,
        moods: Moods,
        scopes: frozenset[str] = frozenset({"chat:write", "channels:history", "files:write"}),
        page: int = 100,
    ) -> None:
        super().__init__(moods)
        self.page = page
        self.messages: list[dict[str, Any]] = []
        self.scopes = scopes
        self.files: dict[str, File] = {}
        self.refuse_once: list[str] = []
        self.refuse: dict[str, str] = {}
        self.looks_at_files = 0
        self.calls: list[str] = []

    @property
    def parents(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["thread_ts"] is None]

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["thread_ts"] is not None]

    def check(self, path: str, headers: Any, body: bytes) -> None:
        if path.startswith(_UPLOAD):
            assert headers["Authorization"] is None, "the address is all that an upload needs"
            assert body.startswith(b"\x89PNG"), "only images can be shown"
            return
        method = path.removeprefix("/api/")
        assert method in _JSON | _FORMS, path
        assert headers["Authorization"] == f"Bearer {TOKEN}"
        if method in _FORMS:
            assert headers["Content-Type"] == "application/x-www-form-urlencoded"
            return
        assert headers["Content-Type"].startswith("application/json")
        payload = json.loads(body)
        if method == "files.completeUploadExternal":
            assert "channel_id" not in payload, "a file that is shared is a message of its own"
            return
        assert payload["text"], "no_text"
        assert len(payload["text"]) <= 4000
        if "blocks" in payload:
            check_blocks(payload["blocks"])

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del headers
        if path.startswith(_UPLOAD):
            self.calls.append("upload")
            return (500, b"") if "upload" in self.refuse else self._receive(path.removeprefix(_UPLOAD), body)
        method = path.removeprefix("/api/")
        self.calls.append(method)
        if method in self.refuse:
            return _ok_response(ok=False, error=self.refuse[method])
        if self.refuse_once:
            return _ok_response(ok=False, error=self.refuse_once.pop(0))
        if method in _FORMS:
            return self._read(method, _form(body)) if method in _READS else self._offer(_form(body))
        payload = json.loads(body)
        return self._complete(payload["files"]) if method.startswith("files.") else self._show(method, payload)

    def _show(self, method: str, payload: dict[str, Any]) -> tuple[int, bytes]:
        if payload["channel"] != CHANNEL:
            return _ok_response(ok=False, error="channel_not_found")
        if not self._shows(payload.get("blocks", [])):
            return _ok_response(ok=False, error="invalid_blocks", errors=["invalid slack file"])
        return self._post(payload) if method == "chat.postMessage" else self._update(payload)

    def _offer(self, wanted: dict[str, str]) -> tuple[int, bytes]:
        if "files:write" not in self.scopes:
            return _ok_response(ok=False, error="missing_scope", needed="files:write")
        if int(wanted.get("length", 0)) <= 0 or not wanted.get("filename"):
            return _ok_response(ok=False, error="missing_argument")
        if len(wanted.get("alt_txt", "")) > 1000:
            return _ok_response(ok=False, error="alt_txt_too_large")
        name = f"F{len(self.files):09}"
        self.files[name] = File(int(wanted["length"]), wanted.get("alt_txt", ""))
        return _ok_response(ok=True, file_id=name, upload_url=f"{self.url}{_UPLOAD}{name}")

    def _receive(self, name: str, body: bytes) -> tuple[int, bytes]:
        if name not in self.files or len(body) != self.files[name].length:
            return 400, b"not what was announced"
        self.files[name].png = body
        return 200, f"OK - {len(body)}".encode()

    def _complete(self, wanted: list[dict[str, str]]) -> tuple[int, bytes]:
        names = [each["id"] for each in wanted]
        found = [self.files[name] for name in names if name in self.files and self.files[name].png]
        if len(found) < len(names) or any(file.complete for file in found):
            return _ok_response(ok=False, error="file_not_found")
        for file in found:
            file.complete = True
        return _ok_response(ok=True, files=[{"id": name} for name in names])

    def _shows(self, blocks: list[dict[str, Any]]) -> bool:
        names = [block["slack_file"]["id"] for block in blocks if block["type"] == "image"]
        if not all(name in self.files and self.files[name].complete for name in names):
            return False
        early = bool(names) and self.looks_at_files > 0
        self.looks_at_files -= early
        return not early

    def _post(self, payload: dict[str, Any]) -> tuple[int, bytes]:
        stamp = f"1795143840.{len(self.messages):06}"
        self.messages.append({"ts": stamp, "thread_ts": payload.get("thread_ts"), "said": [payload]})
        return _ok_response(ok=True, channel=CHANNEL, ts=stamp)

    def _update(self, payload: dict[str, Any]) -> tuple[int, bytes]:
        for message in self.messages:
            if message["ts"] == payload["ts"]:
                message["said"].append(payload)
                return _ok_response(ok=True, channel=CHANNEL, ts=payload["ts"])
        return _ok_response(ok=False, error="message_not_found")

    def _read(self, method: str, asked: dict[str, str]) -> tuple[int, bytes]:
        if "channels:history" not in self.scopes:
            return _ok_response(ok=False, error="missing_scope", needed="channels:history")
        assert asked["include_all_metadata"] == "true"
        if method == "conversations.history":
            found = self.parents[::-1]
        else:
            found = [each for each in self.messages if asked["ts"] in (each["ts"], each["thread_ts"])]
        start = int(asked.get("cursor") or 0)
        end = start + min(self.page, int(asked["limit"]))
        more = str(end) if end < len(found) else ""
        shown = [_shown(each) for each in found[start:end]]
        return _ok_response(ok=True, messages=shown, response_metadata={"next_cursor": more})


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    payload = message["said"][0]
    shown = {"ts": message["ts"], "text": payload["text"], "metadata": payload.get("metadata")}
    return shown if message["thread_ts"] is None else {**shown, "thread_ts": message["thread_ts"]}


def _form(body: bytes) -> dict[str, str]:
    return {key: found[0] for key, found in parse_qs(body.decode()).items()}


def _ok_response(**fields: Any) -> tuple[int, bytes]:
    return 200, json.dumps(fields).encode()
