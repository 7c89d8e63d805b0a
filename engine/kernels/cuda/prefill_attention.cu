// Causal attention of prompt chunks on Hopper: the arithmetic of `attention_splits`, operation by operation.
//
// A tile has 128 rows (tokens x query heads of one KV head). One warp fetches blocks of 64 keys and values into rings in
// shared memory by the tensor memory accelerator; two groups of four warps ("warpgroups") compute 64 rows each, and both
// use every block. Within a group the scores of block j + 1 and the weighted values of block j - 1 are multiplied while
// the softmax of block j runs (Shah et al. 2024, FlashAttention-3). No barrier joins the warps of a group.
//
// Macros: EACH query heads of a KV head, DIM 64 or 128, STAGES blocks of keys and of values in shared memory, IS_BF16.

#include "hopper_attention.cuh"

constexpr int GROUPS = 2;
constexpr int THREADS = GROUPS * 128;  // that compute
constexpr int FOLDED_BYTES = THREADS * (OUTS + 8) * 4;

// Of the tile: the position of its first token, and its tokens.
struct Tile {
  int position, tokens;

  // A row is one query head of a token.
  __device__ __forceinline__ int token(int row) const { return min(row / EACH, tokens - 1); }
};

struct Memory {
  u32 keys, values, full_keys, full_values, empty_keys, empty_values;
};

__device__ __forceinline__ void hide(float (&score)[COLUMNS], const Tile& tile, int first_key) {
  int key = first_key + 2 * (threadIdx.x & 3), row = first_row_of_thread();
#pragma unroll
  for (int i = 0; i < COLUMNS; i++)
    if (key + (i >> 2) * 8 + (i & 1) > tile.position + tile.token(row + (i >> 1 & 1) * 8)) score[i] = HIDDEN;
}

// What threads keep in shared memory, since registers are short: of a thread, every THREADS-th word of it (or four).
//
// The splits that ended before, folded (top, total, weighted values), and top and total of the split that ended last.
struct Splits {
  float* folded_top;
  float* folded_total;
  float* top;
  float* total;
  float4* folded;
  const int* bounds;
  int end, fold_at;  // the block behind this split; the block before which the one before it is folded, or -1

  __device__ __forceinline__ void begin(unsigned char* memory, const int* all_bounds) {
    folded = (float4*)memory + threadIdx.x;
    folded_top = (float*)(memory + THREADS * OUTS * 4) + threadIdx.x;
    folded_total = folded_top + 2 * THREADS;
    top = folded_total + 2 * THREADS;
    total = top + 2 * THREADS;
    bounds = all_bounds + 1;
    end = *bounds / BLOCK;
    fold_at = -1;
#pragma unroll
    for (int i = 0; i < OUTS / 4; i++) folded[i * THREADS] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < 2; r++) folded_top[r * THREADS] = HIDDEN, folded_total[r * THREADS] = 0;
  }

  // A split ends with block j: what it has added up is kept until its last products are there.
  __device__ __forceinline__ void close(Rows& rows, int j) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      top[r * THREADS] = rows.top[r];
      total[r * THREADS] = sum_weights(rows, r);
      rows.top[r] = HIDDEN;  // shrinks all sums to 0
    }
    fold_at = j + 1;
    end = *++bounds / BLOCK;
  }

  // Take in the split that was closed; see `attention_splits.fold`. LAST: into the rows, else into shared memory.
  template <bool LAST>
  __device__ __forceinline__ void fold(Rows& rows) {
    float shrink[2], split_shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float before = folded_top[r * THREADS], split = top[r * THREADS], both = fmaxf(before, split);
      shrink[r] = power_of_2(before - both);
      split_shrink[r] = power_of_2(split - both);
      folded_total[r * THREADS] =
          __fmaf_rn(folded_total[r * THREADS], shrink[r], __fmul_rn(total[r * THREADS], split_shrink[r]));
      folded_top[r * THREADS] = both;
    }
#pragma unroll
    for (int i = 0; i < OUTS; i += 4) {
      float4 sum = folded[i / 4 * THREADS];
      sum.x = __fmaf_rn(sum.x, shrink[0], __fmul_rn(rows.out[i], split_shrink[0]));
      sum.y = __fmaf_rn(sum.y, shrink[0], __fmul_rn(rows.out[i + 1], split_shrink[0]));
      sum.z = __fmaf_rn(sum.z, shrink[1], __fmul_rn(rows.out[i + 2], split_shrink[1]));
      sum.w = __fmaf_rn(sum.w, shrink[1], __fmul_rn(rows.out[i + 3], split_shrink[1]));
      if (LAST) {
        rows.out[i] = sum.x, rows.out[i + 1] = sum.y, rows.out[i + 2] = sum.z, rows.out[i + 3] = sum.w;
      } else {
        folded[i / 4 * THREADS] = sum;
      }
    }
  }
};

// What lies behind the last token was never written: 0 * NaN would be NaN. Both groups write the same zeros.
__device__ __forceinline__ void clear_behind(u32 values, int held) {
  if (held == BLOCK) return;
  int thread = threadIdx.x & 127;
  for (int i = thread; i < (BLOCK - held) * (DIM / 8); i += 128) {
    int key = held + i / (DIM / 8), chunk = i % (DIM / 8);
    u32 at = values + (chunk >> 3) * BOX_BYTES + key * 128 + (chunk & 7) * 16;  // whole rows: the swizzle stays in them
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
  share_with_products();
}

// Block j, whose scores are in score[B]: softmax, and the products beside it.
template <int B, bool LAST>
__device__ __forceinline__ void step(
    Rows& rows, float (&score)[2][COLUMNS], u32 (&weight)[COLUMNS / 2], Splits& splits, const Memory& memory, int j,
    const Tile& tile, float scale) {
  if (!LAST) {
    int stage = (j + 1) % STAGES;
    wait(memory.full_keys + 8 * stage, (j + 1) / STAGES & 1);
    multiply_keys(score[1 - B], rows, memory.keys + stage * BYTES);
  } else {
    hide(score[B], tile, j * BLOCK);
  }
  float shrink[2];
  softmax(score[B], rows, shrink, scale);
  int stage = j % STAGES;
  pin(score[B]);
  // Here and not later: the assembler would put the softmax behind the wait for the product that runs beside it.
  wait(memory.full_values + 8 * stage, j / STAGES & 1);
  wait_products<LAST ? 0 : 1>();
  pin(rows.out);
  if (j > 0) arrive(memory.empty_values + 8 * ((j - 1) % STAGES));
  if (j == splits.fold_at) splits.fold<false>(rows);
#pragma unroll
  for (int i = 0; i < OUTS; i++) rows.out[i] = __fmul_rn(rows.out[i], shrink[i >> 1 & 1]);
#pragma unroll
  for (int i = 0; i < COLUMNS; i += 2) weight[i / 2] = pack(score[B][i], score[B][i + 1]);
  if (LAST) clear_behind(memory.values + stage * BYTES, (tile.position + tile.tokens - 1) % BLOCK + 1);
  multiply_values(rows, weight, memory.values + stage * BYTES);
  if (!LAST) {
    wait_products<1>();
    pin(score[1 - B]);
    arrive(memory.empty_keys + 8 * ((j + 1) % STAGES));
    if (j + 1 == splits.end) splits.close(rows, j);
  }
}

extern "C" __global__ void __launch_bounds__(384, 1) prefill_attention(
    const u16* __restrict__ query, const __grid_constant__ TensorMap kv, void* __restrict__ output,
    const int* __restrict__ block_tables, const int* __restrict__ bounds, const int* __restrict__ tiles, float scale,
    int block_rows, int layer_rows, int part_rows, int query_row, int query_head, int output_row, int output_head,
    int table_row, int output_in_fp32) {
  extern __shared__ unsigned char shared[];
  u32 begin = (u32)__cvta_generic_to_shared(shared);
  u32 aligned = (begin + 1023) & ~1023u;
  Memory memory;
  memory.keys = aligned;
  memory.values = aligned + STAGES * BYTES;
  u32 folded_at = aligned + 2 * STAGES * BYTES;
  memory.full_keys = folded_at + FOLDED_BYTES;
  memory.full_values = memory.full_keys + 8 * STAGES;
  memory.empty_keys = memory.full_values + 8 * STAGES;
  memory.empty_values = memory.empty_keys + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      init_barrier(memory.full_keys + 8 * stage, 1);
      init_barrier(memory.full_values + 8 * stage, 1);
      init_barrier(memory.empty_keys + 8 * stage, GROUPS * 4);
      init_barrier(memory.empty_values + 8 * stage, GROUPS * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int* planned = tiles + blockIdx.x * 6;
  int first_row = planned[0];
  Tile tile = {planned[2], planned[1]};
  int count = (tile.position + tile.tokens - 1) / BLOCK + 1;

  if (threadIdx.x >= THREADS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != THREADS) return;
    const int* table = block_tables + (u64)planned[3] * table_row;
    int first = layer_rows + blockIdx.y * BLOCK;
    int key_row = table[0] * block_rows + first, value_row = 0, following = table[min(1, count - 1)];
    for (int i = 0; i <= count; i++) {
      if (i < count) {
        int stage = i % STAGES;
        wait(memory.empty_keys + 8 * stage, (i / STAGES & 1) ^ 1);
        expect(memory.full_keys + 8 * stage, BYTES);
        for (int column = 0; column < DIM; column += 64)
          fetch(memory.keys + stage * BYTES + column * 128, &kv, column, key_row, memory.full_keys + 8 * stage);
      }
      if (i > 0) {
        int stage = (i - 1) % STAGES;
        wait(memory.empty_values + 8 * stage, ((i - 1) / STAGES & 1) ^ 1);
        expect(memory.full_values + 8 * stage, BYTES);
        for (int column = 0; column < DIM; column += 64)
          fetch(memory.values + stage * BYTES + column * 128, &kv, column, value_row, memory.full_values + 8 * stage);
      }
      value_row = key_row + part_rows;
      key_row = following * block_rows + first;
      following = table[min(i + 2, count - 1)];
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int row = first_row_of_thread(), column = 2 * (threadIdx.x & 3);
  Rows rows;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int at = row + 8 * r;
    rows.top[r] = HIDDEN;
    const u16* q = query + (u64)(first_row + tile.token(at)) * query_row + (blockIdx.y * EACH + at % EACH) * query_head;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      rows.query[k][r] = at < tile.tokens * EACH ? *(const u32*)(q + column + 16 * k) : 0;
      rows.query[k][2 + r] = at < tile.tokens * EACH ? *(const u32*)(q + column + 16 * k + 8) : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < COLUMNS; i++) rows.weights[i] = 0;
#pragma unroll
  for (int i = 0; i < OUTS; i++) rows.out[i] = 0;
  Splits splits;
  splits.begin(shared + (folded_at - begin), bounds);

  float score[2][COLUMNS];
  u32 weight[COLUMNS / 2];
  wait(memory.full_keys, 0);
  multiply_keys(score[0], rows, memory.keys);
  wait_products<0>();
  pin(score[0]);
  arrive(memory.empty_keys);
  for (int j = 0;; j += 2) {
    if (j == count - 1) {
      step<0, true>(rows, score, weight, splits, memory, j, tile, scale);
      break;
    }
    step<0, false>(rows, score, weight, splits, memory, j, tile, scale);
    if (j + 1 == count - 1) {
      step<1, true>(rows, score, weight, splits, memory, j + 1, tile, scale);
      break;
    }
    step<1, false>(rows, score, weight, splits, memory, j + 1, tile, scale);
  }
  splits.close(rows, count - 1);
  wait_products<0>();
  pin(rows.out);
  splits.fold<true>(rows);

  // `attention_splits.normalize` without a sink.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float before = splits.folded_top[r * THREADS], top = fmaxf(before, HIDDEN), shrink = power_of_2(before - top);
    float factor =
        divide(shrink, __fmaf_rn(splits.folded_total[r * THREADS], shrink, power_of_2(HIDDEN - top)));
    int at = row + 8 * r;
    if (at >= tile.tokens * EACH) continue;
    u64 to = (u64)(first_row + at / EACH) * output_row + (blockIdx.y * EACH + at % EACH) * output_head + column;
#pragma unroll
    for (int i = 0; i < OUTS; i += 4) {
      float first = __fmul_rn(rows.out[i + 2 * r], factor), second = __fmul_rn(rows.out[i + 2 * r + 1], factor);
      if (output_in_fp32) {
        *(float2*)((float*)output + to + 2 * i) = make_float2(first, second);
      } else {
        *(u32*)((u16*)output + to + 2 * i) = pack(first, second);
      }
    }
  }
}
