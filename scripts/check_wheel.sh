#!/usr/bin/env bash
# Builds the wheel and uses it as a stranger would: an empty environment, an empty folder.
#   scripts/check_wheel.sh         PYTHON=python3.12 chooses the interpreter; UV=uv installs the extras by uv
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
unset PYTHONPATH

install() {
    local program=("$bin/python" -m pip install)
    [ -z "${UV:-}" ] || program=("$UV" pip install --python "$bin/python")
    "${program[@]}" --quiet -c "$root/constraints.txt" "$@"
}

"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/python" -m pip install --quiet --upgrade "pip>=24"
"$bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" "$root"
wheel=$(echo "$work"/dist/*.whl)
cp "$root/examples/gymnasium_loop.py" "$root/examples/torchrl_collector.py" "$work"
mkdir "$work/empty"
cd "$work/empty"

echo "-- base: Gymnasium, no torch"
"$bin/python" -m pip install --quiet -c "$root/constraints.txt" "$wheel"
! "$bin/python" -c "import torch" 2>/dev/null || { echo "the base dependencies contain torch" >&2; exit 1; }
tasks=$("$bin/osworld-gym" tasks list | wc -l)
test "$tasks" -gt 50 || { echo "osworld-gym tasks list: expected more than 50 lines, got $tasks" >&2; exit 1; }
"$bin/osworld-gym" doctor --provider sim
"$bin/python" "$work/gymnasium_loop.py" 3
status=0
"$bin/bepa" train experiment=smoke 2>"$work/error" || status=$?
if [ "$status" != 2 ] || ! grep -q "pip install 'osworld-gym\[bepa\]'" "$work/error"; then
    echo "bepa without its extra: expected exit 2 and the pip command, got $status:" >&2
    cat "$work/error" >&2
    exit 1
fi

echo "-- extra torchrl: a stock collector"
install "$wheel[torchrl]"
"$bin/python" "$work/torchrl_collector.py" >"$work/collector.txt"
tail -n 2 "$work/collector.txt"

echo "-- extra bepa: a short training run"
install "$wheel[bepa]"
"$bin/bepa" train experiment=smoke
test -n "$(ls runs)"
echo "the wheel works: $(basename "$wheel")"
