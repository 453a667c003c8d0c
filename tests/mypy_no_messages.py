"""A plugin of mypy: the words of a finding are for people; only code that shows them may read them.

Decisions use fields of `Finding`. `[tool.mypy] plugins` in pyproject.toml turns it on.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

WORDS = ("ddpdoctor.findings.Finding.message", "ddpdoctor.findings.Finding.text")

READERS = (
    "ddpdoctor/findings.py",  # builds the text of a finding from its parts, and one message from another
    "ddpdoctor/render/",
    "ddpdoctor/cli/",
    "ddpdoctor/app/triage.py",  # redacts secrets that a log printed
    "ddpdoctor/app/tool_files.py",  # puts the address of a GPU in place of a number that no file shows
)
"""The files and folders that may read them."""


class NoMessages(Plugin):
    """Reports every read of a finding's words outside of `READERS`."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The check of an attribute, None for all but the words of a finding."""
        return _refused if fullname in WORDS else None


def _refused(ctx: AttributeContext) -> Type:
    path = "/" + getattr(ctx.api, "path", "").replace("\\", "/")
    if not ctx.is_lvalue and not any(f"/{reader}" in path for reader in READERS):
        ctx.api.fail("logic reads the words of a finding: use a field (quote, undetermined, identity)", ctx.context)
    return ctx.default_attr_type


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls with its version."""
    return NoMessages
