"""`pytest tests/core --rewrite` writes down what the core says now; the difference is for a person to read."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("holdfast").addoption("--rewrite", action="store_true", help="write what the core says now into the scenario files")
