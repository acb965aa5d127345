"""Django with three functions that sleep."""

from __future__ import annotations

import json

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from .planted import Plan

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="none is kept")  # noqa: S106 - on the loopback


def prepare(plan: Plan) -> None:
    """Preprocess."""
    plan.spend("preprocess")


def rank(plan: Plan) -> None:
    """Be the model."""
    plan.spend("forward")


def finish(plan: Plan) -> None:
    """Postprocess."""
    plan.spend("postprocess")


def answer(request: HttpRequest) -> JsonResponse:
    """Answer one request."""
    plan = Plan(json.loads(request.body))
    prepare(plan)
    rank(plan)
    finish(plan)
    return JsonResponse(plan.answer())


urlpatterns = [path("predict", answer)]
application = get_wsgi_application()
