#!/bin/sh
# Device checks, on a machine with an NVIDIA GPU and nothing else: `sh test/gpu/run.sh [host|kernels|attention|wgmma|golden|contract|bench|packing|rotation|pipeline|relocate|tiers|mx8|layers|experts|sparse]...`.
# `sh test/gpu/run.sh bundle` makes .gpu/*.js first, where the packages are installed; BUN names the runtime there.
# The whole server runs there by test/gpu/server.sh.
# `sh test/gpu/run.sh sanitize` runs the contract and the kernels' checks under NVIDIA's compute-sanitizer.
set -u
if [ "${1:-}" = bundle ]; then
  for name in host kernels attention wgmma golden contract bench packing rotation pipeline relocate tiers mx8 layers experts sparse; do
    [ -f "test/gpu/$name.ts" ] && bun build --target=bun --minify "test/gpu/$name.ts" --outfile ".gpu/$name.js"
  done
  bun test/gpu/packages.ts .gpu/node_modules
  exit
fi
bun=${BUN:-bun}
libraries=$(python3 -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)

# One line for a tool on a program, its output in $OUT or in a folder of its own.
sanitize() {
  log="$logs/$1-$2.log"
  tool=$1
  program=$2
  shift 2
  compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" "$bun" ".gpu/$program.js" $libraries >"$log" 2>&1
  code=$?
  echo "$tool, $program: $(grep -E ' passed, [0-9]+ failed$' "$log" | tail -1); $(grep -E 'SUMMARY' "$log" | tail -1)"
  [ $code -eq 0 ] && return
  grep -m 12 '^=========' "$log"
  dirty="$dirty $tool-$program"
}
if [ "${1:-}" = sanitize ]; then
  logs=${OUT:-$(mktemp -d)}
  dirty=
  export SPANGATE_KERNEL_CHECKS=small
  # The host asks the driver for a parameter behind a kernel's last one, which is an error by design: calls are not reported.
  sanitize memcheck contract --report-api-errors no --leak-check full
  sanitize memcheck kernels --report-api-errors no --leak-check full
  sanitize memcheck attention --report-api-errors no
  sanitize memcheck wgmma --report-api-errors no
  sanitize racecheck kernels
  sanitize synccheck kernels
  echo "sanitize: ${dirty:+not clean:}${dirty:-clean}"
  [ -z "$dirty" ]
  exit
fi

status=0
for name in "${@:-host kernels contract golden bench}"; do
  for program in $name; do
    echo "== $program"
    "$bun" ".gpu/$program.js" $libraries || status=1
  done
done
exit $status
