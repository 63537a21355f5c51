#!/bin/sh
# Device checks, on a machine with an NVIDIA GPU and nothing else: `sh test/gpu/run.sh [host|kernels|golden|contract|bench]...`.
# `sh test/gpu/run.sh bundle` makes .gpu/*.js first, where the packages are installed; BUN names the runtime there.
set -u
if [ "${1:-}" = bundle ]; then
  for name in host kernels golden contract bench; do
    [ -f "test/gpu/$name.ts" ] && bun build --target=bun --minify "test/gpu/$name.ts" --outfile ".gpu/$name.js"
  done
  exit
fi
bun=${BUN:-bun}
libraries=$(python3 -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)
status=0
for name in "${@:-host kernels contract golden bench}"; do
  for program in $name; do
    echo "== $program"
    "$bun" ".gpu/$program.js" $libraries || status=1
  done
done
exit $status
