#!/usr/bin/env bash
# Keeps one issue open while a pinned repo that moved needs attention, and closes it when none does.
#
# GITHUB_TOKEN      may write issues
# OVERLAY_REGISTRY  the registry file, read by overlay itself
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
report=$RUNNER_TEMP/overlay-outdated.txt
status=0
overlay outdated --exit-code >"$report" || status=$?
cat "$report"
case $status in
    0) python3 "$scripts/drift_issue.py" close ;;
    1) python3 "$scripts/drift_issue.py" open "$report" ;;
    *)
        echo "::error title=overlay outdated::ended with status $status: it could not tell. The issue is left as it is"
        exit "$status"
        ;;
esac
