#!/bin/sh
# Install requirements.txt into Gumshoe's virtual environment. Packages that are there already keep their versions.
set -eu
venv=${VENV:-/opt/gumshoe}
python=$(readlink -f "$venv/bin/python3") # the environment has no pip of its own, the image has

list() {
    "$python" -m pip --python "$venv/bin/python3" list --format freeze --disable-pip-version-check
}

list | sed '/^gumshoe-agents==/d' >before.txt # it is on no index
if grep -qs -- '--hash=' requirements.txt; then
    set -- --no-deps --require-hashes
else
    set -- --constraint before.txt
fi
"$python" -m pip --python "$venv/bin/python3" install --no-cache-dir --disable-pip-version-check "$@" -r requirements.txt
list >after.txt
if changed=$(grep -vxFf after.txt before.txt); then
    echo "error: the requirements change packages that Gumshoe needs as they are; require these versions:" >&2
    echo "$changed" >&2
    exit 1
fi
