// Distinct candidate ids, and the nearest of them.

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
