"""Files that take the place of modules: whether they do harm is tried in a process of its own, and that takes its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.probe import module_shadowing


def test_a_slow_trial_beats_all_the_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tmp_path / "done"
    beats: list[int] = []
    wait = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    monkeypatch.setattr(module_shadowing, "IMPORT", wait)
    monkeypatch.setattr(module_shadowing, "STEP_SECONDS", 0.01)

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            done.touch()

    assert module_shadowing.import_failure([module_shadowing.ShadowedModule("queue", "/job/queue.py")], beat) is None
    assert len(beats) >= 3


def test_a_file_that_never_lets_the_import_end_is_found_by_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "queue.py"
    file.write_text("import time\nwhile True: time.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        module_shadowing,
        "IMPORT",
        module_shadowing.IMPORT.replace("30", "1").replace("torch, torch.distributed", "queue"),
    )
    words = module_shadowing.import_failure([module_shadowing.ShadowedModule("queue", str(file))], lambda: None)
    assert words is not None
    assert words.endswith("importing torch timed out after 30 s")
    assert module_shadowing.explain(words, [module_shadowing.ShadowedModule("queue", str(file))]) == (
        "queue",
        str(file),
    )
