"""SCRIPT598: a model that accelerate trains without having prepared it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import argument, has_more, is_test, last_value
from ddpdoctor.scripts.syntax.module import Module, modules


@cause("SCRIPT598", "model-not-prepared", Severity.ERROR)
def model_not_prepared(script: Script) -> Iterator[Finding]:
    """accelerator.prepare gets the optimizer, but not its model.

    ## Why it matters
    Only prepare wraps the model in DDP. Without it each process trains its own model on its part of the data, without
    any error.

    ## Fix
    Pass the model as well: `model, optimizer, loader = accelerator.prepare(model, optimizer, loader)`.

    ## Example
        # before
        optimizer, loader = accelerator.prepare(optimizer, loader)

        # after
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    ## Source
    Documentation of accelerate (Accelerator.prepare, Accelerator.prepare_model).
    """
    for module in modules(script):
        if not module.calls("Accelerator") or is_test(module):
            continue
        calls = [c for c in module.method_calls.get("prepare", ()) if not has_more(c)]
        passes = [c for c in module.method_calls.get("backward", ()) if "accelerator" in ast.unparse(c.func).lower()]
        given = {ast.unparse(a) for c in calls for a in c.args}
        if module.method_calls.get("prepare_model") or not calls or not (passes or _goes_back(module)):
            continue
        for call in calls:
            model = next((m for a in call.args if (m := _model_of(module, a)) and m not in given), "")
            if model and not any(_names_model(g, model) for g in given):
                yield point(
                    module,
                    call,
                    f"{code(module, call.func, 40)}() gets the optimizer of {model}, but not {model}",
                    f"prepare({model}, …)",
                    label="the model is not wrapped in DDP",
                    fix=f"Pass {model} to prepare() as well.",
                )


def _goes_back(module: Module) -> bool:
    """Whether an Accelerator of any name runs the backward pass."""
    made = [module.index.parents.get(c) for c in module.calls("Accelerator")]
    names = {ast.unparse(t) for m in made if isinstance(m, ast.Assign) for t in m.targets}
    calls = module.method_calls.get("backward", ())
    return any(ast.unparse(c.func.value) in names for c in calls if isinstance(c.func, ast.Attribute))


def _names_model(text: str, model: str) -> bool:
    return text == model or text.startswith(f"{model}.")


def _model_of(module: Module, node: ast.expr) -> str:
    """The name of the model whose parameters an optimizer holds, "" if it is none or not known."""
    made = last_value(module, node)
    name = module.names.of(made.func) if isinstance(made, ast.Call) else None
    is_optimizer = name is not None and name.startswith("torch.optim.")
    given = argument(made, 0, "params") if isinstance(made, ast.Call) and is_optimizer else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
        base = given.func.value
        return base.id if isinstance(base, ast.Name) else ""
    return ""
