"""Writes the two files of a new cause: `make cause CODE=HOST NAME=some-pattern`. CONTRIBUTING.md says what to do then.

CODE is an area's prefix, which takes the next free number, or a whole code that is free. Everything that is to be
written stands as FILL IN in the files, and the tests refuse a cause in which one is left.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ddpdoctor.rules import AREAS, area_of, load

__all__ = ["FILL_IN", "FIRST_FREE", "files_of"]

ROOT = Path(__file__).parent.parent
FILL_IN = "FILL IN"
FIRST_FREE = 500
"""Numbers from here up are for new causes."""
VIEWS = {"SCRIPT": ("script",), "LOG": ("log",), "LAUNCH": ("launch",)}
MACHINE_VIEWS = ("machine", "log")

RULE = '''"""{code}: {title}."""

from __future__ import annotations

{imports}

@cause({arguments})
def {function}({parameter}) -> {result}:
    """FILL IN: what is wrong, in one sentence that ends with a full stop.

    ## Why it matters
    FILL IN: what happens then, with the exact message that the user sees in backticks.

    ## Fix
    FILL IN: a verb first, and a command that can be pasted.

    ## Example
{example}
    ## Source
    FILL IN: where a threshold or a claim about torch, NCCL or NVML comes from; or remove this heading.
    """
{body}'''

EXAMPLES = {
    "script": """    # before
    pass  # FILL IN: the wrong code

    # after
    pass  # FILL IN: the right code
""",
    "other": """        FILL IN: the message that the user sees

        # before
        FILL IN: the wrong command or setting

        # after
        FILL IN: the right one
""",
}

SIGNATURES = 'signatures=(r"FILL IN: a regular expression over one line",)'

LOOKS = {
    "machine": (
        "from collections.abc import Iterator\n\nfrom {section_module} import {section}\n"
        "from ddpdoctor.findings import Evidence, Finding, Severity\nfrom ddpdoctor.rules import cause\n",
        """    is_wrong = False  # FILL IN: the condition, from the fields of {section}
    if is_wrong:
        yield Finding(
            "FILL IN: what is wrong, with the value that was seen",
            evidence=(Evidence("{word}.FILL IN", "what was seen", "what was expected"),),
        )
""",
    ),
    "launch": (
        "from collections.abc import Iterator\n\nfrom {section_module} import {section}\n"
        "from ddpdoctor.findings import Finding, Severity\nfrom ddpdoctor.rules import cause\n"
        "from ddpdoctor.rules.launch.pointing import agents, point, shown\n",
        """    for line, agent, _plan in agents(launch):
        word = agent.reading.script  # FILL IN: the word that is wrong, or None
        is_wrong = False  # FILL IN: the condition
        if word is not None and is_wrong:
            text = f"{{shown(word)}} FILL IN: what happens"
            yield point(launch, line, word, text, "FILL IN: what is right", label="FILL IN: up to six words")
""",
    ),
    "script": (
        "from collections.abc import Iterator\n\nfrom {section_module} import {section}\n"
        "from ddpdoctor.findings import Finding, Severity\nfrom ddpdoctor.rules import cause\n"
        "from ddpdoctor.rules.script.pointing import code, point\nfrom ddpdoctor.scripts.syntax.module import modules\n",
        """    for module in modules(script):
        for call in module.calls("FILL IN: such as dist.barrier"):
            is_wrong = False  # FILL IN: the condition
            if is_wrong:
                # FILL IN: edits=(replace(module, call, "…"),) corrects it, see ddpdoctor/rules/script/pointing.py
                text = f"{{code(module, call)}} FILL IN: what happens"
                yield point(module, call, text, "FILL IN: what is right", label="FILL IN: up to six words")
""",
    ),
    "log": ("from ddpdoctor.findings import Severity\nfrom ddpdoctor.rules import cause\n", ""),
}

CASES = {
    "machine": """=== machine silent: FILL IN: what is legal and looks similar
on: {machine}

{{"{word}": {{}}}}

=== machine fires: FILL IN: what is wrong
on: {machine}
message: FILL IN: a part of the finding's message

{{"{word}": {{}}}}
""",
    "launch": """=== launch-line silent

torchrun FILL IN: a legal line that looks similar

=== launch-line fires
fix: FILL IN: the corrected line

torchrun FILL IN: the wrong line
""",
    "script": """not-run: FILL IN: why two Gloo ranks on CPUs cannot show it; or add a form to situations/scripts/wrong
not-corrected: FILL IN: why the finding has no edits; or remove this line

=== script silent: FILL IN: what is legal and looks similar

import torch.distributed as dist

=== script fires: FILL IN: the usual form

import torch.distributed as dist  # expect: {code}

=== script fires: FILL IN: another form

import torch.distributed as dist  # expect: {code}
""",
    "log": """=== log-line silent

FILL IN: a line of a healthy job, or of another cause, that looks similar

=== log-line fires

FILL IN: a line as the program prints it, one per signature
""",
}


def files_of(code: str, name: str, view: str = "") -> dict[str, str]:
    """The texts of the new cause's files, by their paths in the repository.

    Raises:
        ValueError: the code, the name or the view is not allowed; the message says what is.
    """
    rules = load()
    code = _free_code(code, {rule.code for rule in rules})
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", name):
        raise ValueError(f"NAME={name!r}: expected at least two lower-case words with hyphens, such as shm-too-small")
    taken = next((rule.code for rule in rules if rule.name == name), None)
    if taken is not None:
        raise ValueError(f"NAME={name!r}: {taken} has this name")
    allowed = VIEWS.get(code.rstrip("0123456789"), MACHINE_VIEWS)
    view = view or allowed[0]
    if view not in allowed:
        raise ValueError(f"VIEW={view!r}: expected {' or '.join(allowed)} for {code}")
    function = name.replace("-", "_")
    return {
        f"ddpdoctor/rules/{area_of(code)}/{code.lower()}_{function}.py": _rule(code, name, view),
        f"fixtures/cases/{code.lower()}.txt": _filled_cases(code, view),
    }


def _free_code(code: str, taken: set[str]) -> str:
    """The code itself, or the next free number of an area."""
    if code in AREAS:
        return next(f"{code}{number}" for number in range(FIRST_FREE, 1000) if f"{code}{number}" not in taken)
    prefix = code.rstrip("0123456789")
    if prefix not in AREAS or len(code) - len(prefix) != 3:
        raise ValueError(f"CODE={code!r}: expected {', '.join(AREAS)}, alone or with three digits")
    if code in taken:
        raise ValueError(f"CODE={code!r}: this code is taken; CODE={prefix} takes the next free number")
    if int(code[len(prefix) :]) < FIRST_FREE:
        raise ValueError(
            f"CODE={code!r}: expected a number from {FIRST_FREE} up; CODE={prefix} takes the next free one"
        )
    return code


def _rule(code: str, name: str, view: str) -> str:
    word = area_of(code)
    module, section = ("launch.record", "Launch") if word == "launch" else (word, word.capitalize())
    arguments = f'"{code}", "{name}", Severity.WARNING'
    known = {"word": word, "section": section, "section_module": f"ddpdoctor.facts.{module}"}
    imports, body = LOOKS[view]
    return RULE.format(
        code=code,
        name=name,
        title=name.replace("-", " "),
        function=name.replace("-", "_"),
        imports=imports.format(**known),
        arguments=f"\n    {arguments},\n    {SIGNATURES},\n" if view == "log" else arguments,
        parameter="" if view == "log" else f"{word}: {section}",
        result="None" if view == "log" else "Iterator[Finding]",
        body=body.format(**known),
        example=EXAMPLES.get(view, EXAMPLES["other"]),
    )


def _filled_cases(code: str, view: str) -> str:
    machine = "h100x8_sxm_healthy" if area_of(code) in ("gpu", "topo") else "cpu_vm"
    return CASES[view].format(code=code, word=area_of(code), machine=machine)


def main(arguments: list[str]) -> int:
    """Write the files, or print in one line why not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("code")
    parser.add_argument("name")
    parser.add_argument("--view", default="", help="machine, launch, script or log")
    given = parser.parse_args(arguments)
    try:
        files = files_of(given.code, given.name, given.view)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, text in files.items():
        (ROOT / path).write_text(text, "utf-8")
        print(f"wrote {path}")
    code = Path(next(reversed(files))).stem.upper()
    print(f"next: write the cases and the rule where {FILL_IN} stands, then: make try CODE={code}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
