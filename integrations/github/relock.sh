#!/usr/bin/env bash
# Brings registry.lock up to date on the branch of a pull request that a bot opened, and pushes it there.
#
# Nothing but the lock is committed, and nothing at all where it is current: so the run that follows a push of this
# script ends without another one.
#
# HEAD_REF, HEAD_REPOSITORY  branch of the pull request, and the repository that it is in
# DEFAULT_BRANCH             branch that is never pushed to
# OVERLAY_REGISTRY           the registry file, read by overlay itself
set -euo pipefail

# Renovate and Dependabot go on updating a branch whose other commits have this author, or this mark.
email='overlay-relock[bot]@users.noreply.github.com'
export GIT_AUTHOR_NAME='overlay-relock[bot]' GIT_AUTHOR_EMAIL=$email
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$email
mark='[dependabot skip]'

refuse() {
    echo "::error title=overlay relock::$1"
    exit 1
}

branch=${HEAD_REF:-}
head=$(git rev-parse HEAD)
[[ -n $branch ]] || refuse "runs on pull requests only"
[[ $branch != "$DEFAULT_BRANCH" ]] || refuse "never pushes to the default branch, $branch"
[[ $HEAD_REPOSITORY == "$GITHUB_REPOSITORY" ]] ||
    refuse "the branch is in $HEAD_REPOSITORY: what runs here may not push there"
tip=$(git ls-remote origin "refs/heads/$branch" | awk -v ref="refs/heads/$branch" '$2 == ref { print $1 }')
[[ $tip == "$head" ]] ||
    refuse "$branch is at ${tip:-no commit}, checked out is $head: either the branch moved on, and its next run does this, \
or actions/checkout lacks ref: \${{ github.event.pull_request.head.sha }}"

# Entries whose lock is of other pins, which the check tells without a connection. The others are not asked for again:
# the files of a commit do not change, and one of them may be gated.
overlay check --offline --json >"$RUNNER_TEMP/overlay-check.json" || true
found=$(python3 - "$RUNNER_TEMP/overlay-check.json" <<'END'
import json
import os
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
document = json.loads(text)
if "models" not in document:
    sys.exit(text)  # as overlay wrote it: no name in it is a command for the workflow
print(os.path.relpath(Path(document["registry"]).with_suffix(".lock")))
for model in document["models"]:
    if {"lock-missing", "lock-stale"} & {finding["code"] for finding in model["findings"]}:
        print(model["model"])
END
) || refuse "${OVERLAY_REGISTRY:-the registry} or its lock cannot be used: the check of this pull request says why"
mapfile -t models <<<"$found"
lock=${models[0]} # as overlay itself names it
models=("${models[@]:1}")
((${#models[@]} == 0)) || overlay lock -- "${models[@]}"

if [[ -z $(git status --porcelain --ignored -- "$lock") ]]; then
    echo "$lock is current"
    exit 0
fi
[[ $(git log -1 --format=%ae) != "$email" ]] ||
    refuse "the last commit wrote $lock, and that did not make it current: one more would not either"

git add -- "$lock"
git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit --quiet \
    -m "Lock what the registry pins" -m "$mark" -- "$lock"
# The lease: should the branch have moved meanwhile, even to an ancestor, then this fails.
git -c core.hooksPath=/dev/null push --quiet --force-with-lease="refs/heads/$branch:$head" origin "HEAD:refs/heads/$branch"
echo "$lock is pushed to $branch"
