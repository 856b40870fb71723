#!/usr/bin/env bash
# Builds the documentation site into build/docs, in .venv, after installing there what that needs; a warning is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

readonly ENVIRONMENT=.venv

"$ENVIRONMENT/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "the site is built with Python 3.11 or later, and $ENVIRONMENT has an older one"
take_turn
once_for "$ENVIRONMENT" docs "$(hash_of requirements/docs.txt)" pip_install "$ENVIRONMENT" -r requirements/docs.txt
exec 9>&- # the next in turn need not wait for the pages
"$ENVIRONMENT/bin/python" tools/site/build.py
say "build/docs/index.html is the first page"
