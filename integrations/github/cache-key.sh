#!/usr/bin/env bash
# Names the pip cache: what is installed is decided by these two files and the version that was asked for.
set -euo pipefail

action=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
digest=$({ cat "$action/pyproject.toml" "$action/constraints.txt"; printf '%s' "${VERSION:-}"; } | sha256sum | cut -c 1-16)
echo "digest=$digest" >>"$GITHUB_OUTPUT"
