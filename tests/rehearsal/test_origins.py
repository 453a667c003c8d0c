"""Numbers that a rehearsal follows: they are plain ones for whoever asks, and conversions keep where they come from."""

from __future__ import annotations

import io
import json
import pickle
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the hook in a world of two ranks, with the records that they would send."""
    pytest.importorskip("torch")
    from ddpdoctor.rehearsal.hook import origins, plain_numbers, rewriting

    records: list[tuple[str, dict[str, Any]]] = []

    def say(kind: str, **fields: Any) -> None:
        records.append((kind, fields))

    for module in (origins, rewriting):
        monkeypatch.setattr(module, "channel", lambda: SimpleNamespace(say=say))
    monkeypatch.setattr(origins, "_state", origins._State())
    origins.begin(2)
    return SimpleNamespace(origins=origins, rewriting=rewriting, plain_numbers=plain_numbers, records=records)


def traced(hook: Any, value: float, **known: Any) -> Any:
    return hook.origins._traced(value, hook.origins.ValueOrigin(**known))


def test_yaml_writes_a_followed_number_as_a_plain_one(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    kind = yaml.representer.BaseRepresenter
    monkeypatch.setattr(kind, "represent_data", kind.represent_data)
    monkeypatch.setattr(hook.plain_numbers, "_taught", set())
    monkeypatch.setitem(hook.plain_numbers._seen, "modules", 0)
    with pytest.raises(yaml.representer.RepresenterError):
        yaml.SafeDumper.represent_data.__get__(yaml.SafeDumper(io.StringIO()))(traced(hook, 1.5))
    hook.plain_numbers.teach()
    assert yaml.safe_dump({"loss": traced(hook, 1.5), "steps": traced(hook, 3)}) == "loss: 1.5\nsteps: 3\n"


def test_files_get_plain_numbers(hook: Any) -> None:
    import torch

    saved = {"loss": traced(hook, 1.5), "list": [traced(hook, 2)], "weights": torch.ones(2)}
    file = io.BytesIO()
    torch.save(hook.origins.plain(saved), file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert (type(found["loss"]), type(found["list"][0])) == (float, int)
    assert json.dumps(traced(hook, 1.5)) == "1.5"
    assert type(pickle.loads(pickle.dumps(traced(hook, 1.5)))) is float


def test_what_has_no_followed_number_is_saved_as_it_is(hook: Any) -> None:
    value = {"a": [1, (2, 3)], "b": {"c": 1.5}}
    assert hook.origins.plain(value) is value


def run(hook: Any, text: str, **names: Any) -> dict[str, Any]:
    hook.rewriting.define()
    found: dict[str, Any] = dict(names)
    exec(hook.rewriting.compiled(textwrap.dedent(text).encode(), "/job/train.py"), found)
    return found


def test_the_users_code_sees_the_plain_type(hook: Any) -> None:
    found = run(
        hook,
        """
        same = type(value) is float
        made = type("Made", (), {})
        whole = int("7")
        based = int("ff", 16)
        """,
        value=traced(hook, 1.5),
    )
    assert found["same"] is True
    assert (found["made"].__name__, found["whole"], found["based"]) == ("Made", 7, 255)


def test_conversions_and_factors_keep_where_a_number_comes_from(hook: Any) -> None:
    found = run(
        hook,
        """
        share = 100.0 * hits / 9
        again = float(share)
        """,
        hits=traced(hook, 4, loaders=frozenset({1})),
    )
    assert found["share"] == pytest.approx(400 / 9)
    known = hook.origins.origin_of(found["again"])
    assert (known.loaders, known.parts) == ({1}, {9.0})


def test_a_number_is_reported_when_it_is_shown_after_its_loader_ended(hook: Any) -> None:
    value = traced(hook, 1.5, loaders=frozenset({1}))
    hook.origins.batch_begins(1)
    assert f"{value:.1f}" == "1.5"
    assert hook.records == []
    hook.origins.batches_end(1)
    assert f"{value:.1f}" == "1.5"
    assert value < 2
    assert [kind for kind, _ in hook.records] == ["shown", "decided"]


def test_rows_lose_their_order_when_they_are_interleaved(hook: Any) -> None:
    import torch

    parts = [torch.arange(4), torch.arange(4)]
    hook.origins.set_gathered(torch.arange(4), parts, [("/job/train.py", 3, "main")])
    follow = hook.origins.follow
    for name, joined, expected in (("cat", torch.cat(parts), 1), ("stack", torch.stack(parts, 1).flatten(), 0)):
        hook.records.clear()
        hook.origins._state.told.clear()
        follow(name, (parts,), joined)
        follow("eq", (joined, torch.arange(8)), joined == torch.arange(8))
        assert len(hook.records) == expected


def test_a_counter_that_is_an_element_of_a_tensor_keeps_its_loader(hook: Any) -> None:
    import torch

    counts = torch.zeros(2)
    part = torch.ones(())
    part.__dict__[hook.origins.ATTRIBUTE] = hook.origins.ValueOrigin(loaders=frozenset({1}))
    hook.origins.follow("__setitem__", (counts, 0, part), None)
    assert hook.origins.origin_of(counts).loaders == {1}
