"""Pictures in Slack: uploaded as files of the bot's own, which are shown where a message of the bot names them.

A picture is never worth a message: it is put into one that Slack has already, and whatever goes wrong leaves that as it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .....core.errors import ChannelError
from ...http import post
from ...troubleshooting import cure
from ...truncation import cut
from . import api

log = logging.getLogger(__name__)

# https://docs.slack.dev/reference/methods/files.getUploadURLExternal#errors: alt_txt_too_large
MAX_ALT_CHARS = 1000
# Slack looks at a file for a moment before a message may show it, and calls the block invalid until then
# (slackapi/python-slack-sdk#1521): waits between tries. [seconds]
WAITS_SECONDS = (1.0, 1.0, 2.0)
# What may be done about a picture in all, while other messages wait. [seconds]
PATIENCE_SECONDS = 10.0
# After trouble messages go without pictures for so long. [seconds]
REST_SECONDS = 600.0
_NOT_YET = frozenset({"invalid_blocks", "invalid_blocks_format"})


class Pictures:
    """Tries to put pictures into the messages of one channel; trouble is said once in the log and costs no message.

    Args:
        clock: Says how long things take. [seconds]
        sleep: Waits. [seconds]
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rests_until = clock()
        self._is_troubled = False

    def put(self, channel: str, upload: Callable[[], str], show: Callable[[str], object]) -> str:
        """Upload a picture and have it shown.

        Args:
            channel: The name of the channel, for the log.
            upload: Uploads it and returns the file's id.
            show: Brings the message up to date with that file in it.

        Returns:
            The file's id; nothing when the message stayed without a picture.
        """
        began = self._clock()
        if began < self._rests_until:
            return ""
        try:
            file = upload()
            self._show(file, show, began + PATIENCE_SECONDS)
        except ChannelError as trouble:
            self._rests_until = self._clock() + (trouble.retry_after_seconds or REST_SECONDS)
            if not self._is_troubled:
                said = f"{trouble}. {cure('slack', str(trouble))}".strip()
                log.warning("alerts: %s: messages go without their picture: %s", channel, said)
            self._is_troubled = True
            return ""
        self._is_troubled = False
        return file

    def _show(self, file: str, show: Callable[[str], object], end: float) -> None:
        for wait in WAITS_SECONDS:
            try:
                show(file)
            except api.SlackError as refused:
                if refused.word not in _NOT_YET or self._clock() + wait > end:
                    raise
                self._sleep(wait)
            else:
                return
        show(file)


def upload(base_url: str, token: str, png: bytes, name: str, alt: str) -> str:
    """Upload *png* under *name*, seen by nobody until a message shows it, and return the file's id.

    https://docs.slack.dev/messaging/working-with-files#uploading_files

    Raises:
        ChannelError: Slack did not take it; the bot needs the scope `files:write`.
    """
    wanted = {"filename": name, "length": len(png), "alt_txt": cut(alt, MAX_ALT_CHARS)}
    offered = api.call(base_url, token, "files.getUploadURLExternal", wanted)
    file = str(offered.get("file_id", ""))
    post(str(offered.get("upload_url", "")), png, {"Content-Type": "image/png"}, receiver="Slack", secrets=[token])
    api.call(base_url, token, "files.completeUploadExternal", {"files": [{"id": file, "title": name}]})
    return file
