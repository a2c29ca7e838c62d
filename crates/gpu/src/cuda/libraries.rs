//! The functions of CUDA's libraries that are used, loaded while the program runs.
//!
//! All functions of a library are looked up as it is opened: a library that is absent, or too old to have one of them,
//! is an error there, and nothing can fail for that reason later. Results stay integers, because newer drivers return
//! codes that nobody could list today.

use crate::Error;
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Result of a call; 0 is success.
pub(super) type Code = c_int;
/// Handle of an object of a library.
pub(super) type Handle = *mut c_void;
/// Address in device memory.
pub(super) type Address = u64;

/// Opens the first library of `names` that can be loaded.
fn open(what: &str, names: &[&str], remedy: &'static str) -> Result<Library, Error> {
    let mut reasons = Vec::new();
    for &name in names {
        // SAFETY: these are the libraries of the GPU's vendor; loading them has no effect on this program's memory.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(reason) => {
                let cause = std::error::Error::source(&reason);
                reasons.push(cause.map_or_else(|| reason.to_string(), ToString::to_string));
            }
        }
    }
    let reason = reasons.first().cloned().unwrap_or_default();
    Err(Error::Missing { what: format!("{what} ({}) cannot be loaded: {reason}", names.join(", ")), remedy })
}

/// Declares a library with its functions; all of them return a [`Code`].
macro_rules! library {
    (
        $(#[$doc:meta])*
        $name:ident = $what:literal from $names:expr, else $remedy:expr;
        $($field:ident: $symbol:literal($($arg:ty),*);)*
    ) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> Code,)*
            _library: Library,
        }

        impl $name {
            /// Opens the library and looks up its functions.
            pub(super) fn open() -> Result<$name, Error> {
                Self::open_from(&$names)
            }

            /// As [`open`](Self::open), with other names.
            pub(super) fn open_from(names: &[&str]) -> Result<$name, Error> {
                let library = open($what, names, $remedy)?;
                let old = |symbol: &str| Error::Missing {
                    what: format!("{} has no function {symbol}: it is too old", $what),
                    remedy: $remedy,
                };
                $(
                    // SAFETY: the type is that of the function in the vendor's documentation.
                    let $field = *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(|_| old($symbol))?;
                )*
                Ok($name { $($field,)* _library: library })
            }
        }
    };
}

/// Remedy where the driver is missing.
const INSTALL_DRIVER: &str = "install the NVIDIA driver of this machine's GPU, version 525 or newer";
/// Remedy where the compiler is missing.
const INSTALL_NVRTC: &str = concat!(
    "install NVRTC of CUDA 11.2 or newer (the package cuda-nvrtc of the CUDA toolkit), ",
    "or add its folder to LD_LIBRARY_PATH"
);

library! {
    /// The driver, `libcuda`.
    Driver = "the NVIDIA driver's library" from ["libcuda.so.1", "libcuda.so", "nvcuda.dll"], else INSTALL_DRIVER;
    init: "cuInit"(c_uint);
    version: "cuDriverGetVersion"(*mut c_int);
    error_name: "cuGetErrorName"(Code, *mut *const c_char);
    device_count: "cuDeviceGetCount"(*mut c_int);
    device: "cuDeviceGet"(*mut c_int, c_int);
    device_name: "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_memory: "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute: "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    context_retain: "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    context_release: "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_set: "cuCtxSetCurrent"(Handle);
    memory_info: "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_allocate: "cuMemAlloc_v2"(*mut Address, usize);
    memory_free: "cuMemFree_v2"(Address);
    host_allocate: "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost"(*mut c_void);
    copy_to_device: "cuMemcpyHtoD_v2"(Address, *const c_void, usize);
    copy_to_device_async: "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    copy_from_device_async: "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
    stream_create: "cuStreamCreate"(*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2"(Handle);
    stream_wait: "cuStreamSynchronize"(Handle);
    event_create: "cuEventCreate"(*mut Handle, c_uint);
    event_record: "cuEventRecord"(Handle, Handle);
    event_query: "cuEventQuery"(Handle);
    event_elapsed: "cuEventElapsedTime"(*mut f32, Handle, Handle);
    event_destroy: "cuEventDestroy_v2"(Handle);
    module_load: "cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload: "cuModuleUnload"(Handle);
    module_function: "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    function_set: "cuFuncSetAttribute"(Handle, c_int, c_int);
    launch: "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

library! {
    /// The compiler of kernels, `libnvrtc`.
    Nvrtc = "the CUDA run-time compiler's library"
        from ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"], else INSTALL_NVRTC;
    version: "nvrtcVersion"(*mut c_int, *mut c_int);
    architecture_count: "nvrtcGetNumSupportedArchs"(*mut c_int);
    architectures: "nvrtcGetSupportedArchs"(*mut c_int);
    create: "nvrtcCreateProgram"(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    compile: "nvrtcCompileProgram"(Handle, c_int, *const *const c_char);
    log_size: "nvrtcGetProgramLogSize"(Handle, *mut usize);
    log: "nvrtcGetProgramLog"(Handle, *mut c_char);
    ptx_size: "nvrtcGetPTXSize"(Handle, *mut usize);
    ptx: "nvrtcGetPTX"(Handle, *mut c_char);
    cubin_size: "nvrtcGetCUBINSize"(Handle, *mut usize);
    cubin: "nvrtcGetCUBIN"(Handle, *mut c_char);
    destroy: "nvrtcDestroyProgram"(*mut Handle);
}
