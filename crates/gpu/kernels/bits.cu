// Distances of codes, with the bits of `BitQuery` in the crate `stratann-kernel`: a sum of integers, then floats in a
// fixed order. The host prepares the query.

DEVICE u32 groups_of(const Plane& plane) { return 8 / plane.width; }

DEVICE u32 words_of(const Plane& plane) { return (plane.bytes + 3) / 4; }

// Places the components of a query as the planes of a code meet them: of each plane, word after word, and for each word
// the four components of every group. Bytes beyond a plane get zeros, so that what a word has there does not count.
// Clears what the next kernels add to.
KERNEL(arrange) {
    GRID;
    u8* const base = block_of(p, block_y);
    PHASE(
        const u64 first = (u64)block_x * threads + t;
        const u64 step = (u64)grid_x * threads;
        clear(p, base, first, step);
        const u8* const query = base + header_of(base).query_at;
        const u8* const components = query + sizeof(BitHeader) + 4 * p.term_count;
        for (u32 i = 0; i < p.plane_count; i++) {
            const Plane& plane = p.planes[i];
            const u32 groups = groups_of(plane);
            u8* const out = base + p.components_at + plane.components_at;
            for (u64 n = first; n < 4 * groups * words_of(plane); n += step) {
                const u32 group = (u32)n / 4 % groups;
                const u32 byte = (u32)n / 4 / groups * 4 + (u32)n % 4;
                const u32 at = plane.start + group * plane.bytes + byte;
                out[n] = byte < plane.bytes && at < p.dim ? components[at] : 0;
            }
        }
    )
}

// `sum` and four products of bytes. Levels are below 128: both count as signed.
DEVICE int dot4(u32 levels, u32 components, int sum) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    return __dp4a((int)levels, (int)components, sum);
#else
    for (u32 i = 0; i < 32; i += 8) sum += (int)(signed char)(levels >> i) * (int)(signed char)(components >> i);
    return sum;
#endif
}

// The sum of levels times components of a plane whose bytes begin at `bytes`, which need not be the start of a word. No
// word is read that has none of them.
template <u32 WIDTH>
DEVICE int plane_sum(const u8* bytes, u32 count, const u32* components) {
    const u32 GROUPS = 8 / WIDTH;
    const u32 before = (u32)((u64)bytes & 3);
    const u32* const words = (const u32*)(bytes - before);
    const u32 last = (before + count - 1) / 4;
    int sum = 0;
    int high = 0;
    u32 next = words[0];
    for (u32 at = 0; 4 * at < count; at++) {
        const u32 word = next;
        next = at < last ? words[at + 1] : 0;
        u32 packed = (u32)(((u64)next << 32 | word) >> (8 * before));
        if (WIDTH == 8) {
            // The two halves of bytes, because a whole one is no signed level.
            sum = dot4(packed & 0x0f0f0f0fu, components[at], sum);
            high = dot4(packed >> 4 & 0x0f0f0f0fu, components[at], high);
        } else {
            const u32 mask = ((1u << WIDTH) - 1) * 0x01010101u;
            for (u32 group = 0; group < GROUPS; group++) {
                sum = dot4(packed >> (group * WIDTH) & mask, components[at * GROUPS + group], sum);
            }
        }
    }
    return sum + 16 * high;
}

// The sum of levels times components of a code.
DEVICE int code_sum(const Params& p, const u8* code, const u8* arranged) {
    int sum = 0;
    for (u32 i = 0; i < p.plane_count; i++) {
        const Plane& plane = p.planes[i];
        const u8* const bytes = code + plane.first;
        const u32* const components = (const u32*)(arranged + plane.components_at);
        int of_plane;
        switch (plane.width) {
            case 1: of_plane = plane_sum<1>(bytes, plane.bytes, components); break;
            case 2: of_plane = plane_sum<2>(bytes, plane.bytes, components); break;
            case 4: of_plane = plane_sum<4>(bytes, plane.bytes, components); break;
            default: of_plane = plane_sum<8>(bytes, plane.bytes, components);
        }
        sum += of_plane * (1 << plane.shift);
    }
    return sum;
}

DEVICE u32 short_at(const u8* bytes) { return (u32)bytes[0] | (u32)bytes[1] << 8; }

// A number in the order of floats; the largest for what is no number.
DEVICE u32 bit_key(float distance) {
    return distance == distance ? (u32)ordered(distance) ^ 0x80000000u : 0xffffffffu;
}

// The key of a code from its sum of levels times components. Short factors are a bfloat16, and a float without a sign
// and the last bits.
DEVICE u32 bit_distance(const Params& p, const BitHeader& query, const u8* code, int sum) {
    const bool is_short = p.factor_bytes == 2;
    const u32 norm = is_short ? short_at(code) << 16 : short_at(code) | short_at(code + 2) << 16;
    const u32 scale = is_short ? short_at(code + 2) << 15 : short_at(code + 4) | short_at(code + 6) << 16;
    const float* const terms = (const float*)(&query + 1);
    const float term = terms[p.term_count > 1 ? code[2 * p.factor_bytes] : 0];
    const float product = (float)(2 * sum - query.offset);
    // Norms count under l2 alone.
    const float known = __fadd_rn(term, __uint_as_float(p.ip ? 0 : norm));
    return bit_key(__fsub_rn(known, __fmul_rn(__fmul_rn(query.weight, __uint_as_float(scale)), product)));
}

DEVICE const u8* code_of(const Params& p, u32 id) { return (const u8*)p.codes + (u64)id * p.code_bytes; }

// Scores the admitted ids: keys become (distance, id).
KERNEL(distances) {
    GRID;
    SHARED_BYTES(shared);
    SHARED(u32, largest, 1);
    u8* const base = block_of(p, block_y);
    const JobHeader& job = header_of(base);
    const u32 count = job.range_ids + job.ids;
    PHASE(
        if (t == 0) largest[0] = 0;
        // A block without ids needs no components.
        if ((u64)block_x * threads < count) {
            const u32* const from = (const u32*)(base + p.components_at);
            for (u32 i = t; i < p.shared_bytes / 4; i += threads) ((u32*)shared)[i] = from[i];
        }
    )
    PHASE(
        const BitHeader& query = *(const BitHeader*)(base + job.query_at);
        u64* const keys = (u64*)(base + p.keys_at);
        u32 mine = 0;
        for (u64 i = (u64)block_x * threads + t; i < count; i += (u64)grid_x * threads) {
            if (keys[i] == DROPPED) continue;
            const u32 id = (u32)keys[i];
            const u8* const code = code_of(p, id);
            // Two calls: the compiler knows of each where the components are.
            const int sum =
                p.shared_bytes > 0 ? code_sum(p, code, shared) : code_sum(p, code, base + p.components_at);
            const u32 key = bit_distance(p, query, code, sum);
            keys[i] = (u64)key << 32 | id;
            mine = key > mine ? key : mine;
        }
        if (mine > 0) atomicMax(&largest[0], mine);
    )
    PHASE(if (t == 0 && largest[0] > 0) atomicMax(&result_of(p, base).distance_max, largest[0]);)
}
