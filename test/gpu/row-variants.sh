#!/bin/sh
# Tries the product of one row over 8-bit weights (kernels/cuda/products/matvec_e4m3.cu) with more of its loads in flight, on a
# machine with a Hopper GPU: `sh test/gpu/row-variants.sh` after `sh test/gpu/run.sh bundle`; BUN names the runtime.
# Expected: a row of 4,096 bytes is four waits of 64 bytes a lane, and the products to q, k and v, behind attention and down
# have less than one wave of thread blocks, so 4 or 8 loads may bring the step of the 8B shape from 2.87 ms to about 2.65.
set -u
bun=$(command -v "${BUN:-bun}")
tree=$PWD
libraries=$(python3 -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)
for count in 2 4 8 2; do
  folder=$(mktemp -d)
  mkdir -p "$folder/kernels"
  cp -r kernels/cuda "$folder/kernels/"
  sed -i "s/kByteBatch = 2;/kByteBatch = $count;/" "$folder/kernels/cuda/products/matvec_e4m3.cu"
  echo "== $count loads"
  (cd "$folder" && "$bun" "$tree/.gpu/layers.js" row $libraries)
  rm -rf "$folder"
done
