#!/usr/bin/env bash
# Prepares what the tests of tests/clusters and the benchmark `engines` need: Slurm, where this user may install it, and
# Ray and the schemas of Kubernetes in build/clusters, beside what .venv has. Prints the path of that environment's Python.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

readonly ENVIRONMENT=build/clusters
readonly PACKAGES='import sysconfig; print(sysconfig.get_path("purelib"))'

missing_cluster_packages() {
    local program
    for program in slurmctld slurmd munged; do
        PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || echo "${program/munged/munge}"
    done
    command -v sbatch >/dev/null || echo slurm-client
}

# .venv's packages come after the environment's own.
add_development_packages() {
    local file
    file=$("$ENVIRONMENT/bin/python" -c "$PACKAGES")/luwu-development.pth
    echo "import site; site.addsitedir('$(.venv/bin/python -c "$PACKAGES")')" >"$file"
}

take_turn
install_system_packages missing_cluster_packages
make_environment "$ENVIRONMENT"
once_for "$ENVIRONMENT" requirements "$(hash_of requirements/clusters.txt)" \
    pip_install "$ENVIRONMENT" -r requirements/clusters.txt
add_development_packages
echo "$PWD/$ENVIRONMENT/bin/python"
