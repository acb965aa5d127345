#!/bin/sh
# Starts the service in a folder, timed, puts load on it, and saves what was measured:
#
#     SERVICE="uvicorn service:app --port 8000" LOAD="python load.py http://127.0.0.1:8000/ 2000" sh measure.sh FOLDER FILE
set -eu
folder=$1 file=$2

# The commands are words, so they stand without quotes.
(cd "$folder" && exec stagelens run --save "$file" -- $SERVICE) &
run=$!
trap 'kill "$run" 2>/dev/null || true' EXIT

$LOAD

# It ends as the service does, by the signal.
kill -TERM "$run"
wait "$run" || true
trap - EXIT
test -s "$file"
