"""What a service is asked to take, and what it took: measured by itself, right around the work.

A sleep on a busy machine lasts longer than planned. What was planted is therefore not the plan but what the service
measured, with a clock of its own; nothing here knows of Stagelens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

# Where `noting_arrival` leaves the time, in Unix nanoseconds.
ARRIVED = "arrived"
# The header that says when the answer was handed to the server, in Unix nanoseconds.
ANSWERED = b"x-answered"
WARM_UP = {"preprocess": 0.001, "forward": 0.001, "postprocess": 0.001}


class Plan:
    """The plan of one request.

    Args:
        asked: What each step shall take [seconds], and whatever else a service needs to know, such as a count.
        arrived: When the request reached the application; 0 where nobody noted it. [Unix nanoseconds]
    """

    def __init__(self, asked: Mapping[str, float], arrived: int = 0) -> None:
        self.asked = asked
        self.began = time.time_ns()
        self.arrived = arrived or self.began
        # Nanoseconds by stage, or by what a stream is like.
        self.spent: dict[str, int] = {}

    @contextmanager
    def measured(self, stage: str) -> Generator[None]:
        """Count the inside of a `with` as *stage*."""
        started = time.perf_counter_ns()
        yield
        self.add(stage, time.perf_counter_ns() - started)

    def add(self, stage: str, spent: int) -> None:
        """Count so many nanoseconds as *stage*."""
        self.spent[stage] = self.spent.get(stage, 0) + spent

    def spend(self, stage: str) -> None:
        """Take the time of *stage*, off the CPU."""
        with self.measured(stage):
            time.sleep(self.asked[stage])

    async def wait(self, stage: str) -> None:
        """Take the time of *stage* as a coroutine."""
        with self.measured(stage):
            await asyncio.sleep(self.asked[stage])

    def answer(self) -> dict[str, Any]:
        """Return what the client is told."""
        return {"arrived": self.arrived, "began": self.began, "spent": self.spent}


def noting_arrival(application: Application) -> Application:
    """Return an ASGI application around *application* that notes, outside of all that is timed, when requests come and go."""

    async def outermost(scope: Message, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (ANSWERED, str(time.time_ns()).encode())]
            await send(message)

        if scope["type"] == "http":
            scope["state"] = {**scope.get("state", {}), ARRIVED: time.time_ns()}
        await application(scope, receive, noting)

    return outermost
