//! The functions of libucp that are used, loaded while the program runs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// `ucs_status_t`: 0 is success, 1 under way, less an error.
pub(super) type Status = i8;
/// Handle of an object of the library.
pub(super) type Handle = *mut c_void;

/// A structure of parameters: 8-byte fields, of which the first is a mask of those that are set. It is longer than the
/// structures of all versions of the library, which read the fields in the mask alone.
#[repr(C)]
pub(super) struct Fields(pub(super) [u64; 40]);

impl Fields {
    /// Parameters with these fields, by their index.
    pub(super) fn new(mask: u64, fields: &[(usize, u64)]) -> Fields {
        let mut all = [0; 40];
        all[0] = mask;
        fields.iter().for_each(|(index, value)| all[*index] = *value);
        Fields(all)
    }
}

macro_rules! functions {
    ($($field:ident: $symbol:literal($($arg:ty),*) -> $result:ty;)*) => {
        /// The library, open as long as the program runs.
        pub(super) struct Ucp {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
            _library: Library,
        }

        impl Ucp {
            fn look_up(library: Library) -> Result<Ucp, String> {
                $(
                    // SAFETY: the type is that of the function in the library's documentation.
                    let $field = *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("it has no function {}: install UCX 1.10 or newer", $symbol))?;
                )*
                Ok(Ucp { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    version: "ucp_get_version_string"() -> *const c_char;
    status_text: "ucs_status_string"(Status) -> *const c_char;
    init: "ucp_init_version"(c_uint, c_uint, *const Fields, Handle, *mut Handle) -> Status;
    cleanup: "ucp_cleanup"(Handle) -> ();
    worker_create: "ucp_worker_create"(Handle, *const Fields, *mut Handle) -> Status;
    worker_destroy: "ucp_worker_destroy"(Handle) -> ();
    worker_address: "ucp_worker_get_address"(Handle, *mut Handle, *mut usize) -> Status;
    worker_release_address: "ucp_worker_release_address"(Handle, Handle) -> ();
    worker_progress: "ucp_worker_progress"(Handle) -> c_uint;
    worker_descriptor: "ucp_worker_get_efd"(Handle, *mut c_int) -> Status;
    worker_arm: "ucp_worker_arm"(Handle) -> Status;
    memory_map: "ucp_mem_map"(Handle, *const Fields, *mut Handle) -> Status;
    memory_unmap: "ucp_mem_unmap"(Handle, Handle) -> Status;
    memory_query: "ucp_mem_query"(Handle, *mut Fields) -> Status;
    key_pack: "ucp_rkey_pack"(Handle, Handle, *mut Handle, *mut usize) -> Status;
    key_release: "ucp_rkey_buffer_release"(Handle) -> ();
    key_unpack: "ucp_ep_rkey_unpack"(Handle, *const c_void, *mut Handle) -> Status;
    key_destroy: "ucp_rkey_destroy"(Handle) -> ();
    endpoint_create: "ucp_ep_create"(Handle, *const Fields, *mut Handle) -> Status;
    endpoint_close: "ucp_ep_close_nbx"(Handle, *const Fields) -> Handle;
    endpoint_flush: "ucp_ep_flush_nbx"(Handle, *const Fields) -> Handle;
    get: "ucp_get_nbx"(Handle, *mut c_void, usize, u64, Handle, *const Fields) -> Handle;
    put: "ucp_put_nbx"(Handle, *const c_void, usize, u64, Handle, *const Fields) -> Handle;
    atomic: "ucp_atomic_op_nbx"(Handle, c_uint, *const c_void, usize, u64, Handle, *const Fields) -> Handle;
    request_status: "ucp_request_check_status"(Handle) -> Status;
    request_free: "ucp_request_free"(Handle) -> ();
}

/// The library; or why there is none, and what to do.
pub(super) fn ucp() -> Result<&'static Ucp, &'static str> {
    static UCP: OnceLock<Result<Ucp, String>> = OnceLock::new();
    let open = || {
        // SAFETY: loading the library runs its initialisation, which has no effect on memory of this program.
        let library = unsafe { Library::new("libucp.so.0") }.map_err(|_| {
            "libucp.so.0 cannot be loaded: install UCX (the package libucx0), or add its folder to LD_LIBRARY_PATH"
                .to_string()
        })?;
        Ucp::look_up(library).map_err(|why| format!("libucp.so.0: {why}"))
    };
    UCP.get_or_init(open).as_ref().map_err(String::as_str)
}

impl Ucp {
    /// Version of the library.
    pub(super) fn version_text(&self) -> String {
        // SAFETY: the function returns a string that is never freed.
        unsafe { CStr::from_ptr((self.version)()) }.to_string_lossy().into_owned()
    }

    /// Success, or the text of a status.
    pub(super) fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a string that is never freed.
        let text = unsafe { CStr::from_ptr((self.status_text)(status)) };
        Err(format!("{what}: {}", text.to_string_lossy()))
    }
}
