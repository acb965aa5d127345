"""Programs as users have them, each as the text of a script, and where they run."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.long_flush_path import LONG_FLUSH

RUN = (sys.executable, "-m", "stagelens", "run")
TIMEOUT_SECONDS = 120
# The same with a longer wait for child processes of the command than the default of ten seconds.
_LONGER = f"import sys; from stagelens.__main__ import main; from stagelens.cli import supervisor; supervisor._CHILDREN_SECONDS = {TIMEOUT_SECONDS}"
LONG_WAIT_RUN = (sys.executable, "-c", f"{_LONGER}; sys.exit(main())", "run")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "STAGELENS_", "PYTHONPATH"))
    }
    (folder / "tmp").mkdir(exist_ok=True)
    ours = {"TMPDIR": str(folder / "tmp"), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": LONG_FLUSH}
    return inherited | ours | variables


class Terminal:
    """A terminal of 80 columns with a session of its own, and a process in it; if *apart*, its stdout is a pipe."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None, *, apart: bool = False) -> None:
        self._end, self._other = pty.openpty()
        # The first terminal that the leader of a session opens is its own.
        line = 'exec "$@" <"$0" 2>"$0"' + ("" if apart else ' >"$0"')
        self.process = subprocess.Popen(
            ["sh", "-c", line, os.ttyname(self._other), *command],
            env=env,
            start_new_session=True,
            stdout=subprocess.PIPE if apart else None,
            text=True,
        )
        self._said = ""
        # A character may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read_until(self, text: str) -> str:
        while text not in self._said:
            self._said += self._decoder.decode(os.read(self._end, 65536))
        seen, found, self._said = self._said.partition(text)
        return seen + found

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def end(self) -> int:
        return self.process.wait(TIMEOUT_SECONDS)

    def rest(self) -> str:
        os.close(self._other)
        self._other = -1
        text, self._said = self._said, ""
        with contextlib.suppress(OSError):  # nobody has it open any more
            while piece := os.read(self._end, 65536):
                text += self._decoder.decode(piece)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._end)
        if self._other >= 0:
            os.close(self._other)


def script(text: str) -> str:
    return textwrap.dedent(text).lstrip()


# A batch script: no server, no library, a request where its code says so.
BATCH = script(
    """
    import sys
    import stagelens

    for number in range(int(sys.argv[1])):
        with stagelens.request("job"):
            with stagelens.stage("preprocess"):
                pass
            with stagelens.stage("forward"):
                sum(range(1000))
    print("result", flush=True)
    """
)

# A service with a real model in ONNX Runtime.
SERVICE = script(
    """
    from magika import Magika
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    model = Magika()

    async def identify(request):
        return PlainTextResponse(model.identify_bytes(await request.body()).output.label)

    app = Starlette(routes=[Route("/identify/{name}", identify, methods=["POST"])])
    """
)

# A service for several workers.
FLASK = script(
    """
    from flask import Flask

    app = Flask(__name__)

    @app.post("/identify/<name>")
    def identify(name):
        return name
    """
)

# A program of somebody else, which knows OpenTelemetry and nothing of us.
FOREIGN = script(
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind

    provider = TracerProvider(resource=Resource({"service.name": "foreign"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("theirs")
    for number in range(5):
        with tracer.start_as_current_span("GET /price", kind=SpanKind.SERVER):
            with tracer.start_as_current_span("SELECT", kind=SpanKind.CLIENT, attributes={"db.system": "sqlite"}):
                pass
    provider.shutdown()
    """
)

# Starts a server, asks it, and ends; the server it has told to end may still be at it then.
DRIVER = script(
    """
    import http.client, signal, socket, subprocess, sys, time

    port, requests, *command = sys.argv[1:]
    server = subprocess.Popen([sys.executable, "-m", *command])
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
            break
        except OSError:
            time.sleep(0.02)
    for number in range(int(requests)):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("POST", f"/identify/{number}", body=b"import os")
        connection.getresponse().read()
        connection.close()
    server.send_signal(signal.SIGTERM)
    """
)
