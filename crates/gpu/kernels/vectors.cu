// Exact distances of vectors that come with a job, and their keys for the kernel `top`.
//
// The sums are those of `distance` in the crate `stratann-kernel`: 16 lanes, folded in its order. A key's upper half is
// the distance as an integer of the same order; its lower half is the number of the row.

#define F32 0
#define F16 1
#define U8 2
#define I8 3
// `form` of a job: the element type, and this for the inner product.
#define INNER_PRODUCT 4

// Value of a half float. Each one is a float, so nothing is rounded.
DEVICE float widened(u16 half) {
    const u32 sign = (u32)(half & 0x8000) << 16;
    const u32 exponent = (half >> 10) & 31;
    const u32 fraction = half & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    // Subnormal halves are multiples of 2^-24.
    const float value = __fmul_rn((float)fraction, 5.9604644775390625e-8f);
    return __uint_as_float(sign | __float_as_uint(value));
}

DEVICE float half_lane(const float* query, const u16* row, u32 dim, u32 lane, bool squared) {
    float sum = 0.0f;
    for (u32 i = lane; i < dim; i += LANES) {
        const float x = widened(row[i]);
        const float difference = __fsub_rn(query[i], x);
        sum = squared ? __fmaf_rn(difference, difference, sum) : __fmaf_rn(query[i], x, sum);
    }
    return sum;
}

// One lane of an exact sum over bytes, modulo 2^32.
DEVICE u32 byte_lane(const u8* query, const u8* row, u32 dim, u32 lane, bool squared, bool is_signed) {
    u32 sum = 0;
    for (u32 i = lane; i < dim; i += LANES) {
        const int q = is_signed ? (int)(signed char)query[i] : (int)query[i];
        const int x = is_signed ? (int)(signed char)row[i] : (int)row[i];
        sum += (u32)(squared ? (q - x) * (q - x) : q * x);
    }
    return sum;
}

// Key of a distance: NaNs are larger than all numbers, and equal to each other.
DEVICE u64 key_of(float distance, u32 row) {
    const float known = distance == distance ? distance : __uint_as_float(0x7fc00000u);
    return (u64)((u32)ordered(known) ^ 0x80000000u) << 32 | row;
}

DEVICE float exact_distance(float sum, u32 bytes, u32 form) {
    const u32 dtype = form & 3;
    float distance = sum;
    if (dtype == U8) distance = (float)bytes;
    if (dtype == I8) distance = form & INNER_PRODUCT ? (float)(int)bytes : (float)bytes;
    return form & INNER_PRODUCT ? -distance : distance;
}

// One key for each row. Sixteen threads have a row.
KERNEL(vectors) {
    GRID;
    SHARED(float, sums, 256);
    SHARED(u32, bytes, 256);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const u32 dtype = job.form & 3;
    const u32 row_bytes = p.dim * (dtype == F32 ? 4 : dtype == F16 ? 2 : 1);
    const bool squared = (job.form & INNER_PRODUCT) == 0;
    const u32 rows = job.ids;
    const u32 at_once = 256 / LANES;
    PHASE(
        if (block_x == 0 && t == 0) {
            ResultHeader& result = result_of(p, base);
            result.count = 0;
            result.distinct = rows;
            result.distance_max = 0xffffffffu;
            result.unused = 0;
        }
    )
    for (u64 first = (u64)block_x * at_once; first < rows; first += (u64)grid_x * at_once) {
        PHASE(
            const u64 row = first + t / LANES;
            const u8* const at = base + job.ids_at + row * row_bytes;
            const u8* const query = base + job.query_at;
            sums[t] = 0.0f;
            bytes[t] = 0;
            if (row < rows && dtype == F32) {
                sums[t] = lane_sum((const float*)query, (const float*)at, p.dim, t % LANES, squared);
            } else if (row < rows && dtype == F16) {
                sums[t] = half_lane((const float*)query, (const u16*)at, p.dim, t % LANES, squared);
            } else if (row < rows) {
                bytes[t] = byte_lane(query, at, p.dim, t % LANES, squared, dtype == I8);
            }
        )
        FOLD(sums)
        PHASE(
            const u64 row = first + t / LANES;
            if (row < rows && t % LANES == 0) {
                u32 total = 0;
                for (u32 i = 0; i < LANES; i++) total += bytes[t + i];
                ((u64*)(base + p.keys_at))[row] = key_of(exact_distance(sums[t], total, job.form), (u32)row);
            }
        )
    }
}
