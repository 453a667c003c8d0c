"""The generated pages are current, and a page reads well at every width."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.render.manual import line_modules_text, listed, log_modules_text, page, pages
from ddpdoctor.rules import line_modules, load, log_modules

DOCS = Path(__file__).parents[2] / "docs" / "rules"
RULES = load()


def test_the_generated_pages_are_current() -> None:
    written = {p.name: p.read_text() for p in DOCS.glob("*.md")}
    fresh = pages(RULES)
    stale = [name for name in sorted({*written, *fresh}) if written.get(name) != fresh.get(name)]
    assert not stale, "run: make docs"


def test_the_list_of_modules_with_looks_at_lines_is_current() -> None:
    assert Path(line_modules.__file__).read_text() == line_modules_text(), "run: make docs"
    assert Path(log_modules.__file__).read_text() == log_modules_text(), "run: make docs"


def test_every_help_link_has_its_anchor() -> None:
    text = "\n".join(pages(RULES).values()).split("\n")
    assert all(f"## {r.code}" in text for r in RULES)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_prose_fits_the_terminal(width: int) -> None:
    for each in RULES:
        for line in (page(each, "table", width) + listed([each], "table", width)).split("\n"):
            assert len(line) <= width or " " not in line.strip() or line.startswith(("    ", "|", "`")), (
                each.code,
                line,
            )
