"""`dcgmi diag` as a table or as JSON, and `dcgmi health`: the results of NVIDIA's own tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.record import Card, Line, Record, Said

__all__ = ["read_diag", "read_diag_json", "read_health", "read_nvlink"]

_ROW = pattern(r"\s*[|+](.{1,60}?)[|+](.*)$")
_RESULT = pattern(r"(Pass|Fail|Warn|Skip)\b(?: - (.*))?", re.I)
_GPUS = pattern(r"GPUs?:? ((?:\d{1,2}(?:, ?)?)+)", re.I)
_ENTITY = pattern(r"\bGPU ?(?:ID:? )?(\d{1,2})\b", re.I)
_DETAILS = ("warning", "error", "info", "")
_WORST = ("fail", "warn", "skip", "pass")
LONGEST = 400
FULL_ROW = 45
"""The least length of a row of text that is broken inside a word."""
DEEPEST = 12


def _without_border(text: str) -> str:
    """The rest of a row without the bar or the corner at its end."""
    text = text.rstrip()
    return text[:-1] if text.endswith(("|", "+")) else text


def read_diag(lines: Sequence[Line]) -> Record:
    """The record of the table that `dcgmi diag -r N` prints."""
    record = Record("dcgmi diag")
    results: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    for number, line in lines:
        row = _ROW.match(line)
        if row is None:
            if results and line.strip():
                break
            continue
        # The table breaks words: only the space that belongs to the border is removed.
        name, text = row[1].strip(" -"), _without_border(row[2]).rstrip().removeprefix(" ")
        matched = _RESULT.match(text)
        if name.lower() in _DETAILS:
            if current is not None and text:
                # A row that is not full ended with a space, which the table does not show.
                current["text"] = f"{current['text']}{text}{' ' * (len(text) < FULL_ROW)}"[:LONGEST]
            elif name.lower() == "error" and text:
                current = _result("Deployment", "fail", "", text, number)
                results.append(current)
        elif matched is not None:
            status = matched[1].lower()
            if current is not None and (current["test"] == name or name.startswith("GPU")):
                # Newer releases print one more row per GPU under the test, `| | Fail: GPU1 |` or `| GPU3 | Fail |`.
                _worsen(current, status, name + " " + (matched[2] or ""))
                continue
            current = _result(name, status, matched[2] or "", "", number)
            results.append(current)
        elif name and not name.startswith("="):
            current = None
    return _settled(record, results)


def _worsen(result: dict[str, Any], status: str, where: str) -> None:
    if _WORST.index(status) < _WORST.index(result["status"]):
        result["status"] = status
    if status == "fail":
        result["gpus"] = sorted({*result["gpus"], *_gpus(where)})


def _result(test: str, status: str, where: str, text: str, line: int) -> dict[str, Any]:
    return {"test": test[:80], "status": status, "gpus": _gpus(where), "text": text[:LONGEST], "line": line}


def _gpus(text: str) -> list[int]:
    """The GPUs that a result names: `Fail - GPU: 3, 5`."""
    listed = _GPUS.search(text)
    if listed is not None:
        return [int(each) for each in re.findall(r"\d{1,2}", listed[1])]
    return sorted({int(each) for each in _ENTITY.findall(text)})


def _settled(record: Record, results: list[dict[str, Any]]) -> Record:
    """The record with its results, each with the GPUs that its own text names if the result names none."""
    for result in results:
        if not result["gpus"] and result["status"] in ("fail", "warn"):
            result["gpus"] = _gpus(result["text"])
    for result in results:
        result["text"] = " ".join(result["text"].split())
    kept = [{name: value for name, value in result.items() if name != "line"} for result in results]
    if kept:
        for index, result in enumerate(results):
            record.values[f"gpu.diagnostics[{index}]"] = Said(None, result["line"])
        record.values["gpu.diagnostics"] = Said(kept, results[0]["line"])
    record.about = f"{len(kept)} test{'' if len(kept) == 1 else 's'}"
    return record


def read_diag_json(lines: Sequence[Line]) -> Record:
    """The record of `dcgmi diag -j`, from DCGM 2 to 4."""
    record = Record("dcgmi diag -j")
    first = lines[0][0] if lines else 1
    text = "\n".join(line for _, line in lines)
    start = text.find("{")
    try:
        document, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except (ValueError, RecursionError):
        return record
    results = []
    for category, test in _tests(document):
        name = str(test.get("name", "unnamed"))
        for each in [*_listed(test.get("results")), *_listed([test.get("test_summary")])]:
            status = str(each.get("status", "")).lower()
            if status in _WORST:
                results.append(_json_result(name or category, status, each, _line_of(lines, name, first)))
    return _settled(record, _merged(results))


def _json_result(name: str, status: str, each: dict[str, Any], line: int) -> dict[str, Any]:
    words = [str(w.get("warning", w)) if isinstance(w, dict) else str(w) for w in _any_list(each.get("warnings"))]
    words += [str(each[key]) for key in ("info", "error_message") if isinstance(each.get(key), str)]
    result = _result(name, status, "", "; ".join(words), line)
    ids = str(each.get("gpu_ids", each.get("gpu_id", each.get("entity_id", ""))))
    result["gpus"] = [int(number) for number in re.findall(r"\b\d{1,2}\b", ids)] if len(ids) < LONGEST else []
    return result


def _merged(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One result per test and status: JSON has one per GPU."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        known = merged.setdefault((result["test"], result["status"]), result)
        if known is not result:
            known["gpus"] = sorted({*known["gpus"], *result["gpus"]})
            known["text"] = known["text"] or result["text"]
    return list(merged.values())


def _tests(document: object, category: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that has a name and results, with the category above it."""
    if depth > DEEPEST:
        return
    if isinstance(document, dict):
        category = str(document.get("category", category))
        if "results" in document or "test_summary" in document:
            yield category, document
        for value in document.values():
            yield from _tests(value, category, depth + 1)
    elif isinstance(document, list):
        for value in document:
            yield from _tests(value, category, depth + 1)


def _any_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _listed(value: object) -> list[dict[str, Any]]:
    return [each for each in _any_list(value) if isinstance(each, dict)]


def _line_of(lines: Sequence[Line], name: str, first: int) -> int:
    return next((number for number, line in lines if f'"{name}"' in line), first)


_HEALTH = pattern(
    r"\s*\|\s*(?:->\s*)?(Overall Health|GPU(?: ID)?:?\s*\d+|[A-Z][\w ]{2,40}?(?: system)?(?: Watches)?)\s*[|:]\s*(.*?)\s*\|?\s*$"
)
_HEALTH_WORDS = {"healthy": "pass", "warning": "warn", "failure": "fail", "unhealthy": "fail"}


def read_health(lines: Sequence[Line]) -> Record:
    """The record of `dcgmi health -c`."""
    record = Record("dcgmi health")
    results: list[dict[str, Any]] = []
    gpu: int | None = None
    for number, line in lines:
        matched = _HEALTH.match(line)
        if matched is None:
            if (
                results
                and results[-1]["status"] != "pass"
                and (more := re.match(r"\s*\|\s*\|\s*([^\s|][^|]*)\|", line))
            ):
                results[-1]["text"] = f"{results[-1]['text']} {more[1]}".strip()[:LONGEST]
            continue
        of_gpu = re.match(r"GPU(?: ID)?:?\s*(\d{1,2})", matched[1])
        gpu = int(of_gpu[1]) if of_gpu is not None else gpu
        words = matched[2].lstrip("- :>").split(" ", 1)
        status = next((s for w, s in _HEALTH_WORDS.items() if re.search(rf"\b{w}\b", matched[2], re.I)), None)
        if status is not None and words:
            result = _result(matched[1].strip(), status, "", "", number)
            result["gpus"] = [gpu] if gpu is not None else []
            results.append(result)
    # The overall result repeats the worst of the others.
    parts = [each for each in results if not each["test"].startswith("Overall")] or results
    return _settled(record, [part for part in parts if part["status"] != "pass"] or results[:1])


_GPU_ID = pattern(r"\s*gpuId (\d{1,2}):\s*$")
_STATES = pattern(r"\s*((?:[UDX_] ?){1,36})\s*$")


def read_nvlink(lines: Sequence[Line]) -> Record:
    """The record of `dcgmi nvlink --link-status`: one letter per link. Disabled and unsupported links are left out."""
    record = Record("dcgmi nvlink")
    for number, line in lines:
        gpu, states = _GPU_ID.match(line), _STATES.match(line)
        if gpu is not None:
            record.cards.append(Card(number, index=int(gpu[1])))
        elif states is not None and record.cards and not record.cards[-1].links:
            for link, state in enumerate(states[1].split()):
                if state in "UD":
                    record.cards[-1].links[link] = {"is_active": Said(state == "U", number)}
    record.about = f"{len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    return record
