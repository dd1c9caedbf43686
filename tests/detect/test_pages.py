"""Every detector has a page, and the page says what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DETECTORS = sorted(path for path in (ROOT / "src/holdfast/detect").glob("*.py") if "\nSees " in (ast.get_docstring(ast.parse(path.read_text())) or ""))
PARTS = ("Sees", "Says", "Is wrong", "Costs")


@pytest.mark.parametrize("path", DETECTORS, ids=lambda path: path.stem)
def test_a_detector_says_what_it_sees_when_it_is_wrong_and_what_it_costs(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    missing = [part for part in PARTS if not re.search(rf"^{part}\s", said, flags=re.MULTILINE)]
    assert not missing, f"{path.name} does not say: {', '.join(missing)}"


@pytest.mark.parametrize("path", [path for path in DETECTORS if path.stem != "unusual"], ids=lambda path: path.stem)
def test_the_page_of_a_detector_says_what_the_code_says(path: Path) -> None:
    page = " ".join((ROOT / f"docs/detectors/{path.stem}.md").read_text().split())
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    for part in re.split(r"^(?=[A-Z][a-z]+(?: [a-z]+)?\s{2,})", said, flags=re.MULTILINE)[1:]:
        name, text = re.match(r"(\w+(?: \w+)?)\s{2,}(.*)", part.partition("\n\n")[0], flags=re.DOTALL).groups()  # type: ignore[union-attr]
        assert " ".join(text.split()) in page, f"docs/detectors/{path.stem}.md does not say this, of {name!r}"


def test_the_pages_are_listed() -> None:
    index = (ROOT / "docs/detectors/README.md").read_text()
    missing = [page.name for page in (ROOT / "docs/detectors").glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]
    assert not missing
