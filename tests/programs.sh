#!/bin/sh
# Installs the Debian packages of the programs that tests run, those that are missing, in one call.
[ $# -gt 0 ] || { echo "usage: programs.sh PACKAGE ..." >&2; exit 2; }

has() {
    case $1 in
    chromium-headless-shell) command -v chromium-headless-shell || command -v chromium || command -v google-chrome ;;
    postgresql) command -v initdb || ls /usr/lib/postgresql/*/bin/initdb ;;
    nodejs) command -v node ;;
    default-jre-headless) command -v java ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

missing=
for package in "$@"; do
    has "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing$missing (apt) for the tests"
sudo=$([ "$(id -u)" = 0 ] || command -v sudo)
{
    $sudo apt-get update -qq &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
} && exit
[ -z "$CI" ] || exit 1
echo "could not install$missing: their tests will be skipped (apt-get install$missing)"
