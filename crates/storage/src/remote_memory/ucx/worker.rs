//! A context of libucp with its one worker.

use super::library::{Fields, Handle, Ucp, ucp};

/// Remote memory, and atomic operations on 8 bytes.
const RMA: u64 = 1 << 1;
const ATOMICS: u64 = 1 << 3;
/// A descriptor to wait with.
const WAKEUP: u64 = 1 << 4;
/// Several threads may use a worker, one at a time.
const SERIALIZED: u64 = 1;

/// A context and a worker.
pub(super) struct Worker {
    pub(super) ucp: &'static Ucp,
    pub(super) context: Handle,
    pub(super) worker: Handle,
}

// SAFETY: the worker is made for use by several threads, one at a time.
unsafe impl Send for Worker {}

impl Worker {
    /// Opens a context, whose transports the variable UCX_TLS limits.
    pub(super) fn new(can_wait: bool) -> Result<Worker, String> {
        let ucp = ucp()?;
        let features = RMA | ATOMICS | if can_wait { WAKEUP } else { 0 };
        let params = Fields::new(1, &[(1, features)]);
        let mut context = std::ptr::null_mut();
        // SAFETY: parameters and result live through the call; without a configuration the environment counts.
        let status = unsafe { (ucp.init)(1, 10, &params, std::ptr::null_mut(), &mut context) };
        ucp.check("opening UCX", status)?;
        let params = Fields::new(1, &[(1, SERIALIZED)]);
        let mut worker = std::ptr::null_mut();
        // SAFETY: the context is open; parameters and result live through the call.
        let status = unsafe { (ucp.worker_create)(context, &params, &mut worker) };
        if let Err(why) = ucp.check("making a UCX worker", status) {
            // SAFETY: the context is open, and nothing uses it any more.
            unsafe { (ucp.cleanup)(context) };
            return Err(format!("{why}; check UCX_TLS"));
        }
        Ok(Worker { ucp, context, worker })
    }

    /// Lets the library work. Returns whether it did.
    pub(super) fn progress(&self) -> bool {
        // SAFETY: the worker exists.
        unsafe { (self.ucp.worker_progress)(self.worker) != 0 }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: both exist, and what was made of them is gone.
        unsafe {
            (self.ucp.worker_destroy)(self.worker);
            (self.ucp.cleanup)(self.context);
        }
    }
}
