#!/usr/bin/env bash
# Builds and checks everything that a release consists of, in dist/: wheels for both architectures and every Python, and the
# source distribution. Tags nothing and uploads nothing; it ends with what is left for a person to do.
#
# usage: tools/release.sh          (about an hour on two cores)
#
# The version is that of pyproject.toml, and nothing else states it. Needs python3.10, 3.11 and 3.12 (or PYTHONS with their
# paths), what tools/aarch64_tests.sh needs, and root for benchmarks/first_use.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh
source tools/cross.sh

tools/setup.sh
.venv/bin/python tools/release_checks.py source
version=$(sed -nE 's/^version = "([^"]+)".*/\1/p' pyproject.toml)
say "luwu $version"
rm -rf dist
tools/wheels.sh x86_64
tools/wheels.sh aarch64
"$TOOLS/bin/python" -m build --sdist --outdir dist
.venv/bin/python tools/release_checks.py files dist
"$TOOLS/bin/twine" check --strict dist/*
for wheel in dist/*.whl; do
    "$TOOLS/bin/auditwheel" show "$wheel"
done
say "a wheel from the source distribution"
.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/release "dist/luwu-$version.tar.gz"
tools/aarch64_tests.sh
.venv/bin/python benchmarks/first_use.py --quick
cat >&2 <<END
release: dist/ has all of luwu $version. What is left is yours:
  git tag --annotate v$version --message "luwu $version"
  git push origin v$version
  attach the files of dist/ to the tag's release page
Do not upload to PyPI as it is: the name luwu belongs to another project there.
END
