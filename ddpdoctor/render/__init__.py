"""Renderers: a report in, a string out. They never see facts and never print."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ddpdoctor.findings import Report

__all__ = ["FORMATS", "render"]

FORMATS = ("table", "json", "markdown", "junit", "sarif", "github", "concise")


def render(report: Report, form: str, **options: object) -> str:
    """The report as text in one of FORMATS; it can always be written as UTF-8. `options` are for the renderer: `table`
    takes width, colour, quiet and verbose."""
    write: Callable[..., str] = importlib.import_module(f"ddpdoctor.render.{form}").write
    # Undecodable bytes of file names and variables arrive as lone surrogates, which cannot be written as UTF-8.
    return write(report, **options).encode("utf-8", "replace").decode("utf-8")
