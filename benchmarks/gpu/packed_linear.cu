// y = x Wᵀ for few rows, with a weight of 4 bits that is widened to bf16 in registers.
//
// A number of the weight is the bf16 to which (code − zero) · scale rounds, so that sums have the bits of a product with
// the widened weight. Inputs are added up in order by one accumulator, or by SPLITS of them, one after the other's
// inputs, which are then added in order: the library gives the same bits when it adds such products to an fp32 result.
//
// A block has a warp that fetches and GROUPS groups of four warps, each of which multiplies 64 outputs (wgmma with the
// weight from registers). A stage is STEP times 128 inputs: for each group the codes in the order in which threads read
// them and 64 words (scale, zero + 128), and the rows, which all groups share. The blocks of a cluster have a split each.
//
// Macros: ROWS 8, 16, 32 or 64, STAGES, STEP, GROUPS, SPLITS.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct __align__(64) TensorMap { u64 words[16]; };

constexpr int CODES = 4096, SCALES = 256, TILE = CODES + SCALES;  // bytes of 64 outputs, 128 inputs
// STEP: how often 128 inputs are in a stage.
constexpr int BOX = ROWS * 128, X_STAGE = 2 * STEP * BOX;
constexpr int W_BYTES = GROUPS * TILE * STEP;

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
__device__ __forceinline__ void pin(u32 (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 16; k++) asm volatile("" : "+r"(a[k / 4][k % 4])::"memory");
}

// Eight codes of a word to a fragment of 16 x 16: pairs of row g, row g + 8, then the same 8 inputs further.
__device__ __forceinline__ void widen(u32 (&a)[4], u32 word, const u32 (&scale)[2], const u32 (&zero)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word >> 4 * i), "r"(0x000f000f), "r"(0x43004300));
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(v), "r"(zero[i & 1]));
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(v), "r"(scale[i & 1]));
  }
}

extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 32)
#if SPLITS > 1
__cluster_dims__(SPLITS, 1, 1)
#endif
packed_linear(
    const unsigned char* __restrict__ weight, const __grid_constant__ TensorMap x_map, u16* __restrict__ y, int rows,
    int outputs, int inputs, int y_row) {
  extern __shared__ unsigned char shared[];
  u32 memory = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
  u32 x_memory = memory, w_memory = memory + STAGES * X_STAGE, full = w_memory + STAGES * W_BYTES, empty = full + 8 * STAGES;
  u32 parts = (empty + 8 * STAGES + 15) & ~15u;
  int part = blockIdx.x % SPLITS, block = blockIdx.x / SPLITS;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      init_barrier(full + 8 * s, 1);
      init_barrier(empty + 8 * s, GROUPS * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#if SPLITS > 1
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  int all = inputs / 128, steps = all / SPLITS, start = part * steps;
  int group = threadIdx.x >> 7;
  if (group == GROUPS) {
    if (threadIdx.x & 31) return;
    const unsigned char* from = weight + ((u64)block * GROUPS * all + start) * TILE;
    int tiles = min(GROUPS, outputs / 64 - block * GROUPS);
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
  int tile = block * GROUPS + group;
  bool there = tile * 64 < outputs;
  int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float sum[ROWS / 2];
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) sum[i] = 0;
  struct Codes { u32 scale[2], zero[2], words[2][4]; } codes;
  auto load = [&](int stage, int sub) {
    u32 w = w_memory + stage * W_BYTES + (group * STEP + sub) * TILE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32* c = codes.words[half];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(w + (warp * 2 + half) * 512 + lane * 16));
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(codes.scale[r]) : "r"(w + CODES + (warp * 16 + g + 8 * r) * 4));
  };
  auto spread = [&]() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      codes.zero[r] = __byte_perm(codes.scale[r], 0, 0x3232);
      codes.scale[r] = __byte_perm(codes.scale[r], 0, 0x1010);
    }
  };
  u32 next[4][4];
  wait(full, 0);
  load(0, 0);
  spread();
#pragma unroll
  for (int k = 0; k < 4; k++) widen(next[k], codes.words[0][k], codes.scale, codes.zero);
  int stage = 0;
  u32 phase = 0;
  for (int i = 0; i < steps; i += STEP) {
    int here = stage;
    if (++stage == STAGES) stage = 0, phase ^= 1;
#pragma unroll
    for (int sub = 0; sub < STEP; sub++) {
      u32 x = x_memory + here * X_STAGE + sub * 2 * BOX;
      Codes now = codes;
      if (sub + 1 < STEP) {
        load(here, sub + 1);
      } else if (i + STEP < steps) {
        wait(full + 8 * stage, phase);
        load(stage, 0);
      }
      u32 a[2][4][4];
#pragma unroll
      for (int k = 0; k < 16; k++) a[0][k / 4][k % 4] = next[k / 4][k % 4];
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply(sum, a[0][k], descriptor(x >> 4, k * 32));
      end_products();
#pragma unroll
      for (int k = 0; k < 4; k++) widen(a[1][k], now.words[1][k], now.scale, now.zero);
      pin(a[1]);
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply(sum, a[1][k], descriptor((x + BOX) >> 4, k * 32));
      end_products();
      if (i + sub + 1 < steps) {
        spread();
#pragma unroll
        for (int k = 0; k < 4; k++) widen(next[k], codes.words[0][k], codes.scale, codes.zero);
      }
      wait_products<0>();
    }
    arrive(empty + 8 * here);
  }
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(sum[i])::"memory");
#if SPLITS > 1
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  int place = (group * (ROWS / 2) * 128 + (threadIdx.x & 127)) * 4;
  constexpr int PART = GROUPS * ROWS * 64 * 4;
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
  for (int p = 0; p < SPLITS - 1; p++)
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
      float more;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(more) : "r"(parts + p * PART + place + i * 512));
      sum[i] = __fadd_rn(sum[i], more);
    }
#endif
  if (!there) return;
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll
  for (int i = 0; i < ROWS / 2; i++) {
    int row = (i >> 2) * 8 + 2 * t + (i & 1), output = tile * 64 + warp * 16 + g + (i >> 1 & 1) * 8;
    u16 value;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value) : "f"(sum[i]));
    if (row < rows) y[(u64)row * y_row + output] = value;
  }
}
