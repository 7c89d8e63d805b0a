// What attention kernels for Hopper share: barriers, the tensor memory accelerator, products of groups of four warps
// ("warpgroups"), and a group's part of online softmax over blocks of 64 keys.
//
// The arithmetic is that of `attention_splits`, operation by operation: roundings are explicit, nothing is fused or
// reordered by the compiler. PTX ISA: "mbarrier", "cp.async.bulk", "wgmma".
//
// Macros: DIM 64 or 128, IS_BF16 (else fp16).

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct __align__(64) TensorMap { u64 words[16]; };

constexpr int BLOCK = 64;
constexpr int BYTES = BLOCK * DIM * 2;  // of a block's keys, or values
constexpr int BOX_BYTES = BLOCK * 128;  // of 64 dimensions of them
constexpr int COLUMNS = BLOCK / 2;      // scores of a block that a thread holds: two rows of 16
constexpr int OUTS = DIM / 2;           // weighted values that a thread holds
constexpr float HIDDEN = -1e30f;

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float divide(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// Two numbers of 16 bits in a word, the first in its low half.
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 word;
#if IS_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}

__device__ __forceinline__ float neighbour(float x, int distance) {
  return __shfl_xor_sync(0xffffffff, x, distance);
}

// ---- barriers in shared memory ----

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// Warps arrive one by one: a warp has read what its own products read.
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

// ---- matrix products of a group of four warps (wgmma) ----

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most PENDING groups of products are under way.
template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// These are computed before this place, and what is computed from them after it.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

// Where a matrix lies in shared memory, in 128-byte rows that are swizzled: PTX ISA, "matrix descriptor". Groups of eight
// rows are 1,024 bytes apart, and `boxes` of 64 columns so many bytes. `more` bytes are added to the address.
__device__ __forceinline__ u64 descriptor(u32 place, u32 more) {
  u64 found;
  asm("mov.b64 %0, {%1, %2};" : "=l"(found) : "r"(place + (more >> 4)), "r"(1 << 30 | 1024 >> 4));
  return found;
}

#if IS_BF16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
#define F4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define F16(x, i) F4(x, i), F4(x, i + 4), F4(x, i + 8), F4(x, i + 12)
#define F32(x, i) F16(x, i), F16(x, i + 16)

// x [64, 64] = or += a [64, 16] b [16, 64]; a in registers, b in shared memory, where its inner dimension is contiguous,
// or (TRANSPOSED) its outer one.
template <int TRANSPOSED>
__device__ __forceinline__ void multiply(float (&x)[32], const u32* a, u64 b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16." TYPES
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
      : F32(x, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}

// x [64, 128], likewise.
template <int TRANSPOSED>
__device__ __forceinline__ void multiply(float (&x)[64], const u32* a, u64 b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16." TYPES
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"
      : F32(x, 0), F32(x, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}

// ---- a group's work ----

// Of a thread, which holds parts of two rows: 0 and 8 rows further.
struct Rows {
  u32 query[DIM / 16][4];
  float top[2], weights[COLUMNS], out[OUTS];
};

// The first of this thread's two rows of the group's, or of the tile's if it has two groups.
__device__ __forceinline__ int first_row_of_thread() { return (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2); }

__device__ __forceinline__ void multiply_keys(float (&score)[COLUMNS], const Rows& rows, u32 keys) {
  begin_products();
#pragma unroll
  for (int k = 0; k < DIM / 16; k++)
    multiply<0>(score, rows.query[k], descriptor(keys >> 4, (k & 3) * 32 + (k >> 2) * BOX_BYTES), k > 0);
  end_products();
}

__device__ __forceinline__ void multiply_values(Rows& rows, const u32 (&weight)[COLUMNS / 2], u32 values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < BLOCK / 16; k++)
    multiply<1>(rows.out, weight + 4 * k, descriptor(values >> 4 | BOX_BYTES >> 4 << 16, k * 2048), 1);
  end_products();
}

// Scores become weights; `shrink`: what earlier sums are multiplied by.
__device__ __forceinline__ void softmax(float (&score)[COLUMNS], Rows& rows, float (&shrink)[2], float scale) {
  float lowered[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float most = fmaxf(score[2 * r], score[2 * r + 1]);
#pragma unroll
    for (int i = 4; i < COLUMNS; i += 4) most = fmaxf(most, fmaxf(score[i + 2 * r], score[i + 2 * r + 1]));
    most = fmaxf(most, neighbour(most, 1));
    most = fmaxf(most, neighbour(most, 2));
    float top = fmaxf(rows.top[r], __fmul_rn(most, scale));
    shrink[r] = power_of_2(rows.top[r] - top);
    rows.top[r] = top;
    lowered[r] = -top;
  }
#pragma unroll
  for (int i = 0; i < COLUMNS; i++) {
    int r = i >> 1 & 1;
    score[i] = power_of_2(__fmaf_rn(score[i], scale, lowered[r]));
    rows.weights[i] = __fmaf_rn(rows.weights[i], shrink[r], score[i]);
  }
}

// A row's sum of weights: by a tree of neighbouring keys, bit by bit of their number from the lowest.
__device__ __forceinline__ float sum_weights(const Rows& rows, int r) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    x[i] = rows.weights[4 * i + 2 * r] + rows.weights[4 * i + 2 * r + 1];
    x[i] += neighbour(x[i], 1);
    x[i] += neighbour(x[i], 2);
  }
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// What a group's threads have written is seen by its products from here on.
__device__ __forceinline__ void share_with_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)(threadIdx.x >> 7)) : "memory");
}

