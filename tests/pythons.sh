#!/bin/sh
# The tests that need no torch, on every other supported Python that is installed. torch itself is tested on one Python only.
# VERSIONS="3.10 3.13" sh tests/pythons.sh picks some; the interpreters are those on PATH and those of pyenv.
# DDPDOCTOR_ONE_IN=8 runs every test function with one in eight of its cases.
set -u
status=0
own=$(.venv/bin/python -c "import sys; print('%d.%d' % sys.version_info[:2])")
for version in ${VERSIONS:-3.10 3.11 3.12 3.13}; do
    [ "$version" = "$own" ] && continue
    python=""
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            python=$candidate
        fi
    done
    if [ -z "$python" ]; then
        echo "== Python $version is not installed: not tested"
        continue
    fi
    venv=".venv-$version"
    if [ ! -e "$venv/.tools" ] || [ pyproject.toml -nt "$venv/.tools" ]; then
        if ! { "$python" -m venv "$venv" && "$venv/bin/python" -m pip install -q --upgrade pip &&
            "$venv/bin/python" -m pip install -q -e . && "$venv/bin/python" -m pip install -q --group dev; }; then
            echo "== Python $version: the environment could not be made"
            status=1
            continue
        fi
        touch "$venv/.tools"
    fi
    "$venv/bin/python" -m compileall -q ddpdoctor
    echo "== Python $version: the tests that need neither torch nor root"
    PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -n auto -p no:cacheprovider \
        ${TESTS:-tests/facts tests/scripts tests/rules tests/render tests/cli tests/logs tests/test_layers.py} \
        --ignore=tests/cli/test_check.py \
        -m "not torch and not root and not slow and not gpu and not packaging" || status=1
done
exit $status
