#!/usr/bin/env bash
# Creates an environment with Agent S2, S2.5 and S3 (gui-agents): scripts/install_gui_agents.sh PYTHON FOLDER
# Only what these agents import is installed with it: the package's list has frameworks for OCR and browsers.
set -euo pipefail
python=$1 folder=$2
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip install --quiet)
# it says "at most 3.12", which pip reads as 3.12.0
"${pip[@]}" --no-deps --ignore-requires-python gui-agents==0.3.2
"${pip[@]}" numpy backoff openai anthropic google-genai scikit-learn tiktoken pytesseract pillow requests pydantic
for version in s2 s2_5 s3; do  # fails here, not in the tests, if an import is missing
    "$folder/bin/python" -c "import gui_agents.$version.agents.agent_s, gui_agents.$version.agents.grounding"
done
