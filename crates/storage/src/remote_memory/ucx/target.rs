//! The side of the memory node: memory that others access through libucp.

use std::os::fd::RawFd;
use std::ptr::NonNull;

use super::super::region::Mapping;
use super::library::{Fields, Handle};
use super::worker::Worker;

/// Fields of `ucp_mem_map_params`: length and flags; and the flag that allocates.
const LENGTH_AND_FLAGS: u64 = 0b110;
const ALLOCATE: u64 = 1 << 1;
/// Calls of progress before others have their turn.
const TURNS: usize = 64;

/// Memory of a node that libucp allocated.
pub(in super::super) struct Target {
    // Before the memory that it is in.
    mapping: Mapping,
    memory: Handle,
    worker: Worker,
    descriptor: RawFd,
    attach: Vec<u8>,
}

// SAFETY: the handle of the memory is used when the target is dropped only; the worker may be sent.
unsafe impl Send for Target {}

impl Target {
    /// Allocates zeroed memory. Returns why it cannot.
    pub(in super::super) fn new(bytes: u64) -> Result<Target, String> {
        let worker = Worker::new(true)?;
        let ucp = worker.ucp;
        let whole = bytes.checked_next_multiple_of(8).ok_or("the region is too large")?;
        let params = Fields::new(LENGTH_AND_FLAGS, &[(2, whole), (3, ALLOCATE)]);
        let mut memory = std::ptr::null_mut();
        // SAFETY: the context is open; parameters and result live through the call.
        let status = unsafe { (ucp.memory_map)(worker.context, &params, &mut memory) };
        ucp.check("allocating memory with UCX", status)
            .map_err(|why| format!("{why}; give a smaller --size"))?;
        let mut found = Fields::new(0b11, &[]);
        // SAFETY: the memory is mapped; the result is as long as the library's structure, or longer.
        let status = unsafe { (ucp.memory_query)(memory, &mut found) };
        ucp.check("asking UCX for memory", status)?;
        let at = NonNull::new(found.0[1] as *mut u8).ok_or("UCX gave no memory")?;
        // SAFETY: the library allocated so many bytes here, they are this process's until they are unmapped, and
        // nobody else knows them yet.
        let mapping = unsafe {
            at.as_ptr().write_bytes(0, whole as usize);
            Mapping::foreign(at, bytes)
        }?;
        let mut descriptor = -1;
        // SAFETY: the worker exists; the result lives through the call.
        let status = unsafe { (ucp.worker_descriptor)(worker.worker, &mut descriptor) };
        ucp.check("a descriptor of UCX", status)?;
        let attach = attach(&worker, memory, at.as_ptr() as u64)?;
        Ok(Target { mapping, memory, worker, descriptor, attach })
    }

    pub(in super::super) fn bytes(&self) -> &Mapping {
        &self.mapping
    }

    /// Bytes that a client needs to access the memory.
    pub(in super::super) fn attach(&self) -> &[u8] {
        &self.attach
    }

    /// Becomes readable when the library has work.
    pub(in super::super) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Does the work of the library. Returns whether the descriptor will tell of more.
    pub(in super::super) fn progress(&self) -> bool {
        (0..TURNS).any(|_| {
            while self.worker.progress() {}
            // SAFETY: the worker exists.
            unsafe { (self.worker.ucp.worker_arm)(self.worker.worker) == 0 }
        })
    }
}

/// Base address, length of the worker's address and both: address and key of the memory.
fn attach(worker: &Worker, memory: Handle, base: u64) -> Result<Vec<u8>, String> {
    let ucp = worker.ucp;
    let (mut address, mut address_bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the worker exists; the results live through the call.
    let status = unsafe { (ucp.worker_address)(worker.worker, &mut address, &mut address_bytes) };
    ucp.check("an address of UCX", status)?;
    let mut out = base.to_le_bytes().to_vec();
    out.extend_from_slice(&(address_bytes as u64).to_le_bytes());
    // SAFETY: the library gave so many bytes, which live until they are released.
    unsafe {
        out.extend_from_slice(std::slice::from_raw_parts(address.cast::<u8>(), address_bytes));
        (ucp.worker_release_address)(worker.worker, address);
    }
    let (mut key, mut key_bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the memory is mapped in this context; the results live through the call.
    let status = unsafe { (ucp.key_pack)(worker.context, memory, &mut key, &mut key_bytes) };
    ucp.check("a key of UCX", status)?;
    // SAFETY: as above.
    unsafe {
        out.extend_from_slice(std::slice::from_raw_parts(key.cast::<u8>(), key_bytes));
        (ucp.key_release)(key);
    }
    Ok(out)
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: the memory is mapped in this context, and its mapping is not used any more.
        unsafe { (self.worker.ucp.memory_unmap)(self.worker.context, self.memory) };
    }
}
