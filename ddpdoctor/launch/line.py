"""One launch line: its layers, its environment, the settings of its torchrun, and its script."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import ELSEWHERE, REMOTE, LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine, MissingFile, StartedScript
from ddpdoctor.facts.launch.words import UNKNOWN, Word, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.layers import launching, parse_layers, preceding
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.rendezvous import plan_of
from ddpdoctor.launch.shell.words import Simple, simple_commands

__all__ = ["apply_prior_command", "line_of", "line_of_argv", "line_of_text"]


def line_of_argv(
    argv: Sequence[str], environ: Mapping[str, str], version: Version, cwd: str, files: FileLookup = NO_FILES
) -> LaunchLine:
    """The line of words that a shell has already split: their quotes are lost, so they are quoted again if necessary."""
    if len(argv) == 1 and " " in argv[0].strip():
        return line_of_text(argv[0], environ, version, cwd, files=files)
    words, at = [], 0
    for i, text in enumerate(argv):
        text = text.replace(UNKNOWN, "")
        raw = _quoted(text, is_first=i == 0)
        words.append(Word(text, raw, at, at + len(raw)))
        at += len(raw) + 1
    return line_of(" ".join(w.raw for w in words), words, environ, version, cwd, files=files)


def _quoted(text: str, *, is_first: bool) -> str:
    name, sign, value = text.partition("=")
    if sign and re.fullmatch(r"[A-Za-z_]\w*|--?[\w-]+", name, re.ASCII):
        return f"{name}={quote(value) if value else ''}"
    return quote(text)


def line_of_text(
    text: str,
    environ: Mapping[str, str],
    version: Version,
    cwd: str,
    *,
    node: int | None = None,
    files: FileLookup = NO_FILES,
) -> LaunchLine:
    """The launch in shell text: its last command that starts something, after the `cd` and `export` before it."""
    text = text.replace(UNKNOWN, "")
    commands = simple_commands(text)
    known: dict[str, str] = {}
    exported: dict[str, str] = {}
    before: dict[str, str] = {}
    folder: str | None = cwd
    for command in commands[:-1]:
        folder = _step(command, known, exported, folder)
        apply_prior_command([w.text for w in command.words], before)
    if known:
        commands = simple_commands(text, known)
    words = launching(commands) or (commands[-1].words if commands else ())
    background = next((c.operator == "&" for c in commands if c.words == words), False)
    line = line_of(
        text,
        words,
        {**environ, **exported},
        version,
        folder,
        node=node,
        is_background=background,
        known=known,
        files=files,
    )
    return replace(line, before=before, preceding=preceding(commands, words))


def apply_prior_command(words: Sequence[str], before: dict[str, str]) -> None:
    """Note the effect of a command on the launches after it: see `LaunchLine.before`."""
    if words[0] == "ulimit" and len(words) == 3 and words[1] in ("-l", "-Sl", "-Hl"):
        before["memlock"] = words[2]
    elif words[0] == "rm":
        before["removed"] = " ".join([before.get("removed", ""), *words[1:]]).strip()
    elif "install" in words[1:4] and any(re.match(r"(torch|pytorch)\b", w) for w in words):
        is_cpu = any(
            re.search(r"download\.pytorch\.org/whl/(nightly/)?cpu\b|^cpuonly$|^torch==\S+\+cpu", w) for w in words
        )
        before["torch"] = "cpu" if is_cpu else "other"


def _step(command: Simple, known: dict[str, str], exported: dict[str, str], folder: str | None) -> str | None:
    """What a command before the launch changes: the folder, variables."""
    texts = [w.text for w in command.words]
    if texts[0] == "cd" and len(texts) == 2:
        return None if UNKNOWN in texts[1] or folder is None else posixpath.join(folder, posixpath.expanduser(texts[1]))
    words = command.words[1:] if texts[0] == "export" else command.words
    if all(word.assignment for word in words):
        for word in words:
            assert word.assignment is not None
            name, value = word.assignment
            known[name] = value
            if texts[0] == "export":
                exported[name] = value
    return folder


def line_of(
    source: str,
    words: Sequence[Word],
    environ: Mapping[str, str],
    version: Version,
    cwd: str | None,
    *,
    node: int | None = None,
    is_background: bool = False,
    file: str | None = None,
    first_line: int = 1,
    first_column: int = 1,
    batch: Layer | None = None,
    known: Mapping[str, str] | None = None,
    files: FileLookup = NO_FILES,
) -> LaunchLine:
    """A line from its words: its layers, the environment of the innermost one, the settings of torchrun, the script."""
    layers = parse_layers(words, version, known)
    innermost = layers[-1] if layers else None
    base = {} if any(each.launcher in ELSEWHERE for each in layers) else dict(environ)
    if innermost is not None:
        base.update({v.name: v.value for v in innermost.variables})
        base = _unset(layers, base)
    agent = next((e for e in reversed(layers) if e.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY)), None)
    return LaunchLine(
        source=source,
        argv=tuple(words),
        layers=layers,
        environ=Environ(variables=base),
        cwd=cwd,
        file=file,
        first_line=first_line,
        first_column=first_column,
        node=node,
        host=_host(layers),
        script=_script(layers, cwd, files),
        config=_config(layers, cwd, files),
        hostfile=_hostfile(layers, cwd, files),
        missing_files=_missing_files(layers, cwd, files),
        known=dict(known or {}),
        batch=next((e for e in layers if e.launcher is LauncherKind.SBATCH and e is not innermost), batch),
        is_background=is_background,
        plan=None if agent is None else plan_of(agent, base, version),
    )


def _unset(layers: Sequence[Layer], environ: dict[str, str]) -> dict[str, str]:
    """`env -i` and `env -u NAME` remove variables."""
    for layer in layers:
        if layer.name != "env":
            continue
        if any(g.flag in ("-i", "--ignore-environment", "-") for g in layer.reading.given):
            environ = {v.name: v.value for v in layer.variables}
        removed = {g.value for g in layer.reading.given if g.flag in ("-u", "--unset")}
        environ = {name: value for name, value in environ.items() if name not in removed}
    return environ


def _host(layers: Sequence[Layer]) -> str | None:
    """The host that `ssh HOST …` runs the line on."""
    for layer in layers:
        if layer.name == "ssh":
            values = {g.value_word.start for g in layer.reading.given}
            rest = [w for w in layer.own[1:] if not w.text.startswith("-") and w.start not in values]
            if rest:
                return rest[-1].known
    return None


def _script(layers: Sequence[Layer], cwd: str | None, files: FileLookup) -> StartedScript | None:
    """The script, if the line names a file of this machine."""
    innermost = layers[-1] if layers else None
    if len(layers) > 1 and layers[-1].launcher is LauncherKind.OTHER and layers[-2].given("no_python") is not None:
        innermost = layers[-2]
    if innermost is None or cwd is None or innermost.is_garbled:
        return None
    named = innermost.program if _is_script(innermost) else innermost.reading.script
    if named is None:
        return None
    if any(
        each.launcher in (*ELSEWHERE, LauncherKind.OTHER) or each.name in REMOTE for each in _outside(layers, innermost)
    ):
        return None
    if any(_changes_folder(each) or _is_in_container(each) for each in layers):
        return None
    path = named.known
    if (
        path is None
        or innermost.given("module")
        or (innermost.launcher is LauncherKind.OTHER and not _is_script(innermost))
    ):
        return None
    return files.script(posixpath.join(cwd, path))


def _config(layers: Sequence[Layer], cwd: str | None, files: FileLookup) -> dict[str, str] | None:
    """The `key: value` lines of accelerate's config file; None if it is not read."""
    layer = next((each for each in layers if each.launcher is LauncherKind.ACCELERATE), None)
    path = None if layer is None else layer.value("config_file")
    if path is None or UNKNOWN in path or cwd is None or any(e.launcher in ELSEWHERE for e in layers):
        return None
    text = files.text(posixpath.join(cwd, path))
    if text is None:
        return None
    pairs = re.findall(r"^(\w+):([^#\n]*)(?:#.*)?$", text, re.MULTILINE)
    return {key: value.strip(" \t").strip("'\"") for key, value in pairs if value.strip(" \t")}


def _hostfile(layers: Sequence[Layer], cwd: str | None, files: FileLookup) -> str | None:
    """The text of the hostfile of mpirun or deepspeed; None if it is not read."""
    for layer in layers:
        if layer.launcher is LauncherKind.DEEPSPEED:
            path = layer.value("hostfile")
        elif layer.launcher is LauncherKind.MPIRUN:
            path = next((g.value for g in reversed(layer.reading.given) if g.flag in _HOSTFILES), None)
        else:
            continue
        is_here = path is not None and UNKNOWN not in path and cwd is not None
        return files.text(posixpath.join(cwd, path)) if is_here and path and cwd else None
    return None


_HOSTFILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_FILE_OPTIONS = {
    LauncherKind.ACCELERATE: ("--config_file", "--deepspeed_config_file", "--deepspeed_hostfile"),
    LauncherKind.DEEPSPEED: ("--hostfile", "-H"),
    LauncherKind.MPIRUN: _HOSTFILES,
}
"""Options whose value is a file that the launcher reads."""


def _missing_files(layers: Sequence[Layer], cwd: str | None, files: FileLookup) -> tuple[MissingFile, ...]:
    """The options that name a file which does not exist; those of launchers in a container or on another host are unknown."""
    if cwd is None or any(e.launcher in ELSEWHERE or _changes_folder(e) or _is_in_container(e) for e in layers):
        return ()
    named = [
        given
        for layer in layers
        for given in layer.reading.given
        if given.flag.replace("-file", "_file") in _FILE_OPTIONS.get(layer.launcher, ()) and given.value
    ]
    looked = [(given, _missing(posixpath.join(cwd, given.value or ""), files)) for given in named]
    return tuple(MissingFile(given, script.kind) for given, script in looked if script is not None)


def _missing(path: str, files: FileLookup) -> StartedScript | None:
    """What is known about a path where there is no file; None if there is one, or it is unknown."""
    is_device = path.startswith(("/dev/", "/proc/"))  # such as /dev/stdin, or what `<(…)` becomes
    if is_device or UNKNOWN in path or files.text(path) is not None:
        return None
    looked = files.script(path)
    return looked if looked is not None and looked.exists is False else None


def _outside(layers: Sequence[Layer], inner: Layer) -> list[Layer]:
    return [each for each in layers if each.program.start < inner.program.start]


def _is_script(layer: Layer) -> bool:
    """`./train.py`: a script that is started by its own first line."""
    text = layer.program.text
    return layer.launcher is LauncherKind.OTHER and "/" in text and text.endswith(".py")


def _is_in_container(layer: Layer) -> bool:
    """srun with a container (pyxis), whose files are not those of this machine."""
    return any(g.flag in ("--container-image", "--container-name") for g in layer.reading.given)


def _changes_folder(layer: Layer) -> bool:
    texts = [g.value or "" for g in layer.reading.given if g.flag == "--wrap"]
    texts += [layer.own[-1].text] if layer.is_shell_text else []
    if any(re.search(r"(^|[\s;&|(])(cd|pushd)\s", text) for text in texts):
        return True
    return any(g.flag in ("-C", "--chdir", "-D", "-wdir", "--wdir", "-wd", "--directory") for g in layer.reading.given)
