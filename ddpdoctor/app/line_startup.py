"""What a launch line would start on this machine, and the torch that would parse it: for `check`, never for `lint`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.system.machine import this_machine

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.launch.record import Launch
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.facts.startup import Startup

__all__ = ["LOOKUP_SECONDS", "with_startup"]

LOOKUP_SECONDS = 10.0


def with_startup(facts: Facts, request: Request) -> Facts:
    """The facts of a launch line with what it would start; it is parsed as the torch of its own interpreter does."""
    launch = facts.launch
    if launch is None or not launch.lines:
        return facts
    from ddpdoctor.collectors.startup import collect_startup

    startup = collect_startup(launch.lines[0], this_machine(LOOKUP_SECONDS))
    return replace(facts, launch=_read_by(startup, launch, request), startup=startup)


def _read_by(startup: Startup, launch: Launch, request: Request) -> Launch:
    """The launch as parsed by the torch of the line's interpreter."""
    python = startup.python_version or launch.python
    if startup.torch is None or startup.torch == launch.torch:
        is_known = startup.torch is not None or launch.torch_from == "option"
        return replace(launch, python=python, torch_from=launch.torch_from if is_known else "assumed")
    from ddpdoctor.collectors.launch import collect_launch

    machine = this_machine(LOOKUP_SECONDS)
    again = collect_launch(machine, request.launch, torch=startup.torch, cwd=os.getcwd())
    return replace(again, torch_from="installed", python=python)
