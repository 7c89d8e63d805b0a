// Decode attention over latents on Hopper, of items of one request: what `_partial` of `latent_attention.py` computes,
// with the same bits.
//
// One warp fetches queries, and entries into a ring in shared memory, by the tensor memory accelerator, and runs ahead
// over the ends of items, so that memory is read all the time. Eight warps compute each block of 64 entries together.
// Products are turned round, so that few heads fill the instructions: entries are rows of the first, latents of the
// second one, and heads are their columns. A warp has 16 entries and eight heads of the scores, and then 64 latents of
// all heads.
//
// Macros: HEADS (at most 16), UNITS of half a block in the ring.

#define DIM 64  // of a box: what is swizzled together
#define IS_BF16 1
#include "hopper_attention.cuh"

constexpr int RANK = 512, ENTRY = 576;
constexpr int BOXES = ENTRY / DIM, UNIT = BLOCK / 2;
constexpr int UNIT_BOX_BYTES = UNIT * 128, UNIT_BYTES = BOXES * UNIT_BOX_BYTES;
constexpr int QUERY_BOX_BYTES = 16 * 128, QUERY_BYTES = BOXES * QUERY_BOX_BYTES;
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
};

struct Plan {
  const int *items, *order, *positions, *table_rows, *block_tables, *bounds;
  int table_row, splits, many;

  __device__ __forceinline__ Item operator[](int place) const {
    Item found = {};
    if (many == 0) return found;
    const int* item = items + 4 * min(place, many - 1);
    found.row = order[item[0]], found.split = item[2];
    found.first = bounds[found.split];
    found.stop = min(bounds[min(found.split + 1 + item[3], splits)], positions[found.row] + 1);
    found.table = block_tables + (u64)table_rows[found.row] * table_row;
    return found;
  }
};

// Where units lie, and whose turn a unit's place has: both sides count them.
struct Ring {
  u32 memory, full, empty, place = 0, turn = 0;

  __device__ __forceinline__ void step() {
    if (++place == UNITS) place = 0, turn ^= 1;
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
    const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap kv, const int* __restrict__ positions,
    const int* __restrict__ table_rows, const int* __restrict__ order, const int* __restrict__ block_tables,
    const int* __restrict__ bounds, const int* __restrict__ items, const int* __restrict__ count,
    float* __restrict__ tops, float* __restrict__ totals, float* __restrict__ outs, float scale, int block_rows,
    int layer_rows, int table_row, int splits, int planned) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared shared;
  __shared__ u64 barriers[2 * UNITS + 4];
  Ring ring;
  ring.memory = ((u32)__cvta_generic_to_shared(dynamic) + 1023) & ~1023u;
  ring.full = (u32)__cvta_generic_to_shared(barriers), ring.empty = ring.full + 8 * UNITS;
  u32 query = ring.memory + UNITS * UNIT_BYTES, full_query = ring.empty + 8 * UNITS, empty_query = full_query + 16;
  if (threadIdx.x == 0) {
    for (int unit = 0; unit < UNITS; unit++) {
      init_barrier(ring.full + 8 * unit, 1);
      init_barrier(ring.empty + 8 * unit, WARPS);
    }
    for (int i = 0; i < 2; i++) init_barrier(full_query + 8 * i, 1), init_barrier(empty_query + 8 * i, WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  // The plan may be there before queries and new entries are.
  if (!planned) asm volatile("griddepcontrol.wait;" ::: "memory");
  Plan plan = {items, order, positions, table_rows, block_tables, bounds, table_row, splits, *count};
  Item next = plan[blockIdx.x];
  if (planned) asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  int many = plan.many, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

  if (warp == WARPS) {
    if (lane) return;
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    u32 computed = 0;
    int block = many ? next.table[next.first / BLOCK] : 0;
    for (int p = blockIdx.x; p < many; p += gridDim.x, computed++) {
      Item item = next;
      next = plan[p + gridDim.x];
      int last = (item.stop - 1) / BLOCK;
      u32 side = computed & 1, barrier = full_query + 8 * side;
      wait(empty_query + 8 * side, (computed >> 1 & 1) ^ 1);
      expect(barrier, QUERY_BYTES);
#pragma unroll
      for (int box = 0; box < BOXES; box++)
        fetch(query + side * QUERY_BYTES + box * QUERY_BOX_BYTES, &queries, box * DIM, item.row * HEADS, barrier);
      for (int j = item.first / BLOCK; j <= last; j++) {
        int following = j < last ? item.table[j + 1] : next.table[next.first / BLOCK];
        for (int half = 0; half < 2; half++, ring.step()) {
          u32 to = ring.memory + ring.place * UNIT_BYTES, full = ring.full + 8 * ring.place;
          int row = block * block_rows + layer_rows + half * UNIT;
          wait(ring.empty + 8 * ring.place, ring.turn ^ 1);
          expect(full, UNIT_BYTES);
#pragma unroll
          for (int box = 0; box < BOXES; box++)
            fetch_once(to + box * UNIT_BOX_BYTES, &kv, box * DIM, row, full, policy);
        }
        block = following;
      }
    }
    return;
  }

  // Of the scores: entries `entry` and 8 further, heads `column` and the next one of the eight from 8 · `side` on.
  int side = warp >> 2, entry = (warp & 3) * 16 + (lane >> 2), column = 2 * (lane & 3);
  u32 computed = 0;
  for (int p = blockIdx.x; p < many; p += gridDim.x, computed++) {
    Item item = next;
    next = plan[p + gridDim.x];
    u32 q[STEPS / 2][4];
    wait(full_query + 8 * (computed & 1), computed >> 1 & 1);
    {
      int row = side * 8 + (lane & 7);
      u32 at = query + (computed & 1) * QUERY_BYTES + row * 128;
#pragma unroll
      for (int k = 0; k < STEPS / 2; k++)
        load_matrices(q[k], at + (k >> 1) * QUERY_BOX_BYTES + ((((k & 1) * 4 + (lane >> 3)) ^ (row & 7)) << 4));
    }
    arrive(empty_query + 8 * (computed & 1));
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
    for (int key = item.first; key < item.stop; key += BLOCK) {
      int held = item.stop - key;
      u32 places[2], units[2];
#pragma unroll
      for (int half = 0; half < 2; half++, ring.step()) {
        places[half] = ring.place, units[half] = ring.memory + ring.place * UNIT_BYTES;
        wait(ring.full + 8 * ring.place, ring.turn);
      }
      float score[4] = {0, 0, 0, 0};
      {
        int row = (warp & 1) * 16 + (lane & 15);
        u32 at = (warp & 2 ? units[1] : units[0]) + row * 128, turn = row & 7;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
          u32 a[4];
          load_matrices(a, at + (k >> 2) * UNIT_BOX_BYTES + ((((k & 3) * 2 + (lane >> 4)) ^ turn) << 4));
          add_product(score, a, q[k >> 1][(k & 1) * 2], q[k >> 1][(k & 1) * 2 + 1]);
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
          int entry_at = held + (i >> 6);
          u32 at = (entry_at < UNIT ? units[0] : units[1]) + (i & 7) * 16 + (i >> 3 & 7) * UNIT_BOX_BYTES +
                   entry_at % UNIT * 128;
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
        int row = (k & 1) * 16 + (lane >> 4) * 8 + (lane & 7);
        u32 at = units[k >> 1] + warp * UNIT_BOX_BYTES + row * 128;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          u32 a[4];
          load_turned(a, at + (((t * 2 + (lane >> 3 & 1)) ^ (row & 7)) << 4));
          add_product(out[t][0], a, b[0][0], b[0][1]);
          add_product(out[t][1], a, b[1][0], b[1][1]);
        }
      }
      arrive(ring.empty + 8 * places[0]);
      arrive(ring.empty + 8 * places[1]);
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
