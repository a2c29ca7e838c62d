// What all kernels use. The files are compiled as one text, in the order common.cuh, score.cu, vectors.cu, bits.cu.
//
// NVRTC compiles the text for a GPU; a C++ compiler compiles it for a CPU, with launch.cpp at its end. On a CPU each
// phase between two barriers is a loop over the threads of a block. Hence the one rule of these files: no private value
// of a thread lives across a barrier. What is declared outside of a PHASE is equal for all threads of the block.
//
// Every float is computed with the operations, and in the order, of the crate `stratann-kernel`, so that distances have
// the same bits. The mirror of the structs and constants is `src/layout.rs`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define JOBS_MAX 64
// Most planes of a code.
#define PLANES_MAX 16
#define LANES 16
// Keys that a thread block sorts in shared memory; `keep` is at most this.
#define SORTED_MAX 4096
#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)
#define DIGIT_GROUPS 64
#define DROPPED 0xffffffffffffffffull
#define EMPTY 0xffffffffu

// Bits of equal weight of consecutive dimensions in a code.
struct Plane {
    // Bits of each dimension: 1, 2, 4 or 8. A level counts them `1 << shift` times.
    u32 width, shift;
    // The first dimension that has them. Group g in byte j is of dimension `start + g * bytes + j`.
    u32 start;
    // First byte within a code, and how many.
    u32 first, bytes;
    // Start of the components of its dimensions among those that are arranged.
    u32 components_at;
};

// What all kernels of a batch are given. Addresses are of device memory; `*_at` are byte offsets in a query's block.
struct Params {
    u64 codes, blocks, block_bytes;
    u32 codes_count, code_bytes, dim, ip;
    u32 results_at, keys_at, hash_at, components_at;
    // Bytes of the arranged components that the kernel that scores copies to shared memory: all or none.
    u32 shared_bytes;
    // Planes, bytes of a factor, and the number of terms: one, or as many as a code can number.
    u32 plane_count, factor_bytes, term_count;
    Plane planes[PLANES_MAX];
    u32 jobs;
    u32 slots[JOBS_MAX];
};

// Start of a query's block: what the host sends. The query follows, then the ranges, then the ids. A query is a
// BitHeader, the terms, and `dim` components of 8 bits, with zeros up to a whole word. A job of vectors has the
// components of its query, and rows in place of the ids; `ids` is their number.
struct JobHeader {
    u32 ranges, range_ids, ids, keep, exclude, hash_size, query_at, ranges_at, ids_at, form;
};

// First id of a range, and how many ids the ranges before it have. Ranges ascend and are disjoint.
struct Range {
    u32 first, before;
};

// Start of a query: see `BitQuery` in the crate `stratann-kernel`.
struct BitHeader {
    float weight;
    int offset;
};

struct ResultHeader {
    u32 count, distinct, distance_max, unused;
};

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name(const Params p)
#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_BYTES(name) extern __shared__ __align__(16) u8 name[]
#define GRID const u32 block_x = blockIdx.x, block_y = blockIdx.y, grid_x = gridDim.x, threads = blockDim.x; \
    (void)block_x; (void)grid_x; (void)threads
#define PHASE(...) { const u32 t = threadIdx.x; __VA_ARGS__ } __syncthreads();
// Reads a shared value that a later phase may change.
#define UNIFORM(type, name, value) const type name = (value); __syncthreads()

#else

#define DEVICE static inline
#define KERNEL(name) static void name(const Params& p, const Block& block)
#define SHARED(type, name, count) type name[count]
#define SHARED_BYTES(name) u8* const name = block.shared
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

union FloatBits {
    float value;
    u32 bits;
};
DEVICE u32 __float_as_uint(float value) { FloatBits f; f.value = value; return f.bits; }
DEVICE float __uint_as_float(u32 bits) { FloatBits f; f.bits = bits; return f.value; }
DEVICE u32 __clz(u32 x) { return x == 0 ? 32 : (u32)__builtin_clz(x); }

DEVICE u32 atomicAdd(u32* at, u32 x) { const u32 old = *at; *at = old + x; return old; }
DEVICE u32 atomicMax(u32* at, u32 x) { const u32 old = *at; if (x > old) *at = x; return old; }
DEVICE u32 atomicCAS(u32* at, u32 expected, u32 x) {
    const u32 old = *at;
    if (old == expected) *at = x;
    return old;
}

#endif

DEVICE u8* block_of(const Params& p, u32 job) { return (u8*)(p.blocks + p.slots[job] * p.block_bytes); }

DEVICE const JobHeader& header_of(const u8* base) { return *(const JobHeader*)base; }

DEVICE ResultHeader& result_of(const Params& p, u8* base) { return *(ResultHeader*)(base + p.results_at); }

// Clears what other kernels of a batch add to. `first` is the number of the thread among `count`.
DEVICE void clear(const Params& p, u8* base, u64 first, u64 count) {
    const u32 hash_size = header_of(base).hash_size;
    u32* const hash = (u32*)(base + p.hash_at);
    for (u64 i = first; i < hash_size; i += count) hash[i] = EMPTY;
    if (first > 0) return;
    ResultHeader& result = result_of(p, base);
    result.count = 0;
    result.distinct = 0;
    result.distance_max = 0;
    result.unused = 0;
}

// Maps a float to an integer of the same order.
DEVICE int ordered(float x) {
    const int bits = (int)__float_as_uint(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

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
