#!/bin/sh
# Spangate of this folder, with the Bun of this folder. Bun reads no settings of the folder that it is started in.
set -eu
modules=$(dirname "$(dirname "$(readlink -f "$0")")")/node_modules
export BUN_OPTIONS="${BUN_OPTIONS:+$BUN_OPTIONS }--config=/dev/null --no-env-file --no-install" DO_NOT_TRACK=1
for bun in "$modules"/@oven/bun-*/bin/bun; do
  exec "$bun" "$modules/spangate/app/cli.js" "$@"
done
