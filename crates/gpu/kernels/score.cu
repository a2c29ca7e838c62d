// Distinct candidate ids, the distances of their codes, and the nearest of them.

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

// Scores the admitted ids: keys become (distance, id). The bytes from `of_query` on that fit shared memory are copied
// to it first; the distance is an expression of `id`.
#define SCORE(of_query, shared, distance) \
    SHARED(u32, largest, 1); \
    const u32 count = job.range_ids + job.ids; \
    PHASE( \
        if (t == 0) largest[0] = 0; \
        /* A block without ids needs nothing of the query. */ \
        if ((u64)block_x * threads < count) { \
            const u32* const from = (const u32*)(of_query); \
            for (u32 i = t; i < p.shared_bytes / 4; i += threads) ((u32*)(shared))[i] = from[i]; \
        } \
    ) \
    PHASE( \
        u64* const keys = (u64*)(base + p.keys_at); \
        u32 mine = 0; \
        for (u64 i = (u64)block_x * threads + t; i < count; i += (u64)grid_x * threads) { \
            if (keys[i] == DROPPED) continue; \
            const u32 id = (u32)keys[i]; \
            const u32 key = (distance); \
            keys[i] = (u64)key << 32 | id; \
            mine = key > mine ? key : mine; \
        } \
        if (mine > 0) atomicMax(&largest[0], mine); \
    ) \
    PHASE(if (t == 0 && largest[0] > 0) atomicMax(&result_of(p, base).distance_max, largest[0]);)

// Distances by look-up tables.
KERNEL(distances) {
    GRID;
    SHARED_TABLE(shared);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const u8* const table = base + p.table_at;
    SCORE(table, shared, distance_of(p, shared, table, id))
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
