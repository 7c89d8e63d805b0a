// Decode attention of small items on Hopper: what `_partial` of `decode_attention.py` computes, with the same bits.
//
// A warp works alone. It takes pairs (item, KV head) and goes through their blocks of 64 keys. The tensor memory
// accelerator fills the warp's own ring in shared memory with units, a unit being the keys or the values of one block,
// and runs ahead into the next pair. No warp waits for another one.
//
// Products are turned round: keys, and elements of values, are the rows of matrix instructions, and the queries of an
// item are their eight columns. `IN_FP8`: see `stored_in_fp8.py`.
//
// Defined when it is compiled: HEADS, KV_HEADS, DIM (128 or 256), IN_FP8, WINDOW (0 for none), WARPS of a block, UNITS of
// a ring.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int KEYS = 64;
constexpr int LINE = 128;  // the copy engine swizzles chunks of 16 bytes within lines of so many
constexpr int KEY_LINES = DIM * (IN_FP8 ? 1 : 2) / LINE;
constexpr int SCALES = KEYS * KEY_LINES * LINE;  // where scales lie in a unit
constexpr int UNIT_BYTES = SCALES + (IN_FP8 ? KEYS * 4 : 0);
constexpr int SLOT_BYTES = (UNIT_BYTES + 1023) / 1024 * 1024;  // the swizzle repeats after 1,024 bytes
constexpr int K_STEPS = DIM / 16;  // also tiles of the elements of values
constexpr float HIDDEN = -1e30f;
constexpr u32 ALL = 0xffffffffu;

struct alignas(64) TensorMap {
    u8 bytes[128];
};

DEVICE void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void wait_barrier(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni ready;\n"
        "bra.uni again;\n"
        "ready:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

// A box is a unit. What is read once should not drive out of L2 what is read again.
DEVICE void copy_box(u32 to, const TensorMap *map, int line, u32 barrier) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(map), "r"(0), "r"(line), "r"(barrier), "l"(policy) : "memory");
}

DEVICE void load_matrices(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

DEVICE void load_turned(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

DEVICE float load_shared(u32 at) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

DEVICE u32 turn(u32 matrix) {
    u32 turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(matrix));
    return turned;
}

DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE u32 pack(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE u32 scaled(u32 pair, u32 factors) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(factors), "r"(0x80008000u));
    return product;
}

// The lower bytes of two pairs of e4m3 values, times their vectors' factors, as bf16; `widen_upper`: the upper ones.
DEVICE u32 widen_lower(u32 pairs, u32 factors) {
    return scaled(((pairs << 4) & 0x07f007f0u) | ((pairs << 8) & 0x80008000u), factors);
}

DEVICE u32 widen_upper(u32 pairs, u32 factors) {
    return scaled(((pairs >> 4) & 0x07f007f0u) | (pairs & 0x80008000u), factors);
}

// The factors of two vectors with these scales: what the biases of e4m3 and bf16 differ by is in them.
DEVICE u32 factors_of(float low, float high) {
    const float two_to_120 = 1.329227995784916e36f;
    return pack(__fmul_rn(low, two_to_120), __fmul_rn(high, two_to_120));
}

struct Arguments {
    const u16 *query;
    const int *positions, *table_rows, *order, *block_tables, *bounds, *items;
    float *tops, *totals, *outs;
    float scale;
    int first_line, block_lines, part_lines, head_lines, query_row, query_head, table_row, splits;
};

// A pair as its loads bring it, one after the other. `row` and `position` are those of the tile's row `lane`, and
// `block` is the block number `lane` of the split. `more`: so many splits behind `split` are folded into its results, or
// as many of them as there are.
struct Pair {
    int place, requests, split, more, begin, end, row, position, block;
    const int *table;

    DEVICE int first() const { return __reduce_min_sync(ALL, position); }
    DEVICE int last() const { return __reduce_max_sync(ALL, position); }
    DEVICE int blocks() const { return (min(end, last() + 1) - begin + KEYS - 1) / KEYS; }
};

struct Warp {
    const Arguments &given;
    const TensorMap *map;
    u32 slots, barriers;
    int lane;
    int pairs, stride;
    // The pair that comes next, and how many of its four loads were asked for.
    Pair next;
    int next_pair, asked;
    // What is being fetched: the next pair already (`ahead`), or still the one being computed.
    bool ahead;
    int at, units, block, line;
    const int *table;
    // Units in the ring, where the next one goes, and where the next one to be used is.
    int held, into, from;
    u32 parity;

    DEVICE Warp(const Arguments &given, const TensorMap *map, u32 slots, u32 barriers, int first, int stride)
        : given(given), map(map), slots(slots), barriers(barriers), lane(threadIdx.x & 31), pairs(0), stride(stride),
          next_pair(first), asked(0), ahead(false), at(0), units(0), block(0), line(0), table(nullptr), held(0),
          into(0), from(0), parity(0) {}

    // Ask for one more of the loads of the next pair. Each needs the one before it.
    DEVICE void ask() {
        if (next_pair >= pairs) return;
        if (asked == 0) {
            const int4 item = *(const int4 *)(given.items + (long long)(next_pair / KV_HEADS) * 4);
            next.place = item.x, next.requests = item.y, next.split = item.z, next.more = item.w;
        } else if (asked == 1) {
            next.row = given.order[next.place + min(lane / GROUP, next.requests - 1)];
            next.begin = given.bounds[next.split];
            next.end = given.bounds[min(next.split + next.more + 1, given.splits)];
        } else if (asked == 2) {
            next.position = given.positions[next.row];
            const int leader = __shfl_sync(ALL, next.row, 0);
            next.table = given.block_tables + (long long)given.table_rows[leader] * given.table_row
                + next.begin / KEYS;
        } else if (asked == 3) {
            if (WINDOW) {
                // Before here no row sees anything.
                const int begin = max(next.begin, max(next.first() - WINDOW + 1, 0) / KEYS * KEYS);
                next.table += (begin - next.begin) / KEYS;
                next.begin = begin;
            }
            next.block = lane < next.blocks() ? next.table[lane] : 0;
        } else {
            return;
        }
        ++asked;
    }

    DEVICE bool complete() {
        if (next_pair >= pairs) return false;
        while (asked < 4) ask();
        return true;
    }

    DEVICE void fetch_next() {
        at = 0;
        units = next.blocks() * 2;
        block = next.block;
        table = next.table;
        line = given.first_line + next_pair % KV_HEADS * given.head_lines;
    }

    DEVICE void fill() {
        while (held < UNITS) {
            if (at == units) {
                if (ahead || !complete()) return;
                ahead = true;
                fetch_next();
            }
            if ((at & 63) == 0 && at) block = table[min(at / 2 + lane, units / 2 - 1)];
            const int number = __shfl_sync(ALL, block, at / 2 & 31);
            if (lane == 0) {
                const u32 barrier = barriers + into * 8, slot = slots + into * SLOT_BYTES;
                const int first = line + number * given.block_lines + (at & 1) * given.part_lines;
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(UNIT_BYTES)
                             : "memory");
                copy_box(slot, map, first, barrier);
            }
            ++at;
            ++held;
            into = into + 1 == UNITS ? 0 : into + 1;
        }
    }

    // Wait for the next unit.
    DEVICE u32 unit() {
        const u32 slot = slots + from * SLOT_BYTES;
        wait_barrier(barriers + from * 8, parity);
        if (++from == UNITS) from = 0, parity ^= 1;
        return slot;
    }

    // The unit has been read.
    DEVICE void release() {
        __syncwarp();
        --held;
        ask();
        fill();
    }
};

// Where values of hidden keys lie, nobody wrote: 0 · NaN would be NaN.
DEVICE void clear_hidden(u32 slot, int shown, int lane) {
    for (int chunk = shown * KEY_LINES * 8 + lane; chunk < KEYS * KEY_LINES * 8; chunk += 32)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(slot + chunk * 16), "r"(0) : "memory");
    if (IN_FP8)
        for (int key = shown + lane; key < KEYS; key += 32) {
            const int chunk = (key & 31) >> 2 ^ key >> 5;
            asm volatile("st.shared.b32 [%0], %1;"
                         ::"r"(slot + SCALES + (key >> 5) * LINE + chunk * 16 + (key & 3) * 4), "r"(0) : "memory");
        }
    // The copy engine writes there next.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}

// Where in a unit the chunk `chunk` of a key's 16 bytes lies.
DEVICE u32 place(int key, int chunk) {
    const int line = key * KEY_LINES + (chunk >> 3);
    return line * LINE + ((chunk ^ line) & 7) * 16;
}

// The scores [64 keys, 8 columns] of a unit of keys: tile i has the keys 16 · i to 16 · i + 15.
DEVICE void score(float (&scores)[4][4], u32 slot, const u32 (&query)[K_STEPS][2], int lane) {
    const int key = (lane & 7) + (lane & 8), upper = lane >> 4, g = lane >> 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 tile = slot + i * 16 * KEY_LINES * LINE;
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[i][j] = 0.0f;
        if (IN_FP8) {
            const u32 scale = slot + SCALES + (i >> 1) * LINE + (i & 1) * 64
                + (((g >> 2) * 16 + (g & 3) * 4) ^ (i >> 1) * 16);
            const float one = load_shared(scale), other = load_shared(scale + 32);
            const u32 factors[2] = {factors_of(one, one), factors_of(other, other)};
            constexpr int HALF = K_STEPS / 2;
            u32 pairs[HALF][4];
#pragma unroll
            for (int c = 0; c < HALF; ++c) load_matrices(pairs[c], tile + place(key, 2 * c + upper));
#pragma unroll
            for (int c = 0; c < K_STEPS; ++c) {
                u32 keys[4];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    keys[j] = c < HALF ? widen_lower(pairs[c % HALF][j], factors[j & 1])
                                       : widen_upper(pairs[c % HALF][j], factors[j & 1]);
                multiply(scores[i], keys, query[c]);
            }
        } else {
#pragma unroll
            for (int c = 0; c < K_STEPS; ++c) {
                u32 keys[4];
                load_matrices(keys, tile + place(key, 2 * c + upper));
                multiply(scores[i], keys, query[c]);
            }
        }
    }
}

// Add the values of a unit, weighted: tile i of `out` has the elements 16 · i to 16 · i + 15.
DEVICE void add_values(float (&out)[K_STEPS][4], u32 slot, const u32 (&weights)[4][2], int lane) {
    const int key = (lane & 7) + ((lane & 16) >> 1), upper = lane >> 3 & 1, t = lane & 3;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const u32 tile = slot + c * 16 * KEY_LINES * LINE;
        u32 factors[2];
        if (IN_FP8) {
            const u32 scale = slot + SCALES + (c >> 1) * LINE + (c & 1) * 64
                + (((t >> 1) * 16 + (t & 1) * 8) ^ (c >> 1) * 16);
            factors[0] = factors_of(load_shared(scale), load_shared(scale + 4));
            factors[1] = factors_of(load_shared(scale + 32), load_shared(scale + 36));
        }
#pragma unroll
        for (int i = 0; i < (IN_FP8 ? K_STEPS / 2 : K_STEPS); ++i) {
            u32 words[4];
            load_turned(words, tile + place(key, 2 * i + upper));
            if (IN_FP8) {
                u32 lower[4], higher[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    lower[j] = widen_lower(words[j], factors[j >> 1]);
                    higher[j] = widen_upper(words[j], factors[j >> 1]);
                }
                multiply(out[i], lower, weights[c]);
                multiply(out[(i + K_STEPS / 2) % K_STEPS], higher, weights[c]);
            } else {
                multiply(out[i], words, weights[c]);
            }
        }
    }
}

DEVICE void attend(Warp &warp, const Pair &pair, int kv_head) {
    const Arguments &given = warp.given;
    const int lane = warp.lane, g = lane >> 2, t = lane & 3;
    const int rows = pair.requests * GROUP;
    u32 query[K_STEPS][2];
    {
        const long long row = __shfl_sync(ALL, pair.row, g);
        const u16 *from = given.query + row * given.query_row + (kv_head * GROUP + g % GROUP) * given.query_head;
#pragma unroll
        for (int c = 0; c < K_STEPS; ++c)
#pragma unroll
            for (int j = 0; j < 2; ++j) query[c][j] = g < rows ? *(const u32 *)(from + c * 16 + j * 8 + t * 2) : 0;
    }
    // Of the columns 2t and 2t + 1: what the splits before this one come to.
    float all_tops[2] = {HIDDEN, HIDDEN}, all_totals[2] = {0.0f, 0.0f};
    const int first_position = pair.first(), last_position = pair.last();
    const int stop = min(pair.end, last_position + 1);
    int start = pair.begin;
    for (int split = pair.split; start < stop; ++split) {
        const int end = min(given.bounds[split + 1], stop);
        // Of the same columns: the largest score so far, for each key the sum of its weights, and weighted values.
        float tops[2] = {HIDDEN, HIDDEN}, weights[4][4], out[K_STEPS][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[i][j] = 0.0f;
#pragma unroll
            for (int i = 0; i < K_STEPS; ++i) out[i][j] = 0.0f;
        }
        for (; start < end; start += KEYS) {
            float scores[4][4], shrink[2];
            score(scores, warp.unit(), query, lane);
            warp.release();
            // The last key that a column sees, from this thread's first one; with a window, those up to `old` are not.
            int seen[2], old[2];
            const bool masked = start + KEYS > first_position + 1 || (WINDOW && start <= last_position - WINDOW);
            if (masked) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    seen[j] = __shfl_sync(ALL, pair.position, t * 2 + j) - start - g;
                    old[j] = WINDOW ? seen[j] - WINDOW : -KEYS;
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        if (i * 16 > seen[j] || i * 16 <= old[j]) scores[i][j] = HIDDEN;
                        if (i * 16 + 8 > seen[j] || i * 16 + 8 <= old[j]) scores[i][j + 2] = HIDDEN;
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float most = fmaxf(scores[0][j], scores[0][j + 2]);
#pragma unroll
                for (int i = 1; i < 4; ++i) most = fmaxf(most, fmaxf(scores[i][j], scores[i][j + 2]));
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, apart));
                const float top = fmaxf(tops[j], __fmul_rn(most, given.scale));
                shrink[j] = exp2_of(__fsub_rn(tops[j], top));
                tops[j] = top;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    scores[i][j] = exp2_of(__fmaf_rn(scores[i][j], given.scale, -tops[j & 1]));
            if (masked) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int key = i * 16 + (j >> 1) * 8;
                        // Where nothing was seen yet, the top is itself a hidden score.
                        if (key > seen[j & 1] || key <= old[j & 1]) scores[i][j] = 0.0f;
                    }
            }
            u32 packed[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) weights[i][j] = __fmaf_rn(weights[i][j], shrink[j & 1], scores[i][j]);
#pragma unroll
                for (int j = 0; j < 2; ++j) packed[i][j] = turn(pack(scores[i][2 * j], scores[i][2 * j + 1]));
            }
#pragma unroll
            for (int i = 0; i < K_STEPS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) out[i][j] = __fmul_rn(out[i][j], shrink[j & 1]);
            const u32 slot = warp.unit();
            if (start + KEYS > last_position + 1) clear_hidden(slot, last_position + 1 - start, lane);
            add_values(out, slot, packed, lane);
            warp.release();
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            // The sum over the keys, by a tree of neighbours.
            float sums[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float halves[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    halves[half] = weights[i][half * 2 + j];
#pragma unroll
                    for (int apart = 4; apart < 32; apart *= 2)
                        halves[half] = __fadd_rn(halves[half], __shfl_xor_sync(ALL, halves[half], apart));
                }
                sums[i] = __fadd_rn(halves[0], halves[1]);
            }
            const float total = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
            // Fold the split into those before it, of which there may be none.
            const float top = fmaxf(all_tops[j], tops[j]);
            const float shrink = exp2_of(__fsub_rn(all_tops[j], top)), split_shrink = exp2_of(__fsub_rn(tops[j], top));
            all_totals[j] = __fmaf_rn(all_totals[j], shrink, __fmul_rn(total, split_shrink));
            all_tops[j] = top;
            const int r = t * 2 + j;
            const long long row = __shfl_sync(ALL, pair.row, r);
            const long long at = (row * given.splits + pair.split) * HEADS + kv_head * GROUP + r % GROUP;
            float *const to = given.outs + at * DIM + g;
            if (r >= rows) continue;
            if (end == stop && g == 0) given.tops[at] = top, given.totals[at] = all_totals[j];
            float before[2 * K_STEPS];
#pragma unroll
            for (int i = 0; i < 2 * K_STEPS; ++i) before[i] = split > pair.split ? to[i * 8] : 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * K_STEPS; ++i)
                to[i * 8] = __fmaf_rn(before[i], shrink, __fmul_rn(out[i >> 1][j + (i & 1) * 2], split_shrink));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) decode_partial(
    const __grid_constant__ TensorMap map, const u16 *query, const int *positions, const int *table_rows,
    const int *order, const int *block_tables, const int *bounds, const int *items, const int *count, float *tops,
    float *totals, float *outs, float scale, int first_line, int block_lines, int part_lines, int head_lines,
    int query_row, int query_head, int table_row, int splits, int planned) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[WARPS][UNITS];
    const Arguments given = {query, positions, table_rows, order, block_tables, bounds, items, tops, totals, outs,
                             scale, first_line, block_lines, part_lines, head_lines, query_row, query_head, table_row,
                             splits};
    const int index = threadIdx.x / 32;
    const u32 ring = (shared_address(memory) + 1023) / 1024 * 1024 + index * UNITS * SLOT_BYTES;
    Warp warp(given, &map, ring, shared_address(barriers[index]), index * gridDim.x + blockIdx.x, WARPS * gridDim.x);
    if (warp.lane == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        for (int i = 0; i < UNITS; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(warp.barriers + i * 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    // `planned`: the plan is there when the kernel begins, since the one before it waited before it let this one begin.
    if (!planned) wait_for_inputs();
    warp.pairs = *count * KV_HEADS;
    bool more = warp.complete();
    wait_for_inputs();
    let_next_begin();
    while (more) {
        const Pair pair = warp.next;
        const int kv_head = warp.next_pair % KV_HEADS;
        if (!warp.ahead) warp.fetch_next();
        warp.ahead = false;
        warp.next_pair += warp.stride;
        warp.asked = 0;
        warp.fill();
        attend(warp, pair, kv_head);
        more = warp.complete();
    }
}
