/*
 * Spangate's CPU kernels: the C ABI. worker/native/library.ts declares the same symbols for bun:ffi.
 *
 * Every function that returns int32_t returns an spg_status (0 is success, spg_strerror explains the rest).
 * Arguments are checked before any work; a refused call leaves pool and outputs as they were. The caller
 * guarantees only that each pointer holds as many elements as its comment says.
 *
 * One context owns the threads and the choice of instruction set; it may serve several pools. Calls on one
 * context must come from one thread at a time.
 *
 * KV POOL. One allocation per pool, 64-byte aligned, zero pages that cost nothing until they are written:
 *
 *   [layerCount][blockCount][kvHeads] of { K: [headDim][blockTokens], V: [blockTokens][headDim] }
 *
 * K is stored transposed, so that 16 tokens of one dimension are one AVX-512 register of float32. Elements
 * are float32, or float16 converted on load (all arithmetic is float32; beyond 65504 they are stored as that). Slot =
 * blockId * blockTokens + offset. K of the token at chain position i is stored rotated by RoPE at i, in layers with
 * RoPE; V as it is. Everything native-endian. blockTokens is a power of two up to 256; below 16 blocks are gathered
 * into scratch first (correct, slower). By AMX numbers are multiplied in two bfloat16 parts, 16 bits of each, and summed up
 * in float32.
 *
 * MX8. MXINT8 of the OCP Microscaling Formats specification 1.0: 32 values of a token and head, dimensions 32 g to
 * 32 g + 31 of its rotated K or of its V, are int8 numbers times a power of two that they share. A head's block is then
 *
 *   { K: int8 [headDim][blockTokens], V: int8 [blockTokens][headDim],
 *     scales of K: uint8 [headDim / 32][blockTokens], scales of V: uint8 [blockTokens][headDim / 32] }
 *
 * A scale of s stands for 2^(s - 133): E8M0's 2^(s - 127), and the 2^-6 that the specification gives int8. s is the
 * exponent that the largest of the 32 has as a float32, 7 at least; 255 if one of them is infinite or NaN, and all 32
 * are read as NaN then. Values are rounded to the nearest, ties to even, and none beyond 127 times the power of two: so
 * none is off by more than 1/128 of the largest of the 32, or by 2^-127 where that is below 2^-120. Values that are
 * read are exact in float32. Copying tokens and measuring deviations are refused: K that is rotated again would be
 * rounded again.
 *
 * STEP. spg_step_begin copies the plan of one step (worker/backend/backend.ts: Batch), checks it once for all
 * layers and prepares cos/sin rows and the work list. Then, per layer, spg_attention writes K and V of every
 * row and attends. Rows of different pieces that see the same tokens of the same blocks are packed: a block is
 * loaded once for all of them, each row with its own rotation.
 *
 * WINDOWS. In a layer that slides (SPG_SLIDES) a row at position p sees the token at position k where 0 <= p - k < window,
 * on top of what its segments let it see. A token's position is that in the row's own positions: its chain position plus
 * the segment's offset.
 *
 * SINKS AND CAPS. A head with a sink s divides by e^s more than its scores' exponentials add up to: part of its attention
 * goes to no token. With a score_cap c, a score x is c tanh(x / c).
 *
 * DETERMINISM. A row's output depends on its own q, its segment list, the stored K and V, and whether it is of a prompt or
 * generated: bit for bit the same in any batch, with any number of threads, and however its run was cut into pieces. Each score is
 * one fused-multiply-add chain over ascending dimensions, each output one chain over ascending tokens inside a
 * section of 256 tokens counted from the segment's first block, and sections are merged in segment order. AMX sums up in
 * an order of its own inside 32 dimensions or tokens, the same for one row and for many. Only the instruction set, the KV
 * type and whether AMX attends (see spg_isa) change the bits.
 */
#ifndef SPANGATE_KERNELS_ABI_H
#define SPANGATE_KERNELS_ABI_H

#include <stdint.h>

#define SPG_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum spg_status {
  SPG_OK = 0,
  SPG_E_NULL = 1,
  SPG_E_ISA = 2,
  SPG_E_THREADS = 3,
  SPG_E_MEMORY = 4,
  SPG_E_SHAPE = 5,
  SPG_E_LAYER = 6,
  SPG_E_ROWS = 7,
  SPG_E_PIECES = 8,
  SPG_E_SEGMENT = 9,
  SPG_E_BLOCK_ID = 10,
  SPG_E_SLOT = 11,
  SPG_E_POSITION = 12,
  SPG_E_NO_STEP = 13,
  SPG_E_TOKEN_ID = 14,
  SPG_E_TYPE = 15,
  SPG_E_MX8_HEAD = 16,
  SPG_E_MX8_FIXED = 17,
  SPG_E_MATRIX = 18,
  SPG_E_PRODUCT = 19,
  SPG_E_WINDOW = 20,
  SPG_E_SPARSE = 21,
  SPG_E_CHOICE = 22
};

/*
 * AMX is for products, for attention of prompts' rows, and for that of generated ones in pools where 7 query heads or more
 * share a KV head; everything else runs as with AVX-512. AVX2 and AVX-512 multiply int8 by VNNI where there is any;
 * the last two do without it, as older processors have to.
 */
enum spg_isa {
  SPG_ISA_AUTO = 0,
  SPG_ISA_REFERENCE = 1,
  SPG_ISA_AVX2 = 2,
  SPG_ISA_AVX512 = 3,
  SPG_ISA_AMX = 4,
  SPG_ISA_AVX2_PLAIN = 5,
  SPG_ISA_AVX512_PLAIN = 6
};

enum spg_type { SPG_FLOAT32 = 0, SPG_FLOAT16 = 1, SPG_BFLOAT16 = 2, SPG_MX8 = 3 };

/*
 * The forms of a matrix's weights. B16: bfloat16 numbers, one, two or three of which add up to a weight, so that
 * bfloat16, float16 and float32 are held as they are. INT8: numbers of 8 bits; an output's weights share a scale in
 * groups of at most 256 inputs. The rows of such a product are rounded to 8 bits in the same groups, each row alone.
 * MX4: MXFP4 of the OCP Microscaling Formats specification 1.0, 4 bits a weight, 32 inputs of an output times a power of
 * two; products give the bits of the same weights in B16. E4M3: 8-bit floats (4 bits of exponent, 3 of mantissa, no
 * infinity), 32 inputs of an output times a float32; products give the bits of the same weights in B16 of as many parts.
 */
enum spg_form { SPG_B16 = 0, SPG_INT8 = 1, SPG_MX4 = 2, SPG_E4M3 = 3 };

/*
 * What becomes of a product. STORE: it is written; ADD: it is added to what is there; GATE: an output is
 * silu(gate) * up, where outputs 0 to 15 of each 32 are gates and the others are their ups; GATE_GELU: the same with
 * GELU as tanh approximates it; GATE_CLAMPED: gate * sigmoid(1.702 gate) * (up + 1), after the gate was cut at 7 and the
 * up at -7 and 7. CAP: tanh of it, divided by the factor that it was multiplied by.
 */
enum spg_finish { SPG_STORE = 0, SPG_ADD = 1, SPG_GATE = 2, SPG_GATE_GELU = 3, SPG_GATE_CLAMPED = 4, SPG_CAP = 5 };

/* What a layer is, as a sum: q and k are rotated; by the second table of frequencies; its window slides. */
enum spg_layer { SPG_ROTATES = 1, SPG_SECOND_ROPE = 2, SPG_SLIDES = 4 };

typedef struct spg_context spg_context;
typedef struct spg_matrix spg_matrix;
typedef struct spg_pool spg_pool;
typedef struct spg_experts spg_experts;
typedef struct spg_sequence spg_sequence;

/* The buffers that a sequence's operations read and write: rows of float32. */
enum spg_buffer {
  SPG_RESIDUAL = 0,
  SPG_QKV = 1,
  SPG_ATTENTION = 2,
  SPG_BRANCH = 3,
  SPG_GATED = 4,
  SPG_LOGITS = 5
};

/* 18 fields of 4 bytes, which worker/native/kv-pool.ts fills by index. */
typedef struct spg_pool_config {
  int32_t layer_count;
  int32_t block_count;
  int32_t block_tokens;
  int32_t query_heads;     /* a multiple of kv_heads */
  int32_t kv_heads;
  int32_t head_dim;        /* a multiple of 8, at most 256 */
  int32_t kv_type;         /* spg_type: float32, float16 or mx8; mx8 takes a head_dim that is a multiple of 32 */
  int32_t rotary_dim;      /* even, at most head_dim; 0: no RoPE */
  int32_t rope_interleaved; /* 0: pairs (i, i + rotary_dim/2) as in Llama and Qwen; 1: pairs (2i, 2i+1) as in GPT-J */
  int32_t max_positions;   /* every chain position is below it */
  int32_t packing;         /* 1: rows of different pieces share loads of blocks all see; 0: never, for comparison */
  int32_t window;          /* tokens that a row of a layer that slides sees, itself included; 0: no layer slides */
  int32_t rope_tables;     /* 1 or 2 */
  float softmax_scale;     /* usually 1 / sqrt(head_dim) */
  float rope_factor;       /* multiplies cos and sin (YaRN's attention factor); usually 1 */
  float norm_eps;          /* epsilon of the RMSNorm on q and k heads */
  float second_rope_factor; /* of the second table */
  float score_cap;         /* 0: none */
} spg_pool_config;

SPG_API const char *spg_strerror(int32_t status);

/* Starts threads - 1 worker threads (the calling thread takes part). With isa AUTO it picks the best this CPU has. */
SPG_API int32_t spg_open(int32_t isa, int32_t threads, spg_context **out);
/* The context's pools must be closed before. */
SPG_API void spg_close(spg_context *context);
/* Returns the spg_isa in use: AMX, AVX512, AVX2 or REFERENCE. */
SPG_API int32_t spg_isa_of(const spg_context *context);

/*
 * held 1: until it is 0 again the threads wait awake between calls, for a millisecond at most. For the calls of one step,
 * which follow each other at once.
 */
SPG_API int32_t spg_hold_threads(spg_context *context, int32_t held);

/*
 * inverse_frequencies: [rope_tables][rotary_dim / 2] float64; angle of pair i at position n is n times its frequency.
 * layers: [layer_count] sums of spg_layer. sinks: [layer_count][query_heads], or NULL.
 */
SPG_API int32_t spg_pool_open(spg_context *context, const spg_pool_config *config, const double *inverse_frequencies,
                              const uint8_t *layers, const float *sinks, spg_pool **out);
SPG_API void spg_pool_close(spg_pool *pool);
SPG_API void *spg_pool_data(spg_pool *pool);
SPG_API int64_t spg_pool_bytes(const spg_pool *pool);
/* Bytes of the pool that are in memory now. */
SPG_API int64_t spg_pool_resident_bytes(const spg_pool *pool);

/*
 * The plan of one step; see Batch for the meaning. positions, slots: [row_count]; piece_rows, piece_segments:
 * [piece_count + 1]; the segment arrays: [segment_count]; block_ids: [block_id_count]. piece_generated, [piece_count]: 0
 * of a prompt's rows, anything else of generated ones; null where all are a prompt's. segment_positions may be null where
 * no layer slides. The last segment of a piece must lead to exactly the slots of its rows, and no slot may be written
 * twice.
 */
SPG_API int32_t spg_step_begin(spg_pool *pool, const int32_t *positions, const int32_t *slots, int32_t row_count,
                               const int32_t *piece_rows, const int32_t *piece_segments,
                               const int32_t *piece_generated, int32_t piece_count,
                               const int32_t *segment_block_starts, const int32_t *segment_first_tokens,
                               const int32_t *segment_token_counts, const int32_t *segment_offsets,
                               const int32_t *segment_positions, int32_t segment_count, const int32_t *block_ids, int32_t block_id_count);

/*
 * Does both halves below in one call. qkv: [row_count][qkv_stride] float32, a row holding q [query_heads][head_dim],
 * k [kv_heads][head_dim], v [kv_heads][head_dim]. q_norm, k_norm: [head_dim] RMSNorm weights or NULL.
 * out: [row_count][query_heads][head_dim] float32, must not overlap qkv.
 */
SPG_API int32_t spg_attention(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *q_norm,
                              const float *k_norm, float *out);
/* Normalises, rotates and stores k of every row, and stores its v. */
SPG_API int32_t spg_write_kv(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *k_norm);
/* Normalises q, rotates it once for each segment offset and attends to the stored K and V. */
SPG_API int32_t spg_attend(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride, const float *q_norm,
                           float *out);

/*
 * Copies K and V of single tokens in every layer and head: K is rotated by the token's delta positions, V is copied
 * unchanged. All arrays: [token_count]. No slot may be a target twice, or the source of one token and the target of
 * another; where source and target are the same, K is rotated in place.
 */
SPG_API int32_t spg_copy_tokens(spg_pool *pool, const int32_t *source_slots, const int32_t *target_slots,
                                const int32_t *deltas, int32_t token_count);
/*
 * Measures how far K and V of the step's rows in this layer are from what their slots hold: out [row_count] = the
 * squared L2 norm of the difference, K (normalised and rotated) and V of all heads together. Stores nothing in the
 * pool.
 */
SPG_API int32_t spg_deviations(spg_pool *pool, int32_t layer, const float *qkv, int32_t qkv_stride,
                               const float *k_norm, float *out);

/* 1 when this processor opens sealed blocks of this pool (AES and carry-less products, in whole blocks of 16 bytes). */
SPG_API int32_t spg_pool_opens_blocks(const spg_pool *pool);
/*
 * Opens segments of a KV file (worker/tiers/object-file.ts) into blocks of the pool. Segment first_segment + i is at
 * sealed + i * span: a block's bytes, layer after layer, encrypted with AES-256-GCM, a tag of 16 bytes, zeros up to
 * `span`. key: [32]; header: [header_bytes] additional data; block_ids: [block_count], all different, of blocks that no
 * step reads. opened: [block_count] 1 where the segment was what was sealed; otherwise 0, and the block is unchanged.
 */
SPG_API int32_t spg_pool_open_blocks(spg_pool *pool, const uint8_t *key, const uint8_t *header, int32_t header_bytes,
                                     const uint8_t *sealed, int64_t span, int32_t first_segment,
                                     const int32_t *block_ids, int32_t block_count, uint8_t *opened);
/*
 * The same of segments that lie in a file, from byte `at` on, one every `span` bytes. Each is read by the thread that opens
 * it, as far as the system has the file in memory: no call waits for a disk. opened: [block_count] 2 where that is not so,
 * or the file ends before; the block is unchanged.
 */
SPG_API int32_t spg_pool_open_file_blocks(spg_pool *pool, const uint8_t *key, const uint8_t *header, int32_t header_bytes,
                                          int32_t file, int64_t at, int64_t span, int32_t first_segment,
                                          const int32_t *block_ids, int32_t block_count, uint8_t *opened);
/* 1 when the system has the first, the middle and the last of these bytes of a file in memory, and so probably all. */
SPG_API int32_t spg_file_at_hand(int32_t file, int64_t at, int64_t bytes);

/* out [token_count][width] float32 = rows of table [row_count][width] of spg_type `type`. */
SPG_API int32_t spg_embed_rows(spg_context *context, const void *table, int32_t type, int32_t row_count, int32_t width,
                               const int32_t *token_ids, int32_t token_count, float *out);

/*
 * Makes room for weights [outputs][inputs] in one of the forms, packed for the products of the context, which must be
 * closed after it. parts: of a weight in B16 (1 holds bfloat16 exactly, 2 float16, 3 float32), and 1 or 2 of what E4M3
 * becomes (1 holds it exactly where scales are powers of two); 1 in the others. MX4 takes inputs that are a multiple of
 * 32. Weights are zero until they are filled in.
 */
SPG_API int32_t spg_matrix_open(spg_context *context, int32_t form, int32_t parts, int32_t outputs, int32_t inputs,
                                spg_matrix **out);
SPG_API void spg_matrix_close(spg_matrix *matrix);
SPG_API int64_t spg_matrix_bytes(const spg_matrix *matrix);
/*
 * Packs rows of weights [row_count][inputs] of spg_type `type`. They become the outputs from first_output on; with
 * every_other_panel 16 of them, then 16 later ones further, so that gates and ups of GATE lie side by side.
 */
SPG_API int32_t spg_matrix_fill(spg_matrix *matrix, const void *weights, int32_t type, int32_t row_count,
                                int32_t first_output, int32_t every_other_panel);
/*
 * The same for MX4, which takes its weights so alone. blocks: rows of [inputs / 32][16] bytes, of which every row_step-th
 * is taken, a byte with the lower input in its lower 4 bits; scales: rows of [inputs / 32] bytes s, at most 227, for
 * 2^(s - 127). Blocks with scales below 2^-125 become zeros.
 */
SPG_API int32_t spg_matrix_fill_mx4(spg_matrix *matrix, const uint8_t *blocks, const uint8_t *scales, int32_t row_step,
                                    int32_t row_count, int32_t first_output, int32_t every_other_panel);
/*
 * The same for E4M3, which takes its weights so alone. numbers: [row_count][inputs]; scales: [row_count][scales_per_row],
 * one for each `scale_inputs` numbers of a row, a multiple of 32; at most 2^100. A number that is NaN makes 32 weights
 * NaN.
 */
SPG_API int32_t spg_matrix_fill_e4m3(spg_matrix *matrix, const uint8_t *numbers, const float *scales,
                                     int32_t scale_inputs, int32_t row_count, int32_t first_output,
                                     int32_t every_other_panel);
/*
 * out = finish(factor * x W^T + bias). x: [row_count] rows of float32, x_stride apart; norm: [inputs] weights of an
 * RMSNorm that x passes first, or NULL; bias: [outputs] or NULL. out: [row_count] rows of `outputs` (gates: half as
 * many, without factor) float32, out_stride apart; must not overlap x.
 * parts: of B16, on AMX: how many bfloat16 numbers make up a number of x: 3 hold it exactly, 2 to 16 bits, 1 to 8.
 * Other instruction sets take x as it is. A row's bits depend on that row alone.
 * x_rows: [row_count] which row of x each is, or NULL: the first ones. out_rows: [row_count] rows of out, rising, or NULL,
 * and row_factors: [row_count], what a row is multiplied by last, or NULL; both with ADD alone.
 */
SPG_API int32_t spg_multiply(const spg_matrix *matrix, const float *x, int32_t row_count, int32_t x_stride,
                             const int32_t *x_rows, const float *norm, float norm_eps, int32_t parts, int32_t finish,
                             float factor, const float *bias, const float *row_factors, float *out, int32_t out_stride,
                             const int32_t *out_rows);

/*
 * Experts of a layer, each an MLP: gate_ups and downs [count], matrices of one shape each, which must outlive them.
 * spg_experts_bias gives one expert biases, of all outputs of both of its matrices, which are copied.
 */
SPG_API int32_t spg_experts_open(spg_context *context, const spg_matrix *const *gate_ups, const spg_matrix *const *downs,
                                 int32_t count, spg_experts **out);
SPG_API void spg_experts_close(spg_experts *experts);
SPG_API int32_t spg_experts_bias(spg_experts *experts, int32_t expert, const float *gate_up, const float *down);
/*
 * Products of experts [first, end) as spg_multiply gives them. starts: [count + 1]; expert e has the rows
 * rows[starts[e]] to rows[starts[e + 1] - 1], rising. gate: row i of gated is the gate (`finish`) of row rows[i] of x.
 * add: row rows[i] of out gets row_factors[i] * (factor * gated row i * W^T + bias), expert after expert.
 */
SPG_API int32_t spg_experts_gate(const spg_experts *experts, int32_t first, int32_t end, const int32_t *starts,
                                 const int32_t *rows, const float *x, int32_t x_stride, const float *norm,
                                 float norm_eps, int32_t parts, int32_t finish, float *gated, int32_t gated_stride);
SPG_API int32_t spg_experts_add(const spg_experts *experts, int32_t first, int32_t end, const int32_t *starts,
                                const int32_t *rows, const float *row_factors, float factor, int32_t parts,
                                const float *gated, int32_t gated_stride, float *out, int32_t out_stride);

/*
 * Norms of rows x: [row_count][width] float32, x_stride apart; norm: [width] weights. STORE: out = factor * RMSNorm(x),
 * and out may be x; ADD: that is added to out. out: rows that are out_stride apart. A row's bits depend on that row alone.
 */
SPG_API int32_t spg_norm_rows(spg_context *context, const float *x, int32_t row_count, int32_t width, int32_t x_stride,
                              const float *norm, float norm_eps, int32_t finish, float factor, float *out,
                              int32_t out_stride);

/*
 * SEQUENCES. The operations of a model's step are named once, in their order, and then run by one call for each step:
 * the same functions as spg_multiply, spg_norm_rows and spg_attention, and the same bits. Norms and biases are copied;
 * matrices and the pool must outlive the sequence. Arguments are those of the functions above; x and out are spg_buffer.
 */
SPG_API int32_t spg_sequence_open(spg_pool *pool, spg_sequence **out);
SPG_API void spg_sequence_close(spg_sequence *sequence);
SPG_API int32_t spg_sequence_product(spg_sequence *sequence, const spg_matrix *matrix, int32_t x, int32_t x_stride,
                                     const float *norm, float norm_eps, int32_t parts, int32_t finish, float factor,
                                     const float *bias, int32_t out, int32_t out_stride);
/* offset: floats before the first number of x, and of out. */
SPG_API int32_t spg_sequence_norm(spg_sequence *sequence, int32_t x, int32_t offset, int32_t width, int32_t x_stride,
                                  const float *norm, float norm_eps, int32_t finish, float factor, int32_t out,
                                  int32_t out_stride);
/* Attention of a layer, from QKV to ATTENTION. */
SPG_API int32_t spg_sequence_attention(spg_sequence *sequence, int32_t layer, const float *q_norm, const float *k_norm);
/*
 * Runs operations [first, end) for row_count rows; attention is among them only where a step of as many rows has begun.
 * Each buffer has row_count rows of its stride.
 */
SPG_API int32_t spg_sequence_run(spg_sequence *sequence, int32_t first, int32_t end, int32_t row_count, float *residual,
                                 float *qkv, float *attention, float *branch, float *gated, float *logits);

/*
 * For each of row_count rows of `width` floats the index of its greatest number, the first of equal ones; -1 where one is
 * NaN or the greatest is not finite.
 */
SPG_API int32_t spg_greatest(spg_context *context, const float *x, int32_t row_count, int32_t width, int32_t *out);

#ifdef __cplusplus
}
#endif
#endif
