// Decode attention over latents on Hopper, of items of one request: what `_partial` of `latent_attention.py` computes,
// with the same bits.
//
// One warp fetches blocks of 64 entries into a ring in shared memory by the tensor memory accelerator, and runs ahead
// over the ends of items, so that memory is read all the time. Eight warps compute each block together. Products are
// turned round, so that few heads fill the instructions: entries are rows of the first, latents of the second one, and
// heads are their columns. A warp has 16 entries and eight heads of the scores, and then 64 latents of all heads.
//
// Macros: HEADS (at most 16), STAGES blocks of the ring.

#define DIM 64  // of a box: what is swizzled together
#define IS_BF16 1
#include "hopper_attention.cuh"

constexpr int RANK = 512, ENTRY = 576;
constexpr int STAGE_BYTES = ENTRY / DIM * BOX_BYTES;
constexpr int WARPS = 8;              // that compute
constexpr int STEPS = ENTRY / 16;     // of a score
constexpr int TILES = RANK / WARPS / 16;
constexpr int WEIGHTS_ROW = BLOCK + 8;  // so that heads lie in other banks

// What warps tell each other: the largest scores and the sums of weights of 16 entries, and all weights.
struct Shared {
  float most[4][16], sums[4][16];
  u16 weights[16][WEIGHTS_ROW];
};

struct Item {
  int row, split, first, stop;  // the entries first .. stop, which are all that the row sees of its splits
  const int* table;

  __device__ __forceinline__ Item(
      const int* item, const int* order, const int* positions, const int* table_rows, const int* block_tables,
      int table_row, const int* bounds, int splits) {
    row = order[item[0]], split = item[2];
    first = bounds[split];
    stop = min(bounds[min(split + 1 + item[3], splits)], positions[row] + 1);
    table = block_tables + (u64)table_rows[row] * table_row;
  }
};

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory"); }

// What is read once should not drive out of L2 what is read again.
__device__ __forceinline__ void fetch_once(u32 to, const TensorMap* map, int column, int row, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy) : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_turned(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void add_product(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// By a tree of neighbouring entries, bit by bit of their number; here the lowest three bits.
__device__ __forceinline__ float sum_of_lanes(float x) {
  x += neighbour(x, 4);
  x += neighbour(x, 8);
  return x + neighbour(x, 16);
}

__device__ __forceinline__ float most_of_lanes(float x) {
  x = fmaxf(x, neighbour(x, 4));
  x = fmaxf(x, neighbour(x, 8));
  return fmaxf(x, neighbour(x, 16));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32 + 32, 1) latent_decode(
    const u16* __restrict__ query, const __grid_constant__ TensorMap kv, const int* __restrict__ positions,
    const int* __restrict__ table_rows, const int* __restrict__ order, const int* __restrict__ block_tables,
    const int* __restrict__ bounds, const int* __restrict__ items, const int* __restrict__ count,
    float* __restrict__ tops, float* __restrict__ totals, float* __restrict__ outs, float scale, int block_rows,
    int layer_rows, int query_row, int query_head, int table_row, int splits) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared shared;
  __shared__ u64 barriers[2 * STAGES];
  u32 ring = ((u32)__cvta_generic_to_shared(dynamic) + 1023) & ~1023u;
  u32 full = (u32)__cvta_generic_to_shared(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      init_barrier(full + 8 * stage, 1);
      init_barrier(empty + 8 * stage, WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  int many = *count, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

  if (warp == WARPS) {
    if (lane) return;
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    u32 n = 0;
    for (int p = blockIdx.x; p < many; p += gridDim.x) {
      Item item(items + 4 * p, order, positions, table_rows, block_tables, table_row, bounds, splits);
      int last = (item.stop - 1) / BLOCK, block = item.table[item.first / BLOCK];
      for (int j = item.first / BLOCK; j <= last; j++, n++) {
        int stage = n % STAGES, next = item.table[min(j + 1, last)];
        u32 to = ring + stage * STAGE_BYTES, barrier = full + 8 * stage;
        wait(empty + 8 * stage, (n / STAGES & 1) ^ 1);
        expect(barrier, STAGE_BYTES);
#pragma unroll
        for (int box = 0; box < ENTRY / DIM; box++)
          fetch_once(to + box * BOX_BYTES, &kv, box * DIM, block * block_rows + layer_rows, barrier, policy);
        block = next;
      }
    }
    return;
  }

  // Of the scores: entries `entry` and 8 further, heads `column` and the next one of the eight from 8 · `side` on.
  int side = warp >> 2, entry = (warp & 3) * 16 + (lane >> 2), column = 2 * (lane & 3);
  u32 n = 0;
  for (int p = blockIdx.x; p < many; p += gridDim.x) {
    Item item(items + 4 * p, order, positions, table_rows, block_tables, table_row, bounds, splits);
    u32 q[STEPS][2];
    int of_query = side * 8 + (lane >> 2);
    const u16* from = query + (u64)item.row * query_row + of_query * query_head + column;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      q[k][0] = of_query < HEADS ? *(const u32*)(from + 16 * k) : 0;
      q[k][1] = of_query < HEADS ? *(const u32*)(from + 16 * k + 8) : 0;
    }
    // Of four heads: `column` and the next one, of both sides.
    float top[4], folded_top[4], folded_total[4], weights[4] = {0, 0, 0, 0};
    float out[TILES][2][4], folded[TILES][2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) top[i] = folded_top[i] = HIDDEN, folded_total[i] = 0;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int i = 0; i < 8; i++) out[t][i >> 2][i & 3] = folded[t][i >> 2][i & 3] = 0;
    int split = item.split, end = bounds[split + 1];
    for (int key = item.first; key < item.stop; key += BLOCK, n++) {
      int stage = n % STAGES, held = item.stop - key;
      u32 block = ring + stage * STAGE_BYTES;
      wait(full + 8 * stage, n / STAGES & 1);
      float score[4] = {0, 0, 0, 0};
      {
        int row = (warp & 3) * 16 + (lane & 15);
        u32 at = block + row * 128, turn = row & 7;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
          u32 a[4];
          load_matrices(a, at + (k >> 2) * BOX_BYTES + ((((k & 3) * 2 + (lane >> 4)) ^ turn) << 4));
          add_product(score, a, q[k][0], q[k][1]);
        }
      }
      if (held < BLOCK) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (entry + (i >> 1) * 8 >= held) score[i] = HIDDEN;
      }
      float most[2] = {most_of_lanes(fmaxf(score[0], score[2])), most_of_lanes(fmaxf(score[1], score[3]))};
      if (lane < 4) *(float2*)&shared.most[warp & 3][side * 8 + column] = make_float2(most[0], most[1]);
      meet();
      float shrink[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int head = (i >> 1) * 8 + column + (i & 1);
        float larger = fmaxf(
            fmaxf(shared.most[0][head], shared.most[1][head]), fmaxf(shared.most[2][head], shared.most[3][head]));
        float both = fmaxf(top[i], __fmul_rn(larger, scale));
        shrink[i] = power_of_2(top[i] - both);
        top[i] = both;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float lowered = -(side ? top[2 + (i & 1)] : top[i & 1]), less = side ? shrink[2 + (i & 1)] : shrink[i & 1];
        float weight = power_of_2(__fmaf_rn(score[i], scale, lowered));
        if (entry + (i >> 1) * 8 >= held) weight = 0;
        weights[i] = __fmaf_rn(weights[i], less, weight);
        shared.weights[side * 8 + column + (i & 1)][entry + (i >> 1) * 8] = (u16)pack(weight, 0);
      }
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 8; i++)
          out[t][i >> 2][i & 3] = __fmul_rn(out[t][i >> 2][i & 3], shrink[(i >> 2) * 2 + (i & 1)]);
      if (held < BLOCK) {
        // What lies behind the last entry was never written: 0 * NaN would be NaN.
        for (int i = threadIdx.x; i < (BLOCK - held) * (RANK / 8); i += WARPS * 32) {
          u32 at = block + (i & 7) * 16 + (i >> 3 & 7) * BOX_BYTES + (held + (i >> 6)) * 128;
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      }
      meet();
#pragma unroll
      for (int k = 0; k < BLOCK / 16; k++) {
        u32 b[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
          b[i >> 1][i & 1] = *(const u32*)&shared.weights[(i >> 1) * 8 + (lane >> 2)][k * 16 + (i & 1) * 8 + column];
        int row = k * 16 + (lane >> 4) * 8 + (lane & 7);
        u32 at = block + warp * BOX_BYTES + row * 128;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          u32 a[4];
          load_turned(a, at + (((t * 2 + (lane >> 3 & 1)) ^ (row & 7)) << 4));
          add_product(out[t][0], a, b[0][0], b[0][1]);
          add_product(out[t][1], a, b[1][0], b[1][1]);
        }
      }
      arrive(empty + 8 * stage);
      if (key + BLOCK < end && key + BLOCK < item.stop) continue;

      // The split ends: `attention_splits.fold`.
      float sum[2];
#pragma unroll
      for (int i = 0; i < 2; i++) sum[i] = sum_of_lanes(weights[i]) + sum_of_lanes(weights[2 + i]);
      if (lane < 4) *(float2*)&shared.sums[warp & 3][side * 8 + column] = make_float2(sum[0], sum[1]);
      meet();
      float split_shrink[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int head = (i >> 1) * 8 + column + (i & 1);
        float total =
            (shared.sums[0][head] + shared.sums[1][head]) + (shared.sums[2][head] + shared.sums[3][head]);
        float both = fmaxf(folded_top[i], top[i]);
        shrink[i] = power_of_2(folded_top[i] - both);
        split_shrink[i] = power_of_2(top[i] - both);
        folded_total[i] = __fmaf_rn(folded_total[i], shrink[i], __fmul_rn(total, split_shrink[i]));
        folded_top[i] = both;
        top[i] = HIDDEN;
        weights[i] = 0;
      }
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
          float& sum_of = folded[t][i >> 2][i & 3];
          float& more = out[t][i >> 2][i & 3];
          int head = (i >> 2) * 2 + (i & 1);
          sum_of = __fmaf_rn(sum_of, shrink[head], __fmul_rn(more, split_shrink[head]));
          more = 0;
        }
      end = bounds[min(++split + 1, splits)];
    }
    u64 place = ((u64)item.row * splits + item.split) * HEADS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int head = (i >> 1) * 8 + column + (i & 1);
      if (head >= HEADS) continue;
      if (warp == 0 && lane < 4) tops[place + head] = folded_top[i], totals[place + head] = folded_total[i];
      float* to = outs + (place + head) * RANK + warp * 64 + (lane >> 2);
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        to[t * 16] = folded[t][i >> 1][i & 1];
        to[t * 16 + 8] = folded[t][i >> 1][2 + (i & 1)];
      }
    }
  }
}
