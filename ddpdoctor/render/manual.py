"""The manual, from the rules' own docstrings: a page per rule for `explain`, the list for `rules`, a page per area.

`python -m ddpdoctor.render.manual FOLDER` writes the pages of docs/rules.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence

from ddpdoctor.render.markdown import prose, table
from ddpdoctor.rules import AREAS, Cause, Rule, area_of

__all__ = ["area_page", "as_dict", "listed", "matches", "page", "pages"]


def page(rule: Rule, form: str, width: int = 100) -> str:
    """One rule's page as `table` (text for a terminal), `markdown` or `json`."""
    if form == "json":
        return json.dumps(as_dict(rule), indent=2, ensure_ascii=False) + "\n"
    if form == "markdown":
        return _section(rule, "#")
    head = _wrapped(f"{rule.code} {rule.name} ({rule.severity.value})", width)
    return f"{head}\n\n{_wrapped_doc(rule.doc, width)}\n"


def listed(rules: Iterable[Rule], form: str, width: int = 100) -> str:
    """The list of rules as `table`, `markdown` or `json`."""
    if form == "json":
        brief = ("code", "name", "area", "severity", "kind", "title")
        return json.dumps([{k: as_dict(r)[k] for k in brief} for r in rules], indent=2, ensure_ascii=False) + "\n"
    if form == "markdown":
        rows = ((r.code, r.severity.value, r.name, prose(r.title)) for r in rules)
        return table(("code", "severity", "name", "what it is"), rows) + "\n"
    return "".join(_line(r, width) for r in rules)


def matches(rules: Sequence[Rule], form: str, width: int, most: int) -> str:
    """The results of a search, best first: in a table the first `most` of them, and what to type next."""
    if form != "table":
        return listed(rules, form, width)
    left = f"{len(rules) - most} more; add a word. " if len(rules) > most else ""
    return listed(rules[:most], form, width) + f"\n{left}ddpdoctor explain {rules[0].code} shows the first one.\n"


def pages(rules: Iterable[Rule]) -> dict[str, str]:
    """Every page of docs/rules, by file name: one per area that has rules."""
    found = tuple(rules)
    by_area = {word: [r for r in found if area_of(r.code) == word] for word in AREAS.values()}
    return {f"{word}.md": area_page(word, members) for word, members in by_area.items() if members}


def area_page(area: str, rules: Iterable[Rule]) -> str:
    """The page of one area; each rule's anchor is its code."""
    members = list(rules)
    note = "<!-- Generated from the rules' docstrings by `python -m ddpdoctor.render.manual docs/rules`. -->"
    rows = ((f"[{r.code}](#{r.code.lower()})", r.severity.value, r.name, prose(r.title)) for r in members)
    index = table(("code", "severity", "name", "what it is"), rows)
    return "\n".join([f"# {area}\n\n{note}\n\n{index}\n", *(_section(r, "##") for r in members)])


def as_dict(rule: Rule) -> dict[str, object]:
    """One rule as JSON values."""
    return {
        "code": rule.code,
        "name": rule.name,
        "area": area_of(rule.code),
        "severity": rule.severity.value,
        "kind": rule.kind,
        "title": rule.title,
        "why": rule.why,
        "fix": rule.fix,
        "manual": rule.doc,
        "signatures": list(rule.signatures),
    }


def _section(rule: Rule, marks: str) -> str:
    doc = re.sub(r"^## ", f"{marks}# ", rule.doc, flags=re.MULTILINE).rstrip()
    kind = "" if rule.kind == "cause" else f", {rule.kind}"
    return f"{marks} {rule.code}\n\n**{rule.name}** ({rule.severity.value}{kind})\n\n{doc}\n"


def _line(rule: Rule, width: int) -> str:
    head = f"{rule.code:<11} {rule.severity.value:<8} {rule.name}"
    if width < 80:
        return _wrapped(head, width, "  ") + "\n" + _wrapped(f"  {rule.title}", width, "  ") + "\n"
    return _wrapped(head, width, " " * 21) + "\n" + _wrapped(" " * 21 + rule.title, width, " " * 21) + "\n"


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _wrapped_doc(doc: str, width: int) -> str:
    """The manual wrapped to `width`; headings, lists and indented lines (commands, log lines) keep their lines."""
    return "\n\n".join(_wrapped_block(block, width) for block in doc.strip().split("\n\n"))


def _wrapped_block(block: str, width: int) -> str:
    lines = block.split("\n")
    if any(line.startswith(("    ", "```", "|")) for line in lines):
        return block
    pieces: list[str] = []
    for line in lines:
        starts_anew = re.match(r"(#+|[-*]|\d+\.) ", line) or (pieces and pieces[-1].startswith("#"))
        if starts_anew or not pieces:
            pieces.append(line)
        else:
            pieces[-1] += f" {line.strip()}"
    return "\n".join(_wrapped(piece, width, "  " if re.match(r"[-*\d]", piece) else "") for piece in pieces)


def line_modules_text() -> str:
    """The source of `ddpdoctor/rules/line_modules.py`: which modules have a look at launch lines."""
    return _modules_text(
        "LINE_MODULES",
        "the modules of causes of machines that launch lines show as well",
        "Only these are imported to judge a line: importing all causes takes longer than judging it.",
        lambda each: bool(each.looks_at("launch")),
    )


def log_modules_text() -> str:
    """The source of `ddpdoctor/rules/log_modules.py`: which modules have causes that logs show."""
    from ddpdoctor.rules.views import shows_in_logs

    return _modules_text(
        "LOG_MODULES",
        "the modules of causes that logs show",
        "Only these are imported to judge a log: importing all causes takes longer than judging a short one.",
        lambda each: shows_in_logs(each.rule),
    )


def _modules_text(name: str, what: str, why: str, is_member: Callable[[Cause], bool]) -> str:
    from ddpdoctor.rules import load, loaded

    load()
    modules = sorted({each.rule.module for each in loaded() if is_member(each)})
    return (
        f'"""Generated by `make docs`: {what}."""\n\n'
        "from __future__ import annotations\n\n"
        f'__all__ = ["{name}"]\n\n'
        f"{name}: tuple[str, ...] = (\n" + "".join(f'    "{module}",\n' for module in modules) + ")\n"
        f'"""{why}"""\n'
    )


def _write_pages(folder: str) -> None:
    from pathlib import Path

    from ddpdoctor.rules import load

    fresh = pages(load())
    for name, text in fresh.items():
        Path(folder, name).write_text(text, "utf-8")
    from ddpdoctor.rules import line_modules, log_modules

    Path(line_modules.__file__).write_text(line_modules_text(), "utf-8")
    Path(log_modules.__file__).write_text(log_modules_text(), "utf-8")
    for stale in {p.name for p in Path(folder).glob("*.md")} - set(fresh):
        Path(folder, stale).unlink()


if __name__ == "__main__":
    import sys

    _write_pages(sys.argv[1])
