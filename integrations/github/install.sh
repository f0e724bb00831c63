#!/usr/bin/env bash
# Installs overlay without torch, which only building needs, into an environment of its own, and puts it on the PATH.
#
# VERSION  requirement for pip, such as git+https://github.com/OWNER/overlay@COMMIT; empty: what this action was checked
#          out with
# PYTHON   interpreter to make the environment from; python3 unless given
set -euo pipefail

action=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
environment=$RUNNER_TEMP/overlay
python=$environment/bin/python

"${PYTHON:-python3}" -m venv "$environment"
"$python" -m pip install --quiet --no-deps "${VERSION:-$action}"

# Everything that it depends on but torch. The action's own version comes with the versions that it was tested with.
"$python" - >"$RUNNER_TEMP/overlay-requirements.txt" <<'END'
import re
from importlib.metadata import requires

for requirement in requires("model-overlay"):
    if "extra ==" not in requirement and re.match(r"[\w.-]+", requirement)[0] != "torch":
        print(requirement)
END
constraint=()
if [[ -z ${VERSION:-} ]]; then
    constraint=(--constraint "$action/constraints.txt")
fi
"$python" -m pip install --quiet --no-warn-conflicts --requirement "$RUNNER_TEMP/overlay-requirements.txt" "${constraint[@]}"

echo "$environment/bin" >>"$GITHUB_PATH"
