#!/usr/bin/env bash
# Runs the script of the command that was asked for.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${COMMAND:-} in
    check | relock) unset GITHUB_TOKEN ;; # of use to drift alone
    drift) ;;
    *)
        echo "::error title=overlay::the input command is check, relock or drift"
        exit 2
        ;;
esac
exec bash "$scripts/$COMMAND.sh"
