"""The batch program of a reader of the documentation."""

from __future__ import annotations

import stagelens

for row in range(30):
    with stagelens.request("batch"), stagelens.stage("preprocess"):
        sorted(range(1000), key=lambda each, row=row: each * row % 7)
