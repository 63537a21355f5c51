/*
 * The products of one row with a matrix, as matvec.cu has them, by thread blocks that stay: as many as run at a time,
 * each of which copies its weights to a ring in shared memory ahead of its computation.
 *
 * The next kernel of the chain may begin as soon as all blocks of this one have, and if it is one of these, it fills
 * its rings while this one still computes and while kernels that read no weights run between: memory does not rest
 * where one kernel ends and another begins. For that the rings of two kernels, and what runs between, have to fit on a
 * multiprocessor.
 *
 * A warp computes two outputs at a time, a pair, and has a ring of its own. A lane copies what itself reads, so nothing
 * is exchanged before the sums, and no barrier is needed. Pair p of all is that of warp p / gridDim % kRingWarps of
 * block p % gridDim: pairs are dealt out evenly. A lane adds up its products in the order of matvec.cu.
 *
 * Grid: any number of blocks of 256 threads, with kRingWarps * kSlots * kSlotVectors * 16 bytes of dynamic shared memory.
 */
#ifndef SPANGATE_MATVEC_RING_CUH
#define SPANGATE_MATVEC_RING_CUH

#include "activation.cuh"
#include "matvec.cuh"
#include "mma.cuh"

constexpr int kRingWarps = 8, kSlots = 4, kSlotLoads = 2;
constexpr int kSlotVectors = kSlotLoads * kOutputs * 32;

/* Which two rows of a matrix belong together. */
struct RowPairs {
  int count, step, other, last;

  __device__ __forceinline__ int row(int pair, int i) const { return min(pair * step + i * other, last); }
};
/* Neighbours; the last row may be alone. */
__device__ __forceinline__ RowPairs neighbours(int out) { return {(out + 1) / 2, 2, 1, out - 1}; }
/* A gate and its up. */
__device__ __forceinline__ RowPairs gates_and_ups(int ffn) { return {ffn, 1, ffn, 2 * ffn - 1}; }

/*
 * A form of weights: weights of 16 bytes, `add` adds their products with as many inputs to a sum, and `scale` is what all
 * of them count.
 */
struct RowB16 {
  static constexpr int kWeights = 8;
  const bf16 *weights;
  int in;

  __device__ __forceinline__ const uint4 *at(int row, int vector) const {
    return reinterpret_cast<const uint4 *>(weights) + (size_t(row) * (in / kWeights) + vector);
  }
  __device__ __forceinline__ float scale(int, int) const { return 1.0f; }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float) {
    float x[8];
    unpack8(input[0], x);
    return dot8(weights, x, sum);
  }
  static __device__ __forceinline__ float add_scaled(float sum, const uint4 &weights, const uint4 *input, float scale) {
    return fmaf(add(0.0f, weights, input, 1.0f), scale, sum);
  }
};

/* Where a kernel's weights are: `count` pairs, each of two rows of `vectors` of 16 bytes. */
template <class Weights>
struct MatrixRows {
  using Form = Weights;
  const Form form;
  const RowPairs pairs;
  const int count, vectors;

  __device__ __forceinline__ MatrixRows(const Form &form, const RowPairs &pairs)
      : form(form), pairs(pairs), count(pairs.count), vectors(form.in / Form::kWeights) {}
  __device__ __forceinline__ int row(int pair, int i) const { return pairs.row(pair, i); }
  __device__ __forceinline__ const uint4 *at(int row, int vector) const { return form.at(row, vector); }
  __device__ __forceinline__ float scale(int row, int vector) const { return form.scale(row, vector); }
  static __device__ __forceinline__ float add(float sum, const uint4 &weights, const uint4 *input, float scale) {
    return Form::add(sum, weights, input, scale);
  }
};

__device__ __forceinline__ int pair_stride() { return gridDim.x * kRingWarps; }
__device__ __forceinline__ int first_pair() { return (threadIdx.x >> 5) * gridDim.x + blockIdx.x; }

/* What a warp and a lane read of rows: every `stride`-th pair from `first` on, and of each every 32nd vector. */
struct RingPlace {
  int first, stride, vector;
};
__device__ __forceinline__ RingPlace warp_pairs() { return {first_pair(), pair_stride(), int(threadIdx.x & 31)}; }

/* A warp's ring, and what is copied to it next. All lanes of the warp call its methods. */
template <class Source>
class Ring {
 public:
  __device__ __forceinline__ explicit Ring(const Source &source, const RingPlace &place = warp_pairs())
      : source(source), place(place) {
    extern __shared__ __align__(16) uint4 memory[];
    slots = memory + (threadIdx.x >> 5) * (kSlots * kSlotVectors) + (threadIdx.x & 31);
    fill();
  }

  /* Begins with the first weights; copies that are in flight must have ended. */
  __device__ __forceinline__ void fill() {
    pair = place.first, from = 0, writeSlot = 0, readSlot = 0;
    find_rows();
#pragma unroll
    for (int i = 0; i < kSlots; i++) copy_next();
  }

  /* Starts copies of the next weights into the slot that was read last. */
  __device__ __forceinline__ void copy_next() {
    if (pair < source.count) {
      const uint32 to = shared_address(slots + writeSlot * kSlotVectors);
#pragma unroll
      for (int b = 0; b < kSlotLoads; b++) {
        const int vector = from + place.vector + b * 32;
        const bool exists = vector < source.vectors;
#pragma unroll
        for (int o = 0; o < kOutputs; o++) {
          copy_async(to + (b * kOutputs + o) * 32 * 16, source.at(rows[o], exists ? vector : 0), exists);
        }
      }
      from += kSlotLoads * 32;
      if (from >= source.vectors) {
        from = 0, pair += place.stride;
        find_rows();
      }
    }
    commit_copies();
    writeSlot = writeSlot + 1 == kSlots ? 0 : writeSlot + 1;
  }

  /* The oldest weights in the ring; past a row's end they are zeros. */
  __device__ __forceinline__ void read(uint4 (&to)[kSlotLoads][kOutputs]) {
    wait_copies<kSlots - 1>();
    const uint4 *from = slots + readSlot * kSlotVectors;
#pragma unroll
    for (int b = 0; b < kSlotLoads; b++) {
#pragma unroll
      for (int o = 0; o < kOutputs; o++) to[b][o] = from[(b * kOutputs + o) * 32];
    }
    readSlot = readSlot + 1 == kSlots ? 0 : readSlot + 1;
  }

 private:
  const Source &source;
  const RingPlace place;
  uint4 *slots; /* this lane's place in the warp's first */
  int rows[kOutputs];
  int pair, from, writeSlot, readSlot; /* the next copies: from which vector of the pair's rows on */

  __device__ __forceinline__ void find_rows() {
    if (pair >= source.count) return;
#pragma unroll
    for (int o = 0; o < kOutputs; o++) rows[o] = source.row(pair, o);
  }
};

/* Both products of a pair, whose weights are next in the ring; every lane gets them. */
template <class Source>
__device__ __forceinline__ void multiply_pair(Ring<Source> &ring, const Source &source, const int (&rows)[kOutputs],
                                              const bf16 *input, float (&sums)[kOutputs]) {
  constexpr int kInputs = Source::Form::kWeights / 8;
  const uint4 *x4 = reinterpret_cast<const uint4 *>(input);
#pragma unroll
  for (int o = 0; o < kOutputs; o++) sums[o] = 0;
  for (int first = threadIdx.x & 31; first - int(threadIdx.x & 31) < source.vectors; first += kSlotLoads * 32) {
    uint4 x[kSlotLoads][kInputs], w[kSlotLoads][kOutputs];
    float scales[kSlotLoads][kOutputs];
#pragma unroll
    for (int b = 0; b < kSlotLoads; b++) {
      const int vector = first + b * 32, existing = min(vector, source.vectors - 1);
#pragma unroll
      for (int i = 0; i < kInputs; i++) {
        x[b][i] = vector < source.vectors ? x4[vector * kInputs + i] : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int o = 0; o < kOutputs; o++) scales[b][o] = source.scale(rows[o], existing);
    }
    ring.read(w);
#pragma unroll
    for (int b = 0; b < kSlotLoads; b++) {
#pragma unroll
      for (int o = 0; o < kOutputs; o++) sums[o] = Source::add(sums[o], w[b][o], x[b], scales[b][o]);
    }
    ring.copy_next();
  }
#pragma unroll
  for (int o = 0; o < kOutputs; o++) sums[o] = warp_sum(sums[o]);
}

/* What an open row lacks (matvec.cu); squares null: nothing. */
struct OpenRow {
  const float *squares;
  int count, width;
  float epsilon;
};


/*
 * All of a warp's pairs. begin(rows) is called before a pair's products, end(pair, rows, first, second) behind them, by
 * every lane, with the pair's rows and its products.
 */
template <class Source, class Begin, class End>
__device__ __forceinline__ void multiply_all(Ring<Source> &ring, const Source &source, const bf16 *input,
                                             const OpenRow &open, const Begin &begin, const End &end) {
  float factor = 0;
  for (int pair = first_pair(); pair < source.count; pair += pair_stride()) {
    const int rows[kOutputs] = {source.row(pair, 0), source.row(pair, 1)};
    begin(rows);
    float sums[kOutputs];
    multiply_pair(ring, source, rows, input, sums);
    /* It is needed here for the first time: until now the wait for it would have kept the ring from being filled. */
    if (pair == first_pair()) factor = norm_factor(open.squares, open.count, open.width, open.epsilon);
    end(pair, rows, sums[0] * factor, sums[1] * factor);
  }
}

/* Lanes 0 and 1 store the two. */
template <class Store>
__device__ __forceinline__ void store_pair(const int (&rows)[kOutputs], float first, float second, const Store &store) {
  const int lane = threadIdx.x & 31;
  if (lane == 0) store(rows[0], first);
  if (lane == 1 && rows[1] != rows[0]) store(rows[1], second);
}

__device__ __forceinline__ void put(float *to, float x) { *to = x; }
__device__ __forceinline__ void put(bf16 *to, float x) { *to = pack_bf16(x, 0.0f) & 0xffffu; }

template <class Form, class Output>
__device__ __forceinline__ void ring_product(const Form &form, int out, const bf16 *input, const OpenRow &open,
                                             Output *output) {
  const MatrixRows<Form> source(form, neighbours(out));
  Ring<MatrixRows<Form>> ring(source);
  let_next_begin();
  wait_for_previous();
  multiply_all(ring, source, input, open, [](const int (&)[kOutputs]) {},
               [=](int, const int (&rows)[kOutputs], float first, float second) {
                 store_pair(rows, first, second, [=](int o, float sum) { put(output + o, sum); });
               });
}

template <class Form>
__device__ __forceinline__ void ring_gated(const Form &form, int ffn, int activation, const bf16 *input,
                                           const OpenRow &open, bf16 *output) {
  const MatrixRows<Form> source(form, gates_and_ups(ffn));
  Ring<MatrixRows<Form>> ring(source);
  let_next_begin();
  wait_for_previous();
  multiply_all(ring, source, input, open, [](const int (&)[kOutputs]) {},
               [=](int pair, const int (&)[kOutputs], float gate, float up) {
                 if ((threadIdx.x & 31) == 0) put(output + pair, gated(gate, up, activation));
               });
}

/* Where products are added to, with what counts in the next row; the bias, which is added to them first, may be null. */
struct AddedRow {
  const bf16 *bias;
  float scale, *residual;
  const bf16 *norm;
  bf16 *next;
  float *squares;
};

/* Adds products of neighbours, whose rows are outputs, to the residual stream; the block's sum of squares is of all its outputs. */
template <class Source>
__device__ __forceinline__ void add_all(Ring<Source> &ring, const Source &source, const bf16 *input,
                                        const AddedRow &to) {
  __shared__ float scratch[32];
  const int lane = threadIdx.x & 31;
  float before = 0, weight = 0, bias = 0, sum = 0;
  multiply_all(
      ring, source, input, OpenRow{nullptr, 0, 0, 0.0f},
      [&](const int (&rows)[kOutputs]) {
        const int own = lane == 0 ? rows[0] : rows[1];
        if (lane >= kOutputs) return;
        before = to.residual[own], weight = to_float(to.norm[own]);
        if (to.bias) bias = to_float(to.bias[own]);
      },
      [&](int, const int (&rows)[kOutputs], float first, float second) {
        store_pair(rows, first, second, [&](int o, float product) {
          const float value = before + (product + bias) * to.scale;
          to.residual[o] = value;
          put(to.next + o, value * weight);
          sum = fmaf(value, value, sum);
        });
      });
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) to.squares[blockIdx.x] = sum;
}

template <class Form>
__device__ __forceinline__ void ring_add(const Form &form, int out, const bf16 *input, const AddedRow &to) {
  const MatrixRows<Form> source(form, neighbours(out));
  Ring<MatrixRows<Form>> ring(source);
  let_next_begin();
  wait_for_previous();
  add_all(ring, source, input, to);
}

#endif
