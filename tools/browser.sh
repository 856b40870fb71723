#!/usr/bin/env bash
# Installs what benchmarks/watch_browser.py looks at the page of `luwu watch` with: Debian's Chromium and its driver,
# selenium, and axe-core, which checks accessibility, in build/browser. Needs root, a Debian system and npm.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly AXE=4.14.1

apt-get install -y -q chromium chromium-driver
.venv/bin/pip install --quiet -r requirements/browser.txt
mkdir -p build/browser
npm pack --silent --pack-destination build/browser "axe-core@$AXE"
tar -xzf "build/browser/axe-core-$AXE.tgz" -C build/browser --strip-components=1 package/axe.min.js
echo "browser: ready"
