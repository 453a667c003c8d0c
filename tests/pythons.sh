#!/bin/sh
# The torch-free tests on every other supported Python that is installed. torch itself is tested on one Python only.
set -u
status=0
for version in 3.10 3.11 3.12 3.13; do
    python=$(command -v "python$version") || { echo "python$version is not installed: not tested"; continue; }
    "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null || { echo "python$version does not start: not tested"; continue; }
    own=$(.venv/bin/python -c "import sys; print('%d.%d' % sys.version_info[:2])")
    [ "$version" = "$own" ] && continue
    venv=".venv-$version"
    if [ ! -e "$venv/.tools" ] || [ pyproject.toml -nt "$venv/.tools" ]; then
        "$python" -m venv "$venv" && "$venv/bin/python" -m pip install -q --upgrade pip &&
            "$venv/bin/python" -m pip install -q -e . && "$venv/bin/python" -m pip install -q --group dev &&
            touch "$venv/.tools" || { status=1; continue; }
    fi
    echo "== Python $version, the tests that need neither torch nor root"
    PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -m "not torch and not root and not slow and not gpu and not packaging" || status=1
done
exit $status
