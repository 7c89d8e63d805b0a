// Decode attention of items of many requests on Hopper: `decode_attention`'s large items, with the same bits.
//
// An item is a split of keys that several requests share. A pair (item, KV head) has up to 64 rows (requests x query
// heads), which a group of four warps computes together, so that each key is read once for all of them. Two groups of a
// multiprocessor take pairs of their own. For each a thread fetches blocks of 64 keys and values into a ring in shared
// memory, and runs ahead over the ends of pairs, so that memory is read all the time. KV in 8 bits is widened to bf16 in
// shared memory, by the numbers of `stored_in_fp8`.
//
// All rows see all keys of an item: the plan makes items of several requests of whole splits alone.
//
// Macros: GROUP query heads of a KV head, KV_HEADS, DIM 64 or 128, STAGES blocks of a ring, IS_BF16, IN_FP8.

#include "hopper_attention.cuh"

constexpr int GROUPS = 2;
constexpr int WARPS = 4;  // of a group
#if IN_FP8
constexpr int FETCHED = BLOCK * (DIM + 4);  // bytes of a block's keys, with a scale for each
#else
constexpr int FETCHED = BYTES;
#endif

// A group's ring of blocks.
struct Ring {
  u32 keys, values, full_keys, full_values, empty_keys, empty_values;

  __device__ __forceinline__ Ring(u32 memory, u32 barriers, int group) {
    keys = memory + group * 2 * STAGES * FETCHED;
    values = keys + STAGES * FETCHED;
    full_keys = barriers + group * 4 * STAGES * 8;
    full_values = full_keys + 8 * STAGES;
    empty_keys = full_values + 8 * STAGES;
    empty_values = empty_keys + 8 * STAGES;
  }
};

// What a group computes one after the other.
struct Pair {
  int place, requests, split, head, blocks;

  __device__ __forceinline__ Pair(const int* items, const int* bounds, int pair) {
    const int* item = items + pair / KV_HEADS * 4;
    place = item[0], requests = item[1], split = item[2], head = pair % KV_HEADS;
    blocks = (bounds[split + 1] - bounds[split]) / BLOCK;
  }
};

#if IN_FP8
__device__ __forceinline__ void fetch_bytes(u32 to, const unsigned char* from, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(FETCHED), "r"(barrier) : "memory");
}

// Two pairs of 8 bits, values i and i + DIM / 2 of a vector, to two of the first half and two of the second.
__device__ __forceinline__ void widen(u32 pairs, u32 factor, u32& first, u32& second) {
  u32 low = (pairs << 4 & 0x07f007f0) | (pairs << 8 & 0x80008000);
  u32 high = (pairs >> 4 & 0x07f007f0) | (pairs & 0x80008000);
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(first) : "r"(low), "r"(factor), "r"(0x80008000));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(second) : "r"(high), "r"(factor), "r"(0x80008000));
}

__device__ __forceinline__ void store(u32 block, int key, int chunk, const u32 (&x)[4]) {
  u32 to = block + (chunk >> 3) * BOX_BYTES + key * 128 + ((chunk ^ key) & 7) * 16;
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// A block of vectors as it was fetched, to one of 16 bits that products read. All threads of a group take part.
__device__ __forceinline__ void widen_block(u32 from, u32 to) {
  constexpr int CHUNKS = DIM / 16;
#pragma unroll
  for (int i = 0; i < BLOCK * CHUNKS / 128; i++) {
    int at = (threadIdx.x & 127) + i * 128, key = at / CHUNKS, chunk = at % CHUNKS;
    u32 pairs[4], first[4], second[4];
    float scale;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3]) : "r"(from + at * 16));
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(from + BLOCK * DIM + key * 4));
    scale = __fmul_rn(scale, 0x1p120f);
    u32 factor = pack(scale, scale);
#pragma unroll
    for (int w = 0; w < 4; w++) widen(pairs[w], factor, first[w], second[w]);
    store(to, key, chunk, first);
    store(to, key, CHUNKS + chunk, second);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(384, 1) grouped_decode(
    const u16* __restrict__ query,
#if IN_FP8
    const unsigned char* __restrict__ kv,
#else
    const __grid_constant__ TensorMap kv,
#endif
    const int* __restrict__ table_rows, const int* __restrict__ order, const int* __restrict__ block_tables,
    const int* __restrict__ bounds, const int* __restrict__ items, const int* __restrict__ count,
    float* __restrict__ tops, float* __restrict__ totals, float* __restrict__ outs, float scale, int block_stride,
    int layer_offset, int part_stride, int head_stride, int query_row, int query_head, int table_row, int splits) {
  extern __shared__ unsigned char shared[];
  u32 memory = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
#if IN_FP8
  constexpr int WIDE = 3 * BYTES;
#else
  constexpr int WIDE = 0;
#endif
  u32 fetched = memory + GROUPS * WIDE, barriers = fetched + GROUPS * 2 * STAGES * FETCHED;
  if (threadIdx.x == 0) {
    for (int group = 0; group < GROUPS; group++) {
      Ring ring(fetched, barriers, group);
      for (int stage = 0; stage < STAGES; stage++) {
        init_barrier(ring.full_keys + 8 * stage, 1);
        init_barrier(ring.full_values + 8 * stage, 1);
        init_barrier(ring.empty_keys + 8 * stage, WARPS);
        init_barrier(ring.empty_values + 8 * stage, WARPS);
      }
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  int pairs = *count * KV_HEADS, stride = GROUPS * gridDim.x;

  if (threadIdx.x >= GROUPS * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    int group = (threadIdx.x >> 5) & 3;
    if (group >= GROUPS || (threadIdx.x & 31)) return;
    Ring ring(fetched, barriers, group);
    u32 n = 0;
    for (int p = GROUPS * blockIdx.x + group; p < pairs; p += stride) {
      Pair pair(items, bounds, p);
      const int* table = block_tables + (u64)table_rows[order[pair.place]] * table_row + bounds[pair.split] / BLOCK;
      int offset = layer_offset + pair.head * head_stride, block = table[0];
      for (int j = 0; j < pair.blocks; j++, n++) {
        int stage = n % STAGES, next = table[min(j + 1, pair.blocks - 1)];
        u32 parity = (n / STAGES & 1) ^ 1;
#if IN_FP8
        const unsigned char* keys = kv + (u64)block * block_stride + offset;
        wait(ring.empty_keys + 8 * stage, parity);
        expect(ring.full_keys + 8 * stage, FETCHED);
        fetch_bytes(ring.keys + stage * FETCHED, keys, ring.full_keys + 8 * stage);
        wait(ring.empty_values + 8 * stage, parity);
        expect(ring.full_values + 8 * stage, FETCHED);
        fetch_bytes(ring.values + stage * FETCHED, keys + part_stride, ring.full_values + 8 * stage);
#else
        int row = block * block_stride + offset;
        wait(ring.empty_keys + 8 * stage, parity);
        expect(ring.full_keys + 8 * stage, FETCHED);
        for (int column = 0; column < DIM; column += 64)
          fetch(ring.keys + stage * FETCHED + column * 128, &kv, column, row, ring.full_keys + 8 * stage);
        wait(ring.empty_values + 8 * stage, parity);
        expect(ring.full_values + 8 * stage, FETCHED);
        for (int column = 0; column < DIM; column += 64)
          fetch(ring.values + stage * FETCHED + column * 128, &kv, column, row + part_stride, ring.full_values + 8 * stage);
#endif
        block = next;
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  int group = threadIdx.x >> 7, column = 2 * (threadIdx.x & 3);
  Ring ring(fetched, barriers, group);
  u32 n = 0;
#if IN_FP8
  u32 wide = memory + group * WIDE;  // keys, and twice values
#endif
  Rows rows;
  float score[COLUMNS];
  u32 weight[COLUMNS / 2];
  for (int p = GROUPS * blockIdx.x + group; p < pairs; p += stride) {
    Pair pair(items, bounds, p);
    int places[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int at = first_row_of_thread() % 64 + 8 * r;
      int row = order[pair.place + min(at / GROUP, pair.requests - 1)], head = pair.head * GROUP + at % GROUP;
      bool real = at < pair.requests * GROUP;
      places[r] = real ? (row * splits + pair.split) * (KV_HEADS * GROUP) + head : -1;
      const u16* q = query + (u64)row * query_row + head * query_head + column;
#pragma unroll
      for (int k = 0; k < DIM / 16; k++) {
        rows.query[k][r] = real ? *(const u32*)(q + 16 * k) : 0;
        rows.query[k][2 + r] = real ? *(const u32*)(q + 16 * k + 8) : 0;
      }
      rows.top[r] = HIDDEN;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) rows.weights[i] = 0;
#pragma unroll
    for (int i = 0; i < OUTS; i++) rows.out[i] = 0;
    for (int j = 0; j < pair.blocks; j++, n++) {
      int stage = n % STAGES;
      u32 parity = n / STAGES & 1;
      u32 keys = ring.keys + stage * FETCHED, values = ring.values + stage * FETCHED;
      wait(ring.full_keys + 8 * stage, parity);
#if IN_FP8
      // Beside the product of the block before. All warps have read these keys' predecessors: they met since.
      widen_block(keys, wide);
      arrive(ring.empty_keys + 8 * stage);
      share_with_products();
      keys = wide;
#endif
      multiply_keys(score, rows, keys);
      wait_products<0>();
      pin(score);
      pin(rows.out);
#if IN_FP8
      wait(ring.full_values + 8 * stage, parity);
      u32 wide_values = wide + BYTES + (n & 1) * BYTES;
      widen_block(values, wide_values);
      arrive(ring.empty_values + 8 * stage);
      values = wide_values;
#else
      arrive(ring.empty_keys + 8 * stage);
      if (j > 0) arrive(ring.empty_values + 8 * ((n - 1) % STAGES));
#endif
      float shrink[2];
      softmax(score, rows, shrink, scale);
#pragma unroll
      for (int i = 0; i < OUTS; i++) rows.out[i] = __fmul_rn(rows.out[i], shrink[i >> 1 & 1]);
#pragma unroll
      for (int i = 0; i < COLUMNS; i += 2) weight[i / 2] = pack(score[i], score[i + 1]);
#if IN_FP8
      share_with_products();
#else
      wait(ring.full_values + 8 * stage, parity);
#endif
      multiply_values(rows, weight, values);
    }
    float total[2] = {sum_weights(rows, 0), sum_weights(rows, 1)};
    wait_products<0>();
    pin(rows.out);
#if !IN_FP8
    arrive(ring.empty_values + 8 * ((n - 1) % STAGES));
#endif
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (places[r] < 0) continue;
      if (column == 0) tops[places[r]] = rows.top[r], totals[places[r]] = total[r];
      float* to = outs + (u64)places[r] * DIM + column;
#pragma unroll
      for (int i = 0; i < OUTS; i += 4) *(float2*)(to + 2 * i) = make_float2(rows.out[i + 2 * r], rows.out[i + 2 * r + 1]);
    }
  }
}
