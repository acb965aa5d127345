"""Service of Django's development server, which starts the program again as a child."""

from __future__ import annotations

import os
import sys
import time

import gate
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, DEBUG=True, MIDDLEWARE=[])


def root(_: HttpRequest) -> JsonResponse:
    return JsonResponse({"pid": os.getpid()})


def wait(_: HttpRequest) -> JsonResponse:
    gate.enter()
    while not gate.is_open():
        time.sleep(0.01)
    return JsonResponse({})


urlpatterns = [path("", root), path("wait", wait)]

if __name__ == "__main__":
    execute_from_command_line(["", "runserver", sys.argv[1]])
