// The kernels on the CPU, for tests.

// Runs one kernel on the CPU, block after block. The numbers are those of `Kernel` in `src/layout.rs`.
extern "C" int stratann_launch(u32 kernel, const Params* p, u32 grid_x, u32 grid_y, u32 threads, u8* shared,
                               u32 order) {
    typedef void (*Function)(const Params&, const Block&);
    static const Function functions[] = {arrange, gather, distances, top, vectors};
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
    static const u32 sizes[] = {sizeof(Params), sizeof(JobHeader), sizeof(ResultHeader), sizeof(Range),
                                sizeof(BitHeader)};
    return of < sizeof(sizes) / sizeof(sizes[0]) ? sizes[of] : 0;
}
