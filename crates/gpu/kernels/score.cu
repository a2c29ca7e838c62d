// Scoring of PQ codes: the query's look-up table, distinct candidate ids, their distances, the nearest of them.
//
// NVRTC compiles this text for a GPU, a C++ compiler for a CPU. On a CPU each phase between two barriers is a loop over
// the threads of a block. Hence the one rule of this file: no private value of a thread lives across a barrier. What
// is declared outside of a PHASE is equal for all threads of the block.
//
// Every float is computed with the operations, and in the order, of the crate `stratann-kernel`, so that the integer
// table has the same bits. The mirror of the structs and constants is `src/layout.rs`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define JOBS_MAX 64
#define CENTROIDS 256
#define LANES 16
// Keys that a thread block sorts in shared memory; `keep` is at most this.
#define SORTED_MAX 4096
#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)
#define DIGIT_GROUPS 64
#define DROPPED 0xffffffffffffffffull
#define EMPTY 0xffffffffu
// Limit of the sum of the entries, of the coarse term and of the correction.
#define TERM_LIMIT 1073741824.0f
#define ENTRY_MAX 65535.0f
#define NORMAL_MIN 1.17549435e-38f

// What all kernels of a batch are given. Addresses are of device memory; `*_at` are byte offsets in a query's block.
struct Params {
    u64 codes, rotation, coarse, centroids, starts, blocks, block_bytes;
    u32 codes_count, code_bytes, dim, wide, stages, subspaces, coarse_count, ip;
    float correction_low, correction_step;
    u32 results_at, keys_at, hash_at, rotated_at, centred_at, floats_at, spans_at, table_at;
    // Bytes of the table that the kernel `distances` copies to shared memory.
    u32 shared_bytes;
    u32 jobs;
    u32 slots[JOBS_MAX];
};

// Start of a query's block: what the host sends. The query's floats follow, then the ranges, then the ids.
struct JobHeader {
    u32 ranges, range_ids, ids, keep, exclude, hash_size, query_at, ranges_at, ids_at, unused;
};

// First id of a range, and how many ids the ranges before it have. Ranges ascend and are disjoint.
struct Range {
    u32 first, before;
};

struct ResultHeader {
    u32 count, distinct, distance_max, unused;
};

// Minimum and range of the 256 terms of one byte of a code.
struct Span {
    float low, range;
};

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name(const Params p)
#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_TABLE(name) extern __shared__ __align__(16) u8 name[]
#define GRID const u32 block_x = blockIdx.x, block_y = blockIdx.y, grid_x = gridDim.x, threads = blockDim.x; \
    (void)block_x; (void)grid_x; (void)threads
#define PHASE(...) { const u32 t = threadIdx.x; __VA_ARGS__ } __syncthreads();
// Reads a shared value that a later phase may change.
#define UNIFORM(type, name, value) const type name = (value); __syncthreads()

#else

#define DEVICE static inline
#define KERNEL(name) static void name(const Params& p, const Block& block)
#define SHARED(type, name, count) type name[count]
#define SHARED_TABLE(name) u8* const name = block.shared
#define GRID const u32 block_x = block.x, block_y = block.y, grid_x = block.grid_x, threads = block.threads; \
    const u32 order = block.order; (void)block_x; (void)grid_x
// The order of threads is that of an odd multiple, so that tests find what depends on it.
#define PHASE(...) for (u32 n = 0; n < threads; n++) { \
    const u32 t = (n * (2 * order + 1) + order) & (threads - 1); __VA_ARGS__ }
#define UNIFORM(type, name, value) const type name = (value)

struct Block {
    u32 x, y, grid_x, threads, order;
    u8* shared;
};

DEVICE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float __fadd_rn(float a, float b) { return a + b; }
DEVICE float __fsub_rn(float a, float b) { return a - b; }
DEVICE float __fmul_rn(float a, float b) { return a * b; }
DEVICE float __fdiv_rn(float a, float b) { return a / b; }

union FloatBits {
    float value;
    u32 bits;
};
DEVICE u32 __float_as_uint(float value) { FloatBits f; f.value = value; return f.bits; }
DEVICE float __uint_as_float(u32 bits) { FloatBits f; f.bits = bits; return f.value; }
DEVICE u32 __clz(u32 x) { return x == 0 ? 32 : (u32)__builtin_clz(x); }

DEVICE u32 atomicAdd(u32* at, u32 x) { const u32 old = *at; *at = old + x; return old; }
DEVICE u32 atomicMax(u32* at, u32 x) { const u32 old = *at; if (x > old) *at = x; return old; }
DEVICE int atomicMax(int* at, int x) { const int old = *at; if (x > old) *at = x; return old; }
DEVICE int atomicMin(int* at, int x) { const int old = *at; if (x < old) *at = x; return old; }
DEVICE u32 atomicCAS(u32* at, u32 expected, u32 x) {
    const u32 old = *at;
    if (old == expected) *at = x;
    return old;
}

#endif

DEVICE u8* block_of(const Params& p, u32 job) { return (u8*)(p.blocks + p.slots[job] * p.block_bytes); }

DEVICE const JobHeader& header_of(const u8* base) { return *(const JobHeader*)base; }

DEVICE ResultHeader& result_of(const Params& p, u8* base) { return *(ResultHeader*)(base + p.results_at); }

// Bytes of a code that have a block of 256 terms of 16 bits.
DEVICE u32 entry_count(const Params& p) { return p.code_bytes - p.wide; }

// Maps a float to an integer of the same order; it is its own inverse.
DEVICE int ordered(float x) {
    const int bits = (int)__float_as_uint(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

DEVICE float unordered(int x) { return __uint_as_float((u32)(x ^ ((x >> 31) & 0x7fffffff))); }

// One lane of the sum over a row: every sixteenth component from `lane` on.
DEVICE float lane_sum(const float* vector, const float* row, u32 dim, u32 lane, bool squared) {
    float sum = 0.0f;
    for (u32 i = lane; i < dim; i += LANES) {
        if (squared) {
            const float difference = __fsub_rn(vector[i], row[i]);
            sum = __fmaf_rn(difference, difference, sum);
        } else {
            sum = __fmaf_rn(vector[i], row[i], sum);
        }
    }
    return sum;
}

// Folds the lanes of one row for each 16 threads, in the fixed order.
#define FOLD(sums) \
    for (u32 half = LANES / 2; half > 0; half /= 2) { \
        PHASE(if (t % LANES < half) sums[t] = __fadd_rn(sums[t], sums[t + half]);) \
    }

// The rotated query, also less the origin. Clears what the next kernels add to. A block has 16 rows of the rotation.
KERNEL(rotate) {
    GRID;
    SHARED(float, sums, 256);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const float* const query = (const float*)(base + job.query_at);
    float* const rotated = (float*)(base + p.rotated_at);
    float* const centred = (float*)(base + p.centred_at);
    const float* const origin = (const float*)p.coarse;
    const u32 first_row = block_x * (threads / LANES);
    PHASE(
        u32* const hash = (u32*)(base + p.hash_at);
        for (u64 i = (u64)block_x * threads + t; i < job.hash_size; i += (u64)grid_x * threads) hash[i] = EMPTY;
        if (block_x == 0 && t == 0) {
            ResultHeader& result = result_of(p, base);
            result.count = 0;
            result.distinct = 0;
            result.distance_max = 0;
            result.unused = 0;
        }
        const u32 row = first_row + t / LANES;
        const float* const at = (const float*)p.rotation + (u64)row * p.dim;
        sums[t] = row < p.dim && p.rotation != 0 ? lane_sum(query, at, p.dim, t % LANES, false) : 0.0f;
    )
    if (p.rotation != 0) {
        FOLD(sums)
    }
    PHASE(
        const u32 row = first_row + t / LANES;
        if (row < p.dim && t % LANES == 0) {
            const float x = p.rotation != 0 ? sums[t] : query[row];
            rotated[row] = x;
            centred[row] = p.ip ? x : __fsub_rn(x, origin[row]);
        }
    )
}

// The value of a row's term from its sum.
DEVICE float weighted(float sum, bool squared, float weight) { return squared ? sum : __fmul_rn(sum, weight); }

// Term of centroid k of a subspace: components in order, with separate multiplications and additions.
DEVICE float subspace_term(const Params& p, const float* q, const float* centroids, u32 width, u32 k) {
    float sum = 0.0f;
    for (u32 i = 0; i < width; i++) {
        const float x = q[i];
        const float r = centroids[i * CENTROIDS + k];
        float term;
        if (p.ip) {
            term = __fmul_rn(-x, r);
        } else if (p.wide) {
            term = __fmul_rn(__fsub_rn(r, __fmul_rn(2.0f, x)), r);
        } else {
            const float difference = __fsub_rn(x, r);
            term = __fmul_rn(difference, difference);
        }
        sum = __fadd_rn(sum, term);
    }
    return sum;
}

// The float terms of one byte of a code and their span. Block 0 has the first coarse stage, the others follow the code.
KERNEL(terms) {
    GRID;
    SHARED(float, sums, 256);
    SHARED(float, values, 256);
    SHARED(int, bounds, 2);
    u8* const base = block_of(p, block_y);
    const float* const rotated = (const float*)(base + p.rotated_at);
    const float* const centred = (const float*)(base + p.centred_at);
    const float* const coarse = (const float*)p.coarse;
    // Block 0 is the first stage; the further stages follow it, where there are any.
    const bool from_rows = block_x < (p.stages > 0 ? p.stages : 1);
    const u32 first_stage = p.coarse_count < CENTROIDS ? p.coarse_count : CENTROIDS;
    const u32 rows = block_x > 0 ? CENTROIDS : p.wide > 0 ? first_stage : 0;
    const bool squared = block_x == 0 && !p.ip;
    const float weight = p.ip ? -1.0f : -2.0f;
    PHASE(
        values[t] = 0.0f;
        if (t == 0) {
            bounds[0] = 0x7fffffff;
            bounds[1] = -0x7fffffff - 1;
        }
    )
    if (from_rows) {
        const float* const vector = block_x == 0 ? rotated : centred;
        for (u32 first = 0; first < rows; first += 256 / LANES) {
            PHASE(
                const u32 row = first + t / LANES;
                const float* const at = coarse + ((u64)block_x * CENTROIDS + row) * p.dim;
                sums[t] = row < rows ? lane_sum(vector, at, p.dim, t % LANES, squared) : 0.0f;
            )
            FOLD(sums)
            PHASE(
                const u32 row = first + t / LANES;
                if (row < rows && t % LANES == 0) values[row] = weighted(sums[t], squared, weight);
            )
        }
        // Bytes without a centroid stand for the last one.
        PHASE(if (rows > 0 && t >= rows) values[t] = values[rows - 1];)
    } else {
        PHASE(
            const u32 j = block_x - (p.stages > 0 ? p.stages : 1);
            const u32* const starts = (const u32*)p.starts;
            const u32 start = starts[j];
            const float* const centroids = (const float*)p.centroids + (u64)CENTROIDS * start;
            values[t] = subspace_term(p, centred + start, centroids, starts[j + 1] - start, t);
        )
    }
    PHASE(
        atomicMin(&bounds[0], ordered(values[t]));
        atomicMax(&bounds[1], ordered(values[t]));
        ((float*)(base + p.floats_at))[(u64)block_x * CENTROIDS + t] = values[t];
    )
    PHASE(
        if (t == 0) {
            Span& span = ((Span*)(base + p.spans_at))[block_x];
            span.low = unordered(bounds[0]);
            span.range = __fsub_rn(unordered(bounds[1]), span.low);
        }
    )
}

DEVICE float larger(float a, float b) { return a > b ? a : b; }

DEVICE float correction_of(const Params& p, u32 byte) {
    return p.wide && !p.ip ? __fadd_rn(p.correction_low, __fmul_rn(p.correction_step, (float)byte)) : 0.0f;
}

DEVICE float correction_low_of(const Params& p) {
    const float first = correction_of(p, 0);
    const float last = correction_of(p, CENTROIDS - 1);
    return first < last ? first : last;
}

// One over the step that all entries share.
DEVICE float inverse_step(const Params& p, const Span* spans) {
    float widest = 0.0f;
    float total = 0.0f;
    for (u32 i = 1; i <= entry_count(p); i++) {
        widest = larger(widest, spans[i].range);
        total = __fadd_rn(total, spans[i].range);
    }
    const float correction_high = larger(correction_of(p, 0), correction_of(p, CENTROIDS - 1));
    float step = larger(__fdiv_rn(widest, ENTRY_MAX), __fdiv_rn(total, TERM_LIMIT));
    step = larger(step, __fdiv_rn(spans[0].range, TERM_LIMIT));
    step = larger(step, __fdiv_rn(__fsub_rn(correction_high, correction_low_of(p)), TERM_LIMIT));
    return __fdiv_rn(1.0f, step >= NORMAL_MIN ? step : 1.0f);
}

DEVICE u32 quantise_wide(float term, float low, float inverse) {
    const float x = __fadd_rn(__fmul_rn(__fsub_rn(term, low), inverse), 0.5f);
    return (u32)(x < TERM_LIMIT ? x : TERM_LIMIT);
}

DEVICE u16 quantise_entry(float term, float low, float inverse) {
    float x = __fmul_rn(__fsub_rn(term, low), inverse);
    x = x > 0.0f ? x : 0.0f;
    x = x < ENTRY_MAX ? x : ENTRY_MAX;
    // From 2^23 on a float's last bit is worth 1: the addition rounds, and the low bits are the integer.
    return (u16)__float_as_uint(__fadd_rn(x, 8388608.0f));
}

// The integer terms. The table begins with 256 coarse terms and 256 corrections of 32 bits where codes have them.
KERNEL(quantise) {
    GRID;
    SHARED(float, inverse, 1);
    u8* const base = block_of(p, block_y);
    const Span* const spans = (const Span*)(base + p.spans_at);
    PHASE(if (t == 0) inverse[0] = inverse_step(p, spans);)
    PHASE(
        const float term = ((const float*)(base + p.floats_at))[(u64)block_x * CENTROIDS + t];
        const float low = spans[block_x].low;
        u32* const wide = (u32*)(base + p.table_at);
        u16* const entries = (u16*)(wide + (p.wide ? 2 * CENTROIDS : 0));
        if (block_x > 0) {
            entries[(u64)(block_x - 1) * CENTROIDS + t] = quantise_entry(term, low, inverse[0]);
        } else if (p.wide) {
            wide[t] = quantise_wide(term, low, inverse[0]);
            wide[CENTROIDS + t] = quantise_wide(correction_of(p, t), correction_low_of(p), inverse[0]);
        }
    )
}

// Number of the last range that begins at or before `x`, by ids or by positions; `count` where none does.
DEVICE u32 last_range(const Range* ranges, u32 count, u32 x, bool by_id) {
    u32 low = 0;
    u32 high = count;
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if ((by_id ? ranges[middle].first : ranges[middle].before) <= x) low = middle + 1;
        else high = middle;
    }
    return low > 0 ? low - 1 : count;
}

DEVICE bool is_in_ranges(const JobHeader& job, const Range* ranges, u32 id) {
    const u32 i = last_range(ranges, job.ranges, id, true);
    if (i >= job.ranges) return false;
    const u32 end = i + 1 < job.ranges ? ranges[i + 1].before : job.range_ids;
    return id - ranges[i].first < end - ranges[i].before;
}

// Whether `id` was not in the set before. No thread waits for another one: a lost race is a step to the next place.
DEVICE bool insert(u32* hash, u32 size, u32 id) {
    u32 place = (u32)(((u64)(id * 0x9e3779b1u) * size) >> 32);
    for (;;) {
        const u32 old = atomicCAS(&hash[place], EMPTY, id);
        if (old == EMPTY) return true;
        if (old == id) return false;
        place = place + 1 < size ? place + 1 : 0;
    }
}

// The id at position i of a job, or DROPPED. Ranges have no duplicates; only the other ids go through the hash table.
DEVICE u64 admitted(const Params& p, const u8* base, const JobHeader& job, u32 i) {
    const Range* const ranges = (const Range*)(base + job.ranges_at);
    u32 id;
    if (i < job.range_ids) {
        const Range& range = ranges[last_range(ranges, job.ranges, i, false)];
        id = range.first + (i - range.before);
        return id < p.codes_count && id != job.exclude ? id : DROPPED;
    }
    id = ((const u32*)(base + job.ids_at))[i - job.range_ids];
    if (id >= p.codes_count || id == job.exclude || is_in_ranges(job, ranges, id)) return DROPPED;
    return insert((u32*)(base + p.hash_at), job.hash_size, id) ? id : DROPPED;
}

// The distinct admitted ids, one key for each position.
KERNEL(gather) {
    GRID;
    SHARED(u32, distinct, 1);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const u32 count = job.range_ids + job.ids;
    PHASE(if (t == 0) distinct[0] = 0;)
    PHASE(
        u64* const keys = (u64*)(base + p.keys_at);
        u32 mine = 0;
        for (u64 i = (u64)block_x * threads + t; i < count; i += (u64)grid_x * threads) {
            const u64 key = admitted(p, base, job, (u32)i);
            keys[i] = key;
            mine += key != DROPPED;
        }
        if (mine > 0) atomicAdd(&distinct[0], mine);
    )
    PHASE(if (t == 0 && distinct[0] > 0) atomicAdd(&result_of(p, base).distinct, distinct[0]);)
}

// Entry of the table for byte `at` of a code, counted from the first byte with an entry.
DEVICE u32 entry_of(const Params& p, const u8* shared, const u8* table, u32 at, u32 byte) {
    const u32 offset = (p.wide ? 8 * CENTROIDS : 0) + 2 * (at * CENTROIDS + byte);
    return *(const u16*)((offset < p.shared_bytes ? shared : table) + offset);
}

DEVICE u32 term_of(const Params& p, const u8* shared, const u8* table, u32 at, u32 byte) {
    if (at >= p.wide) return entry_of(p, shared, table, at - p.wide, byte);
    return ((const u32*)(p.shared_bytes > 0 ? shared : table))[at * CENTROIDS + byte];
}

// The sum of the terms that the bytes of a code select. Codes whose size is whole words are read by words.
DEVICE u32 distance_of(const Params& p, const u8* shared, const u8* table, u32 id) {
    const u8* const code = (const u8*)p.codes + (u64)id * p.code_bytes;
    u32 sum = 0;
    if (p.code_bytes % 4 == 0) {
        for (u32 at = 0; at < p.code_bytes; at += 4) {
            const u32 word = *(const u32*)(code + at);
            for (u32 i = 0; i < 4; i++) sum += term_of(p, shared, table, at + i, (word >> (8 * i)) & 255);
        }
        return sum;
    }
    for (u32 at = 0; at < p.code_bytes; at++) sum += term_of(p, shared, table, at, code[at]);
    return sum;
}

// The distances of the admitted ids: keys become (distance, id).
KERNEL(distances) {
    GRID;
    SHARED_TABLE(shared);
    SHARED(u32, largest, 1);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const u32 count = job.range_ids + job.ids;
    const u8* const table = base + p.table_at;
    PHASE(
        if (t == 0) largest[0] = 0;
        // A block without ids needs no table.
        if ((u64)block_x * threads < count) {
            for (u32 i = t; i < p.shared_bytes / 4; i += threads) ((u32*)shared)[i] = ((const u32*)table)[i];
        }
    )
    PHASE(
        u64* const keys = (u64*)(base + p.keys_at);
        u32 mine = 0;
        for (u64 i = (u64)block_x * threads + t; i < count; i += (u64)grid_x * threads) {
            const u64 id = keys[i];
            if (id == DROPPED) continue;
            const u32 distance = distance_of(p, shared, table, (u32)id);
            keys[i] = (u64)distance << 32 | id;
            mine = distance > mine ? distance : mine;
        }
        if (mine > 0) atomicMax(&largest[0], mine);
    )
    PHASE(if (t == 0 && largest[0] > 0) atomicMax(&result_of(p, base).distance_max, largest[0]);)
}

DEVICE u64 shifted(u64 key, u32 shift) { return shift < 64 ? key >> shift : 0; }

// The `keep` smallest keys, ascending. A radix selection finds a prefix that at most SORTED_MAX keys do not exceed; the
// last digit leaves exactly `keep`, because keys are distinct. These are sorted in shared memory.
KERNEL(top) {
    GRID;
    SHARED(u64, sorted, SORTED_MAX);
    SHARED(u32, histogram, DIGITS);
    SHARED(u32, groups, DIGIT_GROUPS);
    SHARED(u64, chosen, 1);
    SHARED(u32, state, 3);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    ResultHeader& result = result_of(p, base);
    const u64* const keys = (const u64*)(base + p.keys_at);
    const u32 count = job.range_ids + job.ids;
    const u32 distinct = result.distinct;
    const u32 keep = job.keep < distinct ? job.keep : distinct;
    // All keys are below 2^shift.
    u32 shift = 64 - (u32)__clz(result.distance_max);
    u64 prefix = 0;
    u32 below = 0;
    u32 equal = distinct;
    while (below + equal > SORTED_MAX) {
        const u32 bits = shift < DIGIT_BITS ? shift : DIGIT_BITS;
        const u32 next = shift - bits;
        PHASE(for (u32 i = t; i < DIGITS; i += threads) histogram[i] = 0;)
        PHASE(
            for (u32 i = t; i < count; i += threads) {
                const u64 key = keys[i];
                if (key == DROPPED || shifted(key, shift) != prefix) continue;
                atomicAdd(&histogram[(u32)(key >> next) & ((1u << bits) - 1)], 1);
            }
        )
        PHASE(
            if (t < DIGIT_GROUPS) {
                u32 sum = 0;
                for (u32 i = 0; i < DIGITS / DIGIT_GROUPS; i++) sum += histogram[t * (DIGITS / DIGIT_GROUPS) + i];
                groups[t] = sum;
            }
        )
        PHASE(
            if (t == 0) {
                u32 sum = below;
                u32 group = 0;
                while (sum + groups[group] < keep) sum += groups[group++];
                u32 digit = group * (DIGITS / DIGIT_GROUPS);
                while (sum + histogram[digit] < keep) sum += histogram[digit++];
                chosen[0] = prefix << bits | digit;
                state[0] = sum;
                state[1] = histogram[digit];
            }
        )
        UNIFORM(u64, chosen_prefix, chosen[0]);
        UNIFORM(u32, chosen_below, state[0]);
        UNIFORM(u32, chosen_equal, state[1]);
        prefix = chosen_prefix;
        below = chosen_below;
        equal = chosen_equal;
        shift = next;
    }
    u32 size = 1;
    while (size < below + equal) size *= 2;
    PHASE(
        if (t == 0) state[2] = 0;
        for (u32 i = t; i < size; i += threads) sorted[i] = DROPPED;
    )
    PHASE(
        for (u32 i = t; i < count; i += threads) {
            const u64 key = keys[i];
            if (key == DROPPED || shifted(key, shift) > prefix) continue;
            sorted[atomicAdd(&state[2], 1)] = key;
        }
    )
    // Bitonic sort: `run` is the length of the runs that are merged, `gap` the distance of the pairs.
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 gap = run / 2; gap > 0; gap /= 2) {
            PHASE(
                for (u32 i = t; i < size / 2; i += threads) {
                    const u32 low = 2 * i - (i & (gap - 1));
                    const u64 a = sorted[low];
                    const u64 b = sorted[low + gap];
                    if ((a > b) == ((low & run) == 0)) {
                        sorted[low] = b;
                        sorted[low + gap] = a;
                    }
                }
            )
        }
    }
    PHASE(
        u64* const out = (u64*)(base + p.results_at + sizeof(ResultHeader));
        for (u32 i = t; i < keep; i += threads) out[i] = sorted[i];
        if (t == 0) result.count = keep;
    )
}

#ifndef __CUDACC__

// Runs one kernel on the CPU, block after block. The numbers are those of `Kernel` in `src/layout.rs`.
extern "C" int stratann_launch(u32 kernel, const Params* p, u32 grid_x, u32 grid_y, u32 threads, u8* shared,
                               u32 order) {
    typedef void (*Function)(const Params&, const Block&);
    static const Function functions[] = {rotate, terms, quantise, gather, distances, top};
    if (kernel >= sizeof(functions) / sizeof(functions[0])) return 1;
    for (u32 y = 0; y < grid_y; y++) {
        for (u32 n = 0; n < grid_x; n++) {
            const u32 x = order % 2 == 0 ? n : grid_x - 1 - n;
            const Block block = {x, y, grid_x, threads, order, shared};
            functions[kernel](*p, block);
        }
    }
    return 0;
}

// Sizes of the structs, for the test of their mirror.
extern "C" u32 stratann_size(u32 of) {
    static const u32 sizes[] = {sizeof(Params), sizeof(JobHeader), sizeof(ResultHeader), sizeof(Range), sizeof(Span)};
    return of < sizeof(sizes) / sizeof(sizes[0]) ? sizes[of] : 0;
}

#endif
