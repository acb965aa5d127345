"""A Django service."""

from __future__ import annotations

import json
from typing import Any

import planted
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.urls import path
from planted import secret

planted.log_ours()
settings.configure(SECRET_KEY=secret("key"), ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], USE_TZ=True)


def item(request: HttpRequest, name: str) -> JsonResponse:
    received: dict[str, Any] = {"name": name, "json": json.loads(request.body), "query": request.GET}
    return JsonResponse(received | {"headers": str(request.headers)})


def form(request: HttpRequest) -> JsonResponse:
    names = [file.name for file in request.FILES.values() if not isinstance(file, list)]
    return JsonResponse({"fields": request.POST, "names": names})


def stream(_: HttpRequest) -> StreamingHttpResponse:
    parts = [secret("chunk"), secret("chunk")]
    return StreamingHttpResponse(parts, reason=secret("reason"), headers={"X-Answer": secret("answerheader")})


def fails(_: HttpRequest) -> None:
    raise RuntimeError(secret("exception"))


def instrumented(_: HttpRequest) -> JsonResponse:
    return JsonResponse(planted.instrumented(), safe=False)


urlpatterns = [
    path("items/<str:name>", item),
    path("forms", form),
    path("streams", stream),
    path("fails", fails),
    path("instrumented", instrumented),
]
app = get_asgi_application()
