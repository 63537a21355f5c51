#!/bin/sh
# The whole server on a machine with NVIDIA GPUs and nothing else: `sh test/gpu/server.sh [upload|pool|pool-bench|tiers|timing|sparse]...`,
# the first three by default, after `sh test/gpu/run.sh bundle` where the packages are installed. DEVICES: cuda:0,cuda:1
# unless given (tiers, timing, sparse: cuda:0); MODEL: a model's folder, made of random weights where there is none; BUN: the runtime there.
set -u
bun=${BUN:-bun}
devices=${DEVICES:-cuda:0,cuda:1}
model=${MODEL:-/dev/shm/Qwen3-8B}
libraries=$(python3 -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# The tree's programs run as they are, with the bundled packages in node_modules.
[ -e node_modules ] || ln -s .gpu/node_modules node_modules
make_model() {
  [ -e "$model/config.json" ] || "$bun" test/gpu/random-model.ts Qwen3-8B "$model"
}
run() {
  case $1 in
    upload) make_model && "$bun" test/gpu/upload.ts "$model" $libraries ;;
    pool) "$bun" test/gpu/pool.ts "$devices" ;;
    pool-bench) make_model && "$bun" test/bench/main.ts pool --devices "$devices" --model "$model" --requests 800 ;;
    tiers)
      tiers=0
      for folder in worker/model/demo "$model"; do
        [ "$folder" != "$model" ] || make_model
        DEVICES=${DEVICES:-cuda:0} "$bun" test/gpu/server-tiers.ts "$folder" || tiers=1
      done
      return $tiers
      ;;
    timing) make_model && SPANGATE_DEVICES=${DEVICES:-cuda:0} "$bun" test/bench/main.ts timing --tier host --model "$model" ;;
    sparse) make_model && DEVICES=${DEVICES:-cuda:0} "$bun" test/gpu/server-sparse.ts "$model" ;;
    *) echo "no program $1" && false ;;
  esac
}
status=0
for name in "${@:-upload pool pool-bench}"; do
  for program in $name; do
    echo "== $program"
    run "$program" || status=1
  done
done
exit $status
