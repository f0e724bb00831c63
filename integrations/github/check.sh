#!/usr/bin/env bash
# Checks the entries of the registry that a change touches; without a base to compare with, all of them.
#
# BASE              commit to compare with; empty, or zeros as on the first push of a branch: there is none
# FAIL_ON           error, warning or never
# OVERLAY_REGISTRY  the registry file, read by overlay itself
set -euo pipefail

is_here() {
    git rev-parse --quiet --verify --end-of-options "$1^{commit}" >/dev/null
}

base=${BASE:-}
if [[ $base =~ ^0+$ ]]; then
    echo "::notice title=overlay check::the first push of this branch: every entry is checked"
    base=
elif [[ -n $base ]] && ! is_here "$base"; then
    depth=()
    if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
        depth=(--depth=1)
    fi
    git fetch --quiet --no-tags "${depth[@]}" -- origin "$base" || true
    if ! is_here "$base"; then
        echo "::notice title=overlay check::the base $base cannot be fetched: every entry is checked." \
            "With fetch-depth: 0 actions/checkout brings it along"
        base=
    fi
fi

arguments=(check --output github --fail-on "${FAIL_ON:-error}")
if [[ -n $base ]]; then
    arguments+=(--base "$base")
fi
status=0
overlay "${arguments[@]}" || status=$?
if ((status > 1)); then
    echo "::error title=overlay check::ended with status $status: it could not tell whether the contract holds." \
        "The reason stands above in the log"
fi
exit "$status"
