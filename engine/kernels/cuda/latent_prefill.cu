// Prompts' attention over latents on Hopper: what `_prefill` of `latent_attention.py` computes, with the same bits.
//
// A tile has up to 64 rows (tokens x query heads), which two groups of four warps compute together. Each group
// multiplies the queries by half of a block's entries, both tell each other the rows' largest scores and the weights in
// shared memory, and each adds up half of the latents. A warp of a third group fetches tiles of queries, and blocks of
// entries into a ring, by the tensor memory accelerator. What a program has folded lies in memory of its own, of which
// each thread has its part: the sums of a split take half of its registers.
//
// Macros: TOGETHER query heads of a token in a tile, GROUPS tiles of a token's heads.

#define DIM 64  // of a box: what is swizzled together
#define IS_BF16 1
#include "hopper_attention.cuh"

constexpr int RANK = 512, ENTRY = 576, HALF = RANK / 2;
constexpr int STAGES = 2, BOXES = ENTRY / DIM;
constexpr int ENTRIES_BYTES = BOXES * BOX_BYTES;  // of 64 entries, or queries
constexpr int THREADS = 256;                      // that compute
constexpr int KEYS = BLOCK / 2;                   // of a group
constexpr int SCORES = KEYS / 2, SUMS = HALF / 2;  // that a thread holds: of two rows

// What groups tell each other of rows.
struct Told {
  float most[2][BLOCK], sums[2][BLOCK];
};

// x [64, 32] = or += a [64, 16] b [32, 16]ᵀ, both in shared memory.
__device__ __forceinline__ void multiply_keys(float (&x)[SCORES], u64 a, u64 b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, add, 1, 1, 0, 0;\n}"
      : F16(x, 0)
      : "l"(a), "l"(b), "r"(add));
}

// x [64, 256] += a [64, 16] b [16, 256], both in shared memory; of b the outer dimension is contiguous.
__device__ __forceinline__ void add_latents(float (&x)[SUMS], u64 a, u64 b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
      "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
      "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "
      "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, add, 1, 1, 0, 1;\n}"
      : F32(x, 0), F32(x, 32), F32(x, 64), F32(x, 96)
      : "l"(a), "l"(b), "r"(1));
}

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

struct Tile {
  int first_row, tokens, position, blocks;
  const int* planned;

  __device__ __forceinline__ Tile(const int* tiles, int pair) {
    planned = tiles + pair / GROUPS * 6;
    first_row = planned[0], tokens = planned[1], position = planned[2];
    blocks = (position + tokens - 1) / BLOCK + 1;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) latent_prefill(
    const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap kv, u16* __restrict__ output,
    const int* __restrict__ block_tables, const int* __restrict__ bounds, const int* __restrict__ tiles,
    float4* __restrict__ kept, int pairs, float scale, int block_rows, int layer_rows, int table_row) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  u32 ring = (u32)__cvta_generic_to_shared(dynamic), query = ring + STAGES * ENTRIES_BYTES;
  u32 weights_at = query + ENTRIES_BYTES;
  Told& told = *(Told*)(dynamic + (weights_at - ring) + BOX_BYTES);
  u32 full = weights_at + BOX_BYTES + sizeof(Told), empty = full + 8 * STAGES;
  u32 full_query = empty + 8 * STAGES, empty_query = full_query + 8;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      init_barrier(full + 8 * stage, 1);
      init_barrier(empty + 8 * stage, THREADS / 32);
    }
    init_barrier(full_query, 1);
    init_barrier(empty_query, THREADS / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  if (threadIdx.x >= THREADS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != THREADS) return;
    u32 n = 0, computed = 0;
    for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x, computed++) {
      Tile tile(tiles, pair);
      const int* table = block_tables + (u64)tile.planned[3] * table_row;
      int first = tile.first_row * (TOGETHER * GROUPS) + pair % GROUPS * TOGETHER, block = table[0];
      wait(empty_query, (computed & 1) ^ 1);
      expect(full_query, ENTRIES_BYTES);
      for (int box = 0; box < BOXES; box++) fetch(query + box * BOX_BYTES, &queries, box * DIM, first, full_query);
      for (int j = 0; j < tile.blocks; j++, n++) {
        int stage = n % STAGES, next = table[min(j + 1, tile.blocks - 1)];
        wait(empty + 8 * stage, (n / STAGES & 1) ^ 1);
        expect(full + 8 * stage, ENTRIES_BYTES);
        for (int box = 0; box < BOXES; box++)
          fetch(ring + stage * ENTRIES_BYTES + box * BOX_BYTES, &kv, box * DIM, block * block_rows + layer_rows,
                full + 8 * stage);
        block = next;
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int group = threadIdx.x >> 7, row = (threadIdx.x >> 5 & 3) * 16 + ((threadIdx.x & 31) >> 2);
  int column = 2 * (threadIdx.x & 3);
  float4* folded = kept + (u64)blockIdx.x * (SUMS / 4 * THREADS) + threadIdx.x;
  u32 n = 0, computed = 0;
  for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x, computed++) {
    Tile tile(tiles, pair);
    float top[2] = {HIDDEN, HIDDEN}, folded_top[2] = {HIDDEN, HIDDEN}, folded_total[2] = {0, 0};
    float weights[SCORES], out[SUMS];
#pragma unroll
    for (int i = 0; i < SCORES; i++) weights[i] = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) out[i] = 0;
    const int* split = bounds + 1;
    bool is_first = true;
    wait(full_query, computed & 1);
    for (int j = 0; j < tile.blocks; j++, n++) {
      int stage = n % STAGES;
      u32 block = ring + stage * ENTRIES_BYTES;
      bool is_last = j == tile.blocks - 1;
      float score[SCORES];
      wait(full + 8 * stage, n / STAGES & 1);
      begin_products();
#pragma unroll
      for (int k = 0; k < ENTRY / 16; k++) {
        u32 at = (k & 3) * 32 + (k >> 2) * BOX_BYTES;
        multiply_keys(score, descriptor(query >> 4, at), descriptor(block >> 4, at + group * KEYS * 128), k > 0);
      }
      end_products();
      wait_products<0>();
      pin(score);
      if (is_last) arrive(empty_query);
      bool masked = (j + 1) * BLOCK > tile.position + 1;
      if (masked) {
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
          int token = min((row + (i >> 1 & 1) * 8) / TOGETHER, tile.tokens - 1);
          int key = j * BLOCK + group * KEYS + (i >> 2) * 8 + column + (i & 1);
          if (key > tile.position + token) score[i] = HIDDEN;
        }
      }
      float shrink[2], lowered[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float most = fmaxf(score[2 * r], score[2 * r + 1]);
#pragma unroll
        for (int i = 4; i < SCORES; i += 4) most = fmaxf(most, fmaxf(score[i + 2 * r], score[i + 2 * r + 1]));
        most = fmaxf(most, neighbour(most, 1));
        most = fmaxf(most, neighbour(most, 2));
        if (column == 0) told.most[group][row + 8 * r] = most;
      }
      meet();
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float most = fmaxf(told.most[0][row + 8 * r], told.most[1][row + 8 * r]);
        float both = fmaxf(top[r], __fmul_rn(most, scale));
        shrink[r] = power_of_2(top[r] - both);
        top[r] = both;
        lowered[r] = -both;
      }
#pragma unroll
      for (int i = 0; i < SCORES; i++) {
        int r = i >> 1 & 1;
        float weight = power_of_2(__fmaf_rn(score[i], scale, lowered[r]));
        // Where nothing was seen yet, the top is itself a hidden score.
        if (masked && score[i] == HIDDEN) weight = 0;
        weights[i] = __fmaf_rn(weights[i], shrink[r], weight);
        score[i] = weight;
      }
#pragma unroll
      for (int i = 0; i < SCORES; i += 2) {
        int r = row + (i >> 1 & 1) * 8;
        u32 to = weights_at + r * 128 + (((group * 4 + (i >> 2)) ^ (r & 7)) << 4) + column * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack(score[i], score[i + 1])) : "memory");
      }
#pragma unroll
      for (int i = 0; i < SUMS; i++) out[i] = __fmul_rn(out[i], shrink[i >> 1 & 1]);
      if (is_last) {
        // What lies behind the last entry was never written: 0 * NaN would be NaN.
        int held = (tile.position + tile.tokens - 1) % BLOCK + 1;
        for (int i = threadIdx.x; i < (BLOCK - held) * (RANK / 8); i += THREADS) {
          u32 at = block + (i & 7) * 16 + (i >> 3 & 7) * BOX_BYTES + (held + (i >> 6)) * 128;
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
        }
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      meet();
      begin_products();
#pragma unroll
      for (int k = 0; k < BLOCK / 16; k++)
        add_latents(out, descriptor(weights_at >> 4, k * 32),
                    descriptor(block >> 4 | BOX_BYTES >> 4 << 16, k * 2048 + group * (HALF / DIM) * BOX_BYTES));
      end_products();
      wait_products<0>();
      pin(out);
      arrive(empty + 8 * stage);
      if ((j + 1) * BLOCK < *split && !is_last) continue;

      // The split ends: `attention_splits.fold`.
      split++;
      float split_shrink[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          x[i] = weights[4 * i + 2 * r] + weights[4 * i + 2 * r + 1];
          x[i] += neighbour(x[i], 1);
          x[i] += neighbour(x[i], 2);
        }
        if (column == 0) told.sums[group][row + 8 * r] = (x[0] + x[1]) + (x[2] + x[3]);
      }
      meet();
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float total = told.sums[0][row + 8 * r] + told.sums[1][row + 8 * r], both = fmaxf(folded_top[r], top[r]);
        shrink[r] = power_of_2(folded_top[r] - both);
        split_shrink[r] = power_of_2(top[r] - both);
        folded_total[r] = __fmaf_rn(folded_total[r], shrink[r], __fmul_rn(total, split_shrink[r]));
        folded_top[r] = both;
        top[r] = HIDDEN;
      }
#pragma unroll
      for (int i = 0; i < SCORES; i++) weights[i] = 0;
#pragma unroll
      for (int i = 0; i < SUMS; i += 4) {
        float4 sum = is_first ? make_float4(0, 0, 0, 0) : folded[i / 4 * THREADS];
        sum.x = __fmaf_rn(sum.x, shrink[0], __fmul_rn(out[i], split_shrink[0]));
        sum.y = __fmaf_rn(sum.y, shrink[0], __fmul_rn(out[i + 1], split_shrink[0]));
        sum.z = __fmaf_rn(sum.z, shrink[1], __fmul_rn(out[i + 2], split_shrink[1]));
        sum.w = __fmaf_rn(sum.w, shrink[1], __fmul_rn(out[i + 3], split_shrink[1]));
        if (is_last) {
          out[i] = sum.x, out[i + 1] = sum.y, out[i + 2] = sum.z, out[i + 3] = sum.w;
        } else {
          folded[i / 4 * THREADS] = sum;
          out[i] = out[i + 1] = out[i + 2] = out[i + 3] = 0;
        }
      }
      is_first = false;
    }
    // `attention_splits.normalize` without a sink.
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int at = row + 8 * r;
      float whole = fmaxf(folded_top[r], HIDDEN), shrink = power_of_2(folded_top[r] - whole);
      float factor = divide(shrink, __fmaf_rn(folded_total[r], shrink, power_of_2(HIDDEN - whole)));
      if (at >= tile.tokens * TOGETHER) continue;
      u64 to = (u64)(tile.first_row + at / TOGETHER) * (TOGETHER * GROUPS) + pair % GROUPS * TOGETHER + at % TOGETHER;
      u32* place = (u32*)(output + to * RANK + group * HALF + column);
#pragma unroll
      for (int i = 0; i < SUMS; i += 4)
        place[i] = pack(__fmul_rn(out[i + 2 * r], factor), __fmul_rn(out[i + 2 * r + 1], factor));
    }
  }
}
