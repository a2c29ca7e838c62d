//! Remote memory through libucp. Connection and epoch are those of a TCP connection beside it.

use std::time::{Duration, Instant};

use super::super::client::TcpMemory;
use super::super::connect::Credentials;
use super::super::operation::{check_bounds, check_limits};
use super::super::{Facts, MemoryError, Operation, RemoteMemory};
use super::library::{Fields, Handle, Ucp};
use super::worker::Worker;

/// An operation that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time to close an endpoint.
const CLOSE: Duration = Duration::from_millis(200);
/// Idle turns before the thread lets others run, and before it sleeps.
const SPINS: u32 = 1000;
const YIELDS: u32 = 5000;
const NAP: Duration = Duration::from_micros(50);
/// Codes of atomic operations.
const ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;
/// Data type of 8 bytes, and fields of `ucp_request_param_t`.
const WORD_TYPE: u64 = 8 << 3;
const DATATYPE: u64 = 1 << 3;
const REPLY_BUFFER: u64 = 1 << 5;

/// A memory node whose region is accessed through libucp.
pub(in super::super) struct UcxMemory {
    address: String,
    tcp: TcpMemory,
    attached: Option<Attached>,
}

/// An endpoint, the key of the region, and memory that the library reads and writes.
struct Attached {
    worker: Worker,
    endpoint: Handle,
    key: Handle,
    base: u64,
    // Bytes on their way. They are not the caller's: an operation that does not end may still write here.
    words: Vec<u64>,
}

// SAFETY: the handles belong to the worker, which may be sent.
unsafe impl Send for Attached {}

impl UcxMemory {
    /// Connects to a node over TCP, and attaches to its region.
    pub(in super::super) fn connect(
        address: &str,
        node: &str,
        credentials: &Credentials,
    ) -> Result<UcxMemory, MemoryError> {
        super::library::ucp().map_err(|why| unavailable(address, why.to_string()))?;
        let tcp = TcpMemory::connect(node, credentials)?;
        let mut memory = UcxMemory { address: address.into(), tcp, attached: None };
        memory.attach()?;
        Ok(memory)
    }

    /// The region; attached again after the TCP connection broke, if the node has the same.
    fn attach(&mut self) -> Result<&mut Attached, MemoryError> {
        if self.attached.is_some() && !self.tcp.is_open() {
            self.attached = None;
        }
        match self.attached.take() {
            Some(attached) => Ok(self.attached.insert(attached)),
            None => {
                let reply = self.tcp.attach()?;
                let attached = Attached::new(&reply).map_err(|why| unavailable(&self.address, why))?;
                Ok(self.attached.insert(attached))
            }
        }
    }

    fn execute_run(&mut self, run: &mut [Operation<'_>], changes: bool) -> Result<(), MemoryError> {
        let address = self.address.clone();
        let attached = self.attach()?;
        attached.execute(run).map_err(|why| {
            // The library may still access memory of an operation that did not end: leaking it is the safe way out.
            std::mem::forget(self.attached.take());
            MemoryError::Disconnected { address, why, may_have_run: changes }
        })
    }
}

fn unavailable(address: &str, why: String) -> MemoryError {
    MemoryError::Unavailable { address: address.into(), why }
}

impl RemoteMemory for UcxMemory {
    fn facts(&self) -> Facts {
        self.tcp.facts()
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn execute(&mut self, operations: &mut [Operation<'_>]) -> Result<(), MemoryError> {
        check_limits(operations.iter().map(Operation::access))?;
        check_bounds(operations.iter().map(Operation::access), self.facts().region_bytes)?;
        let changes = operations.iter().any(Operation::changes);
        let mut rest = operations;
        while !rest.is_empty() {
            // Reads go out together. A change waits for what is before it.
            let reads = rest.iter().take_while(|operation| !operation.changes()).count();
            let (run, others) = rest.split_at_mut(reads.max(1));
            self.execute_run(run, changes)?;
            rest = others;
        }
        // The node closes connections when a load begins: what was done since then is in no region.
        match self.tcp.is_open() {
            true => Ok(()),
            false => {
                let why = "its connection ended; a load may have begun".into();
                Err(MemoryError::Disconnected { address: self.address.clone(), why, may_have_run: changes })
            }
        }
    }

    fn begin_load(&mut self, load: u64) -> Result<(), MemoryError> {
        self.attached = None;
        self.tcp.begin_load(load)
    }

    fn backend(&self) -> &'static str {
        "ucx"
    }
}

impl Attached {
    fn new(reply: &[u8]) -> Result<Attached, String> {
        let broken = || "the memory node sent no address of UCX".to_string();
        let word = |at: usize| {
            reply.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).ok_or_else(broken)
        };
        let (base, address_bytes) = (word(0)?, word(8)? as usize);
        let (address, key) = reply[16..].split_at_checked(address_bytes).ok_or_else(broken)?;
        let worker = Worker::new(false)?;
        let ucp = worker.ucp;
        let params = Fields::new(1, &[(1, address.as_ptr() as u64)]);
        let mut endpoint = std::ptr::null_mut();
        // SAFETY: the worker exists; parameters, address and result live through the call. The address comes from a
        // node that knows the key.
        let status = unsafe { (ucp.endpoint_create)(worker.worker, &params, &mut endpoint) };
        let what = "no transport of UCX reaches the memory node; check UCX_TLS on both sides";
        ucp.check(what, status)?;
        let mut unpacked = std::ptr::null_mut();
        // SAFETY: the endpoint exists; key and result live through the call.
        let status = unsafe { (ucp.key_unpack)(endpoint, key.as_ptr().cast(), &mut unpacked) };
        ucp.check(what, status)?;
        Ok(Attached { worker, endpoint, key: unpacked, base, words: Vec::new() })
    }

    fn ucp(&self) -> &'static Ucp {
        self.worker.ucp
    }

    /// Waits for requests, and frees them.
    fn wait(&self, what: &str, requests: &[Handle]) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        let mut idle = 0;
        for &request in requests {
            let status = loop {
                match self.status(request) {
                    1 => {}
                    status => break status,
                }
                if self.worker.progress() {
                    idle = 0;
                    continue;
                }
                idle += 1;
                match idle {
                    0..SPINS => std::hint::spin_loop(),
                    SPINS..YIELDS => std::thread::yield_now(),
                    _ if Instant::now() > end => return Err(format!("{what} does not end")),
                    _ => std::thread::sleep(NAP),
                }
            };
            if is_request(request) {
                // SAFETY: a request of this worker that has ended.
                unsafe { (self.ucp().request_free)(request) };
            }
            self.ucp().check(what, status)?;
        }
        Ok(())
    }

    /// The status of what a call returned: nothing, an error, or a request.
    fn status(&self, request: Handle) -> i8 {
        match is_request(request) {
            // SAFETY: a request of this worker that is not freed yet.
            true => unsafe { (self.ucp().request_status)(request) },
            false => request as isize as i8,
        }
    }

    fn reserve(&mut self, bytes: usize) {
        if self.words.len() * 8 < bytes {
            self.words = vec![0; bytes.div_ceil(8)];
        }
    }

    /// Executes reads, or one other operation.
    fn execute(&mut self, run: &mut [Operation<'_>]) -> Result<(), String> {
        match run {
            [Operation::Write { offset, from }] => self.write(*offset, from),
            [Operation::FetchAdd { offset, add, old }] => {
                *old = self.atomic(ADD, *offset, *add, 0)?;
                Ok(())
            }
            [Operation::CompareSwap { offset, expected, new, old }] => {
                *old = self.atomic(COMPARE_SWAP, *offset, *expected, *new)?;
                Ok(())
            }
            reads => self.read(reads),
        }
    }

    fn read(&mut self, run: &mut [Operation<'_>]) -> Result<(), String> {
        let mut parts: Vec<(u64, &mut [u8])> = Vec::with_capacity(run.len());
        for operation in run {
            if let Operation::Read { offset, into } = operation {
                parts.push((*offset, into));
            }
        }
        let total = parts.iter().map(|(_, into)| into.len()).sum();
        self.reserve(total);
        let params = Fields::new(0, &[]);
        let at: *mut u8 = self.words.as_mut_ptr().cast();
        let (mut done, mut requests) = (0, Vec::with_capacity(parts.len()));
        for (offset, into) in parts.iter().filter(|(_, into)| !into.is_empty()) {
            // SAFETY: the place is in `words`, which is not touched until the request has ended, or is leaked.
            requests.push(unsafe {
                let into_words = at.add(done).cast();
                (self.ucp().get)(self.endpoint, into_words, into.len(), self.base + offset, self.key, &params)
            });
            done += into.len();
        }
        self.wait("a read through UCX", &requests)?;
        let mut from: &[u8] = bytemuck::cast_slice(&self.words);
        for (_, into) in parts {
            let (own, rest) = from.split_at(into.len());
            into.copy_from_slice(own);
            from = rest;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), String> {
        if from.is_empty() {
            return Ok(());
        }
        self.reserve(from.len());
        bytemuck::cast_slice_mut(&mut self.words)[..from.len()].copy_from_slice(from);
        let params = Fields::new(0, &[]);
        let at = self.words.as_ptr().cast();
        // SAFETY: the bytes are in `words`, which is not touched until the request has ended, or is leaked.
        let put =
            unsafe { (self.ucp().put)(self.endpoint, at, from.len(), self.base + offset, self.key, &params) };
        self.wait("a write through UCX", &[put])?;
        // The write is in the region once the endpoint is flushed.
        // SAFETY: the endpoint exists; the parameters live through the call.
        let flush = unsafe { (self.ucp().endpoint_flush)(self.endpoint, &params) };
        self.wait("a write through UCX", &[flush])
    }

    /// Returns the word before.
    fn atomic(&mut self, code: u32, offset: u64, operand: u64, new: u64) -> Result<u64, String> {
        self.reserve(16);
        self.words[..2].copy_from_slice(&[operand, new]);
        let at = self.words.as_mut_ptr();
        // SAFETY: the second word of `words`.
        let reply = unsafe { at.add(1) };
        // The mask is the first half of the first field, flags are the other.
        let params = Fields::new(DATATYPE | REPLY_BUFFER, &[(3, WORD_TYPE), (5, reply as u64)]);
        // SAFETY: operand and reply are in `words`, which is not touched until the request has ended, or is leaked.
        let request = unsafe {
            (self.ucp().atomic)(self.endpoint, code, at.cast(), 1, self.base + offset, self.key, &params)
        };
        self.wait("an atomic operation through UCX", &[request])?;
        Ok(self.words[1])
    }
}

/// Whether a call returned a request, and neither success (null) nor an error (a small negative number).
fn is_request(request: Handle) -> bool {
    request as isize > 0
}

impl Drop for Attached {
    fn drop(&mut self) {
        let params = Fields::new(0, &[]);
        // SAFETY: both belong to this worker, and no request uses them any more.
        let request = unsafe {
            (self.ucp().key_destroy)(self.key);
            (self.ucp().endpoint_close)(self.endpoint, &params)
        };
        let end = Instant::now() + CLOSE;
        while self.status(request) == 1 && Instant::now() < end {
            self.worker.progress();
        }
        if is_request(request) {
            // SAFETY: a request of this worker; one that has not ended is freed when it does.
            unsafe { (self.ucp().request_free)(request) };
        }
    }
}
