#!/bin/sh
# Runs a command whose temporary files lie in memory, where there is plenty: at each commit a store waits for the disk.
[ $# -gt 0 ] || { echo "usage: in_memory.sh COMMAND ..." >&2; exit 2; }
# The smaller of what is free of all memory and of the folder that lies in it. [KiB]
free=$({ awk '/^MemAvailable/ { print $2 }' /proc/meminfo; df -Pk /dev/shm | awk 'NR == 2 { print $4 }'; } 2>/dev/null | sort -n | head -n 1)
[ "${free:-0}" -gt 8000000 ] && place=/dev/shm || place=${TMPDIR:-/tmp}
folder=$(mktemp -d "$place/tests-XXXXXX") || exit
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
TMPDIR=$folder "$@"
