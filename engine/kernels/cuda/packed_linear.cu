// y = x Wᵀ for few rows, with a weight of 4-bit codes that is widened to bf16 in registers; and that weight, widened.
//
// A number of the weight is the bf16 to which (code − zero) · scale rounds, so that sums have the bits of a product with
// the widened weight. Inputs are added up in order by one accumulator, or by SUMS = 2 of them, one for each half, which
// are then added in fp32: the library gives the same bits when it adds its second product to an fp32 result.
//
// A weight lies in tiles of 64 outputs, of 128 inputs each: the codes in the order in which threads read them, 4,096
// bytes, and for each output SCALE_WORDS words of scales. A word of codes has the eight numbers that a thread gives to a
// matrix instruction, [16, 16] of a warp: rows g and g + 8, inputs 2t and 2t + 8 and the ones after them. Integers have
// four bits each; of floats' four codes in a half word the last one has bits 14, 13, 11 and 10, the others bits 15 and 8
// to 6, shifted right by 0, 3 and 6.
//
// A block has a warp that fetches and TILES groups of four warps, each of which multiplies a tile (wgmma with the weight
// from registers). A stage is STEP times 128 inputs: for each group codes and scales, and the rows, which all groups
// share. The two blocks of a cluster have a sum each.
//
// Macros: FORM what a word of scales says, below; GROUP inputs that share a scale. For products: ROWS 8, 16, 32 or 64,
// STAGES, STEP, TILES, SUMS, BLOCKS of a multiprocessor.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct __align__(64) TensorMap { u64 words[16]; };

#define INT4_BF16 0  // the scale in bf16, then zero + 128 in bf16
#define INT4_FP16 1  // the scale in fp16, then zero + 128 in bf16
#define MXFP4 2      // a byte for each 32 inputs: the scale's exponent + 127
#define NVFP4 3      // a byte for each 16 inputs: 5 bits of exponent + 15 and 3 of mantissa; sums are 2^9 too small
#define TABLE 4      // the scale in fp32, then the zero in fp32; codes stand for numbers of a table

constexpr int SCALE_WORDS = FORM == MXFP4 ? 1 : FORM == NVFP4 ? 2 : (FORM == TABLE ? 2 : 1) * 128 / GROUP;
constexpr int CODES = 4096, TILE = CODES + 64 * 4 * SCALE_WORDS;  // bytes of 64 outputs, 128 inputs
constexpr int STEPS_OF_GROUP = GROUP / 16;

// ---- widening ----

struct Tile { u32 scales[2][SCALE_WORDS], words[2][4]; };  // of a thread: rows g and g + 8; halves of 64 inputs
struct Factors { u32 scale[2], rest[2], zero[2]; float wide_scale[2], wide_zero[2]; };

// The factors of the step `k` of 16 inputs.
__device__ __forceinline__ void find_factors(Factors& f, const u32 (&scales)[2][SCALE_WORDS], int k) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
#if FORM == INT4_BF16
    u32 word = scales[r][k / STEPS_OF_GROUP];
    f.scale[r] = __byte_perm(word, 0, 0x1010);
    f.zero[r] = __byte_perm(word, 0, 0x3232);
#elif FORM == INT4_FP16
    // The scale is the sum of its bf16 and of a rest of 3 bits, whose product with a code is exact.
    u32 word = scales[r][k / STEPS_OF_GROUP];
    float whole, rest;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(whole) : "r"(word));
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(f.scale[r]) : "f"(whole));
    rest = __fsub_rn(whole, __uint_as_float(f.scale[r] << 16));
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(f.rest[r]) : "f"(rest));
    f.zero[r] = __byte_perm(word, 0, 0x3232);
#elif FORM == MXFP4
    // 2^126 times the scale.
    f.scale[r] = __byte_perm(scales[r][0], 0, 0x4040 + 0x0101 * (k / 2)) * 128 + 0x3f003f00;
#elif FORM == NVFP4
    // 2^117 times the scale.
    f.scale[r] = __byte_perm(scales[r][k / 4], 0, 0x4040 + 0x0101 * (k % 4)) * 16 + 0x72807280;
#else
    f.wide_scale[r] = __uint_as_float(scales[r][2 * (k / STEPS_OF_GROUP)]);
    f.wide_zero[r] = __uint_as_float(scales[r][2 * (k / STEPS_OF_GROUP) + 1]);
#endif
  }
}

// Eight codes of a word to a fragment: pairs of row g, row g + 8, then the same 8 inputs further. `number`: what the code
// of this thread's number in its warp, modulo 16, stands for.
__device__ __forceinline__ void widen(u32 (&a)[4], u32 word, const Factors& f, float number) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int r = i & 1;
#if FORM == INT4_BF16 || FORM == INT4_FP16
    u32 v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word >> 4 * i), "r"(0x000f000f), "r"(0x43004300));  // 128 + code
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(v), "r"(f.zero[r]));
#if FORM == INT4_FP16
    u32 rest;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(rest) : "r"(v), "r"(f.rest[r]));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a[i]) : "r"(v), "r"(f.scale[r]), "r"(rest));
#else
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(v), "r"(f.scale[r]));
#endif
#elif FORM == MXFP4 || FORM == NVFP4
    // Bits lie so that three of four codes need no more than a shift. A code's exponent and mantissa are at bits 8 to 6,
    // where a bf16 has them; there they are 2^126 times too small.
    u32 v;
    if (i < 3) {
      v = (word << 3 * i) & 0x81c081c0;
    } else {
      v = (word << 1) & 0x80008000;
      asm("lop3.b32 %0, %1, %2, %0, 0xea;" : "+r"(v) : "r"(word >> 4), "r"(0x00c000c0));
      asm("lop3.b32 %0, %1, %2, %0, 0xea;" : "+r"(v) : "r"(word >> 5), "r"(0x01000100));
    }
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(v), "r"(f.scale[r]));
#else
    float low = __shfl_sync(0xffffffff, number, word >> 4 * i & 15), high = __shfl_sync(0xffffffff, number, word >> 4 * i + 16 & 15);
    low = __fmul_rn(__fsub_rn(low, f.wide_zero[r]), f.wide_scale[r]);
    high = __fmul_rn(__fsub_rn(high, f.wide_zero[r]), f.wide_scale[r]);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(a[i]) : "f"(high), "f"(low));
#endif
  }
}

// Four steps of 16 inputs, of the half that begins with the step FIRST.
template <int FIRST>
__device__ __forceinline__ void widen_half(u32 (&a)[4][4], const Tile& tile, float number) {
  Factors f;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (k % STEPS_OF_GROUP == 0) find_factors(f, tile.scales, FIRST + k);
    widen(a[k], tile.words[FIRST / 4][k], f, number);
  }
}

__device__ __forceinline__ float number_of_lane(const float* table) {
  return FORM == TABLE ? table[threadIdx.x & 15] : 0;
}

#ifndef ROWS

// The weight in bf16, [outputs, inputs], as products take it. A block has a tile.
extern "C" __global__ void __launch_bounds__(128) widen_weight(
    const unsigned char* __restrict__ weight, const float* __restrict__ table, u16* __restrict__ into, int outputs,
    int inputs, int steps) {
  int step = blockIdx.x, block = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const unsigned char* from = weight + ((u64)block * steps + step) * TILE;
  float number = number_of_lane(table);
  Tile tile;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint4 words = *(const uint4*)(from + (warp * 2 + half) * 512 + lane * 16);
    tile.words[half][0] = words.x, tile.words[half][1] = words.y, tile.words[half][2] = words.z, tile.words[half][3] = words.w;
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int i = 0; i < SCALE_WORDS; i++)
      tile.scales[r][i] = ((const u32*)(from + CODES))[(warp * 16 + g + 8 * r) * SCALE_WORDS + i];
  u32 a[2][4][4];
  widen_half<0>(a[0], tile, number);
  widen_half<4>(a[1], tile, number);
#pragma unroll
  for (int i = 0; i < 32; i++) {
    int half = i / 16, k = i / 4 % 4, part = i % 4;
    int row = block * 64 + warp * 16 + g + 8 * (part & 1), column = step * 128 + half * 64 + k * 16 + (part >> 1) * 8 + 2 * t;
    u64 place = (u64)row * inputs + column;
    if (row >= outputs) continue;
    if (column < inputs) into[place] = (u16)a[half][k][part];
    if (column + 1 < inputs) into[place + 1] = (u16)(a[half][k][part] >> 16);
  }
}

// Sums of the library, in fp32, to y in bf16.
extern "C" __global__ void __launch_bounds__(256) finish_sums(
    const float* __restrict__ sums, const float* __restrict__ output_scales, const u16* __restrict__ bias,
    u16* __restrict__ y, int outputs, int y_row, int is_scaled, int has_bias) {
  int output = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
  if (output >= outputs) return;
  float sum = sums[(u64)row * outputs + output];
  if (is_scaled) sum = __fmul_rn(sum, output_scales[output]);
  if (has_bias) sum = __fadd_rn(sum, __uint_as_float((u32)bias[output] << 16));
  u16 value;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value) : "f"(sum));
  y[(u64)row * y_row + output] = value;
}

#else

constexpr int BOX = ROWS * 128, X_STAGE = 2 * STEP * BOX;
constexpr int W_BYTES = TILES * TILE * STEP;

// ---- barriers, copies, products ----

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ __forceinline__ void fetch_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ u64 descriptor(u32 place, u32 more) {
  u64 word;
  asm("mov.b64 %0, {%1, %2};" : "=l"(word) : "r"(place + (more >> 4)), "r"(1 << 30 | 1024 >> 4));
  return word;
}

#define F4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define F8(x, i) F4(x, i), F4(x, i + 4)
#define F16(x, i) F8(x, i), F8(x, i + 8)
__device__ __forceinline__ void multiply(float (&x)[4], const u32* a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
               : F4(x, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(float (&x)[8], const u32* a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
               : F8(x, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(float (&x)[16], const u32* a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
               "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
               : F16(x, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply(float (&x)[32], const u32* a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
               : F16(x, 0), F16(x, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// Keeps a fragment in its registers: the assembler makes products wait for each other where it might share them.
__device__ __forceinline__ void pin(u32 (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 16; k++) asm volatile("" : "+r"(a[k / 4][k % 4])::"memory");
}

__device__ __forceinline__ void load_word(u32& word, u32 from) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from));
}
__device__ __forceinline__ void load_words(u32& a, u32& b, u32 from) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from));
}
__device__ __forceinline__ void load_words(u32* a, u32 from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from));
}

// Four matrices of 8 rows and 8 inputs, whose rows are at the address that each thread gives.
__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
}
__device__ __forceinline__ void multiply_alone(float* sum, const u32* a, const u32* x) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : F4(sum, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(x[0]), "r"(x[1]));
}

extern "C" __global__ void __launch_bounds__(TILES * 128 + 32, BLOCKS)
#if SUMS > 1
__cluster_dims__(SUMS, 1, 1)
#endif
packed_linear(
    const unsigned char* __restrict__ weight, const __grid_constant__ TensorMap x_map, u16* __restrict__ y,
    const float* __restrict__ table, const float* __restrict__ output_scales, const u16* __restrict__ bias, int rows,
    int outputs, int all, int y_row, int is_scaled, int has_bias) {
  extern __shared__ unsigned char shared[];
  u32 memory = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
  u32 x_memory = memory, w_memory = memory + STAGES * X_STAGE, full = w_memory + STAGES * W_BYTES, empty = full + 8 * STAGES;
  u32 parts = (empty + 8 * STAGES + 15) & ~15u;
  int part = blockIdx.x % SUMS, block = blockIdx.x / SUMS;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      init_barrier(full + 8 * s, 1);
      init_barrier(empty + 8 * s, TILES * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#if SUMS > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  // `all` is the number of 128 inputs, a multiple of SUMS * STEP.
  int steps = all / SUMS, start = part * steps;
  int group = threadIdx.x >> 7;
  if (group == TILES) {
    if (threadIdx.x & 31) return;
    const unsigned char* from = weight + ((u64)block * TILES * all + start) * TILE;
    int tiles = min(TILES, (outputs + 63) / 64 - block * TILES);
    int stages = steps / STEP, early = min(stages, STAGES);
    // Rows of `x` that are not there are not written: their columns of the products are not read.
    u32 bytes = 2 * STEP * rows * 128 + tiles * STEP * TILE;
    for (int i = 0; i < early; i++) {
      expect(full + 8 * i, bytes);
      for (int g = 0; g < tiles; g++)
        fetch_bytes(w_memory + i * W_BYTES + g * TILE * STEP, from + ((u64)g * all + i * STEP) * TILE, TILE * STEP, full + 8 * i);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int i = 0; i < early; i++)
      for (int h = 0; h < 2 * STEP; h++)
        fetch(x_memory + i * X_STAGE + h * BOX, &x_map, (start + i * STEP) * 128 + h * 64, 0, full + 8 * i);
    int s = 0;
    u32 phase = 0;
    for (int i = early; i < stages; i++) {
      wait(empty + 8 * s, phase);
      expect(full + 8 * s, bytes);
      for (int g = 0; g < tiles; g++)
        fetch_bytes(w_memory + s * W_BYTES + g * TILE * STEP, from + ((u64)g * all + i * STEP) * TILE, TILE * STEP, full + 8 * s);
      for (int h = 0; h < 2 * STEP; h++)
        fetch(x_memory + s * X_STAGE + h * BOX, &x_map, (start + i * STEP) * 128 + h * 64, 0, full + 8 * s);
      if (++s == STAGES) s = 0, phase ^= 1;
    }
    return;
  }
  int tile = block * TILES + group;
  int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float number = number_of_lane(table);
  float sum[ROWS / 2];
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) sum[i] = 0;
  Tile following;
  auto load = [&](int stage, int sub) {
    u32 w = w_memory + stage * W_BYTES + (group * STEP + sub) * TILE;
#pragma unroll
    for (int half = 0; half < 2; half++) load_words(following.words[half], w + (warp * 2 + half) * 512 + lane * 16);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 from = w + CODES + (warp * 16 + g + 8 * r) * 4 * SCALE_WORDS, *to = following.scales[r];
      if constexpr (SCALE_WORDS == 1) {
        load_word(to[0], from);
      } else if constexpr (SCALE_WORDS == 2) {
        load_words(to[0], to[1], from);
      } else {
#pragma unroll
        for (int i = 0; i < SCALE_WORDS; i += 4) load_words(to + i, from + 4 * i);
      }
    }
  };
  wait(full, 0);
  load(0, 0);
  int stage = 0;
  u32 phase = 0;
#if ROWS <= 16
  // Instructions of a warp: of so few rows those of four warps take longer.
  int of_matrix = lane >> 3, of_row = lane & 7;
  u32 row_place = of_row * 128, chunk_places[2];
#pragma unroll
  for (int i = 0; i < 2; i++) chunk_places[i] = row_place + (((i * 4 + of_matrix) ^ of_row) << 4);
  for (int i = 0; i < steps; i += STEP) {
    int here = stage;
    u32 x_stage = x_memory + here * X_STAGE;
    if (++stage == STAGES) stage = 0, phase ^= 1;
#pragma unroll
    for (int sub = 0; sub < STEP; sub++) {
      Tile now = following;
      if (sub + 1 < STEP) {
        load(here, sub + 1);
      } else if (i + STEP < steps) {
        wait(full + 8 * stage, phase);
        load(stage, 0);
      }
      u32 x[ROWS / 8][4][4];
      u32 a[4][4];
#pragma unroll
      for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          load_matrices(x[n][j], x_stage + sub * 2 * BOX + j / 2 * BOX + n * 1024 + chunk_places[j & 1]);
      widen_half<0>(a, now, number);
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) multiply_alone(sum + 4 * n, a[k], x[n][k / 2] + 2 * (k & 1));
      widen_half<4>(a, now, number);
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) multiply_alone(sum + 4 * n, a[k], x[n][2 + k / 2] + 2 * (k & 1));
    }
    arrive(empty + 8 * here);
  }
#else
  // A half's products run while the next half is widened, of the same 128 inputs or of the next ones.
  u32 first[4][4], second[4][4];
  widen_half<0>(first, following, number);
  int before = 0;
  for (int i = 0; i < steps; i += STEP) {
    int here = stage;
    u32 x_stage = __shfl_sync(0xffffffff, x_memory + here * X_STAGE, 0);  // so that the compiler sees that it is one for all
    if (++stage == STAGES) stage = 0, phase ^= 1;
#pragma unroll
    for (int sub = 0; sub < STEP; sub++) {
      u32 x = x_stage + sub * 2 * BOX;
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply(sum, first[k], descriptor(x >> 4, k * 32));
      end_products();
      Tile now = following;
      if (sub + 1 < STEP) {
        load(here, sub + 1);
      } else if (i + STEP < steps) {
        wait(full + 8 * stage, phase);
        load(stage, 0);
      }
      wait_products<1>();
      if (sub == 0 && i > 0) arrive(empty + 8 * before);
      widen_half<4>(second, now, number);
      pin(second);
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply(sum, second[k], descriptor((x + BOX) >> 4, k * 32));
      end_products();
      wait_products<1>();
      if (i + sub + 1 < steps) widen_half<0>(first, following, number);
    }
    before = here;
  }
  wait_products<0>();
#endif
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(sum[i])::"memory");
#if SUMS > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  int place = (group * (ROWS / 2) * 128 + (threadIdx.x & 127)) * 4;
  constexpr int PART = TILES * ROWS * 64 * 4;
  if (part > 0) {
    u32 theirs;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(theirs) : "r"(parts + (part - 1) * PART + place));
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(theirs + i * 512), "f"(sum[i]) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  if (part > 0) return;
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#pragma unroll
  for (int p = 0; p < SUMS - 1; p++)
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
      float more;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(more) : "r"(parts + p * PART + place + i * 512));
      sum[i] = __fadd_rn(sum[i], more);
    }
#endif
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int output = tile * 64 + warp * 16 + g + 8 * r;
    if (output >= outputs) continue;
    float scale = is_scaled ? output_scales[output] : 1.0f;
    float more = has_bias ? __uint_as_float((u32)bias[output] << 16) : 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++) {
      // Of 8 rows a thread has two, for both of its outputs.
      int row = (i >> 1) * 8 + 2 * t + (i & 1);
      float result = sum[(i >> 1) * 4 + r * 2 + (i & 1)];
      if (is_scaled) result = __fmul_rn(result, scale);
      if (has_bias) result = __fadd_rn(result, more);
      u16 value;
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value) : "f"(result));
      if (row < rows) y[(u64)row * y_row + output] = value;
    }
  }
}

#endif
