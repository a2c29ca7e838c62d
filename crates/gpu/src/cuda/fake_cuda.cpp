// A driver and a run-time compiler on the CPU, for the tests of the calls to both. Appended to the kernels' source.
//
// Every call checks what CUDA requires of it: a current context, live handles, copies within allocations, thread blocks
// and shared memory within their limits; memory is freed only when no batch that uses it is under way. A stream does its
// work at once, but says so only at the second question.

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

const size_t KERNELS = 5;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600, GONE = 999 };

std::mutex mutex;
std::map<u64, size_t> device_memory;
std::map<u64, size_t> host_memory;
std::set<void*> streams, modules, programs;
std::map<void*, int> events;
int retained = 0;
// Allocations whose last copies by cuMemcpyHtoD may not have arrived yet: other streams do not wait for them.
std::set<u64> pending_copies;
// The last event of each stream, and the addresses that its work since the last time that it was done has used.
std::map<void*, void*> last_event;
std::map<void*, std::set<u64>> used;
int launches = 0;
int shared_max[KERNELS] = {};
thread_local void* current = nullptr;
char context;
const char image[] = "the image of a fake compiler";
const char* const names[] = {"arrange", "gather", "distances", "top", "vectors"};

bool within(const std::map<u64, size_t>& memory, u64 at, size_t bytes) {
    auto next = memory.upper_bound(at);
    if (next == memory.begin()) return false;
    --next;
    return at - next->first + bytes <= next->second;
}

// Start of the allocation with an address; 0 for none.
u64 start_of(const std::map<u64, size_t>& memory, u64 at) {
    auto next = memory.upper_bound(at);
    return next == memory.begin() ? 0 : (--next)->first;
}

// Whether the work of a stream that has not said that it is done uses an allocation.
bool is_in_use(u64 address, size_t bytes) {
    for (const auto& [stream, addresses] : used) {
        const auto event = last_event.find(stream);
        if (event == last_event.end() || events[event->second] <= 0) continue;
        const auto first = addresses.lower_bound(address);
        if (first != addresses.end() && *first < address + bytes) return true;
    }
    return false;
}

// Records that work of a stream uses an address. The first use after the end of other work begins anew.
void use(void* stream, u64 address) {
    const auto event = last_event.find(stream);
    if (event != last_event.end() && events[event->second] <= 0) {
        used[stream].clear();
        last_event.erase(event);
    }
    used[stream].insert(address);
}

// The launch that fails; negative for none.
int failing_launch = -1;
// Allocations of staging that succeed before one fails; negative for no failure.
int staging_left = -1;

}  // namespace

#define LOCKED std::lock_guard<std::mutex> lock(mutex)
#define IN_CONTEXT LOCKED; if (current != &context || retained == 0) return INVALID_CONTEXT

extern "C" {

int cuInit(unsigned flags) { return flags == 0 ? 0 : INVALID_VALUE; }
int cuDriverGetVersion(int* version) { *version = 12040; return 0; }
int cuGetErrorName(int code, const char** name) { *name = code == GONE ? "FAKE_GONE" : "FAKE_ERROR"; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }

int cuDeviceGet(int* device, int ordinal) {
    *device = 10 + ordinal;
    return ordinal >= 0 && ordinal < 2 ? 0 : INVALID_VALUE;
}

int cuDeviceGetName(char* name, int length, int device) {
    if (device < 10) return INVALID_VALUE;
    strncpy(name, "fake GPU", length);
    return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1 << 30; return device < 10 ? INVALID_VALUE : 0; }

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device < 10) return INVALID_VALUE;
    switch (attribute) {
        // The second device is newer than the compiler.
        case 75: *value = device == 10 ? 8 : 13; return 0;
        case 76: *value = device == 10 ? 6 : 7; return 0;
        case 97: *value = 10000; return 0;
        default: return INVALID_VALUE;
    }
}

int cuDevicePrimaryCtxRetain(void** out, int device) {
    LOCKED;
    retained++;
    *out = &context;
    return device < 10 ? INVALID_VALUE : 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) { LOCKED; return device < 10 || retained-- == 0 ? INVALID_CONTEXT : 0; }
int cuCtxSetCurrent(void* to) { current = to; return 0; }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    IN_CONTEXT;
    *free = 1 << 29;
    for (const auto& allocation : device_memory) *free -= allocation.second;
    *total = 1 << 30;
    return 0;
}

int cuStreamSynchronize(void* stream) {
    IN_CONTEXT;
    if (stream != nullptr && streams.count(stream) == 0) return INVALID_HANDLE;
    if (stream == nullptr) pending_copies.clear();
    return 0;
}

int cuMemAlloc_v2(u64* address, size_t bytes) {
    IN_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    size_t taken = bytes;
    for (const auto& allocation : device_memory) taken += allocation.second;
    if (taken > (1u << 29)) return OUT_OF_MEMORY;
    *address = (u64)aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset((void*)*address, 0xa5, bytes);
    device_memory[*address] = bytes;
    return 0;
}

int cuMemFree_v2(u64 address) {
    IN_CONTEXT;
    const auto found = device_memory.find(address);
    if (found == device_memory.end() || is_in_use(address, found->second)) return INVALID_VALUE;
    device_memory.erase(found);
    pending_copies.erase(address);
    free((void*)address);
    return 0;
}

int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    IN_CONTEXT;
    if (bytes == 0 || flags > 7) return INVALID_VALUE;
    if (staging_left >= 0 && staging_left-- == 0) return OUT_OF_MEMORY;
    *out = malloc(bytes);
    host_memory[(u64)*out] = bytes;
    return 0;
}

int cuMemFreeHost(void* at) {
    IN_CONTEXT;
    const auto found = host_memory.find((u64)at);
    if (found == host_memory.end() || is_in_use((u64)at, found->second)) return INVALID_VALUE;
    host_memory.erase(found);
    free(at);
    return 0;
}

int cuMemcpyHtoD_v2(u64 to, const void* from, size_t bytes) {
    IN_CONTEXT;
    if (!within(device_memory, to, bytes)) return INVALID_VALUE;
    memcpy((void*)to, from, bytes);
    pending_copies.insert(start_of(device_memory, to));
    return 0;
}

int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* stream) {
    IN_CONTEXT;
    if (streams.count(stream) == 0) return INVALID_HANDLE;
    if (!within(device_memory, to, bytes) || !within(host_memory, (u64)from, bytes)) return INVALID_VALUE;
    use(stream, to);
    use(stream, (u64)from);
    memcpy((void*)to, from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* stream) {
    IN_CONTEXT;
    if (streams.count(stream) == 0) return INVALID_HANDLE;
    if (!within(device_memory, from, bytes) || !within(host_memory, (u64)to, bytes)) return INVALID_VALUE;
    memcpy(to, (const void*)from, bytes);
    return 0;
}

int cuStreamCreate(void** out, unsigned flags) {
    IN_CONTEXT;
    if (flags > 1) return INVALID_VALUE;
    *out = malloc(1);
    streams.insert(*out);
    return 0;
}

int cuStreamDestroy_v2(void* stream) {
    IN_CONTEXT;
    used.erase(stream);
    last_event.erase(stream);
    return streams.erase(stream) ? free(stream), 0 : INVALID_HANDLE;
}

int cuEventCreate(void** out, unsigned flags) {
    IN_CONTEXT;
    if (flags != 0) return INVALID_VALUE;
    *out = malloc(1);
    events[*out] = 0;
    return 0;
}

int cuEventRecord(void* event, void* stream) {
    IN_CONTEXT;
    if (events.count(event) == 0 || streams.count(stream) == 0) return INVALID_HANDLE;
    events[event] = 2;
    last_event[stream] = event;
    return 0;
}

int cuEventQuery(void* event) {
    IN_CONTEXT;
    if (events.count(event) == 0 || events[event] == 0) return INVALID_HANDLE;
    return --events[event] > 0 ? NOT_READY : 0;
}

int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    IN_CONTEXT;
    *milliseconds = 0.25f;
    return events.count(start) && events.count(end) ? 0 : INVALID_HANDLE;
}

int cuEventDestroy_v2(void* event) { IN_CONTEXT; return events.erase(event) ? free(event), 0 : INVALID_HANDLE; }

int cuModuleLoadData(void** out, const void* data) {
    IN_CONTEXT;
    if (strcmp((const char*)data, image) != 0) return INVALID_VALUE;
    *out = malloc(1);
    modules.insert(*out);
    return 0;
}

int cuModuleUnload(void* module) { IN_CONTEXT; return modules.erase(module) ? free(module), 0 : INVALID_HANDLE; }

int cuModuleGetFunction(void** out, void* module, const char* name) {
    IN_CONTEXT;
    if (modules.count(module) == 0) return INVALID_HANDLE;
    for (size_t i = 0; i < KERNELS; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (void*)(i + 1);
            return 0;
        }
    }
    return 500;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    IN_CONTEXT;
    const size_t kernel = (size_t)function - 1;
    if (kernel >= KERNELS || attribute != 8 || value > 10000) return INVALID_VALUE;
    shared_max[kernel] = value;
    return 0;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void* stream, void** arguments, void** extra) {
    IN_CONTEXT;
    const size_t kernel = (size_t)function - 1;
    if (kernel >= KERNELS || streams.count(stream) == 0) return INVALID_HANDLE;
    if (gx == 0 || gy == 0 || gy > 65535 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1) return INVALID_VALUE;
    if (extra != nullptr || shared_bytes > (unsigned)shared_max[kernel]) return INVALID_VALUE;
    const Params* params = (const Params*)arguments[0];
    if (pending_copies.count(start_of(device_memory, (u64)params->codes))) return INVALID_VALUE;
    use(stream, (u64)params->codes);
    if (launches++ == failing_launch) return GONE;
    std::vector<u64> shared(shared_bytes / 8 + 1);
    return stratann_launch(kernel, params, gx, gy, bx, (u8*)shared.data(), 3);
}

int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 4; return 0; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 3; return 0; }
int nvrtcGetSupportedArchs(int* archs) { archs[0] = 75; archs[1] = 86; archs[2] = 90; return 0; }

int nvrtcCreateProgram(void** out, const char* source, const char* name, int headers, const char* const*,
                       const char* const*) {
    LOCKED;
    if (strstr(source, "KERNEL(arrange)") == nullptr || name == nullptr || headers != 0) return 4;
    *out = calloc(1, 1);
    programs.insert(*out);
    return 0;
}

// A program remembers whether it was compiled for a machine (1) or for the intermediate language (2).
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    std::set<std::string> given(options, options + count);
    for (const char* option : {"--fmad=false", "--ftz=false", "--prec-div=true", "--std=c++17"}) {
        if (given.count(option) == 0) return 5;
    }
    const bool is_machine = given.count("--gpu-architecture=sm_86") > 0;
    *(char*)program = is_machine ? 1 : given.count("--gpu-architecture=compute_90") > 0 ? 2 : 0;
    return *(char*)program ? 0 : 6;
}

int nvrtcGetProgramLogSize(void*, size_t* bytes) { *bytes = 14; return 0; }
int nvrtcGetProgramLog(void*, char* log) { memcpy(log, "log of a fake", 14); return 0; }
int nvrtcGetPTXSize(void* program, size_t* bytes) { *bytes = sizeof(image); return *(char*)program == 2 ? 0 : 4; }
int nvrtcGetPTX(void* program, char* out) { memcpy(out, image, sizeof(image)); return *(char*)program == 2 ? 0 : 4; }
int nvrtcGetCUBINSize(void* program, size_t* bytes) { *bytes = sizeof(image); return *(char*)program == 1 ? 0 : 4; }
int nvrtcGetCUBIN(void* program, char* out) { memcpy(out, image, sizeof(image)); return *(char*)program == 1 ? 0 : 4; }

int nvrtcDestroyProgram(void** program) {
    LOCKED;
    if (programs.erase(*program) == 0) return 4;
    free(*program);
    *program = nullptr;
    return 0;
}

// Objects that were created and not destroyed.
int fake_cuda_objects() {
    LOCKED;
    return device_memory.size() + host_memory.size() + streams.size() + events.size() + modules.size() +
           programs.size() + retained;
}

// Makes the second launch from now on fail; returns its number.
int fake_cuda_fail() { LOCKED; return failing_launch = launches + 1; }

// Makes the next allocation of staging fail.
int fake_cuda_no_staging() { LOCKED; return staging_left = 0; }

}  // extern "C"
