// The integer look-up table of a query, with the bits of `Table::set` in the crate `stratann-kernel`.

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
        clear(p, base, (u64)block_x * threads + t, (u64)grid_x * threads);
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
