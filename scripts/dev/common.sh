# Sourced by the shell scripts here: where things are kept, how to speak, how to become root.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${REMORA_DEV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/remora-dev}
export repo cache

# The version of the sources as Python's packages write it (0.2.0.dev0), as Helm's charts do (0.2.0-dev0), and as Debian
# does, for which what comes before a release must sort before it (0.2.0~dev0).
python_version() { sed -n 's/^version = "\(.*\)"$/\1/p' "$repo/pyproject.toml"; }
chart_version() { python_version | sed -E 's/([0-9])\.?((dev|a|b|rc)[0-9]+)$/\1-\2/'; }
deb_version() { chart_version | tr - '~'; }

say() { echo "remora: $*" >&2; }

# Run a command, and say what it does: at once, and every 10 s how long that has lasted. Who speaks ends with the script.
told() {
    local what=$1 began=$SECONDS ends pulse
    shift
    say "$what"
    exec {ends}> >(
        while read -rt "${SAID_EVERY_S:-10}" _ || (($? > 128)); do say "$what: $((SECONDS - began)) s"; done 9>&-
    )
    pulse=$!
    "$@"
    exec {ends}>&-
    wait "$pulse"
}

die() {
    say "$@"
    exit 1
}

# The comment at the top of the calling script is its manual.
usage() {
    sed -n '2,/^[^#]/{/^#/{s/^# \{0,1\}//;p}}' "$0"
    exit 0
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root, and there is no sudo"
    fi
}

# Tell programs that are started from here where Spark's Kafka connector lies; fetches it where it is not there.
spark_jars() {
    REMORA_SPARK_JARS=${REMORA_SPARK_JARS:-$("$repo/scripts/dev/spark-jars")}
    export REMORA_SPARK_JARS
}
