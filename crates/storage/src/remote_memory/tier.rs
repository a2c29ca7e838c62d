//! Remote memory as a tier: reads become doorbells.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use super::operation::{OPERATIONS_MAX, READ_BYTES_MAX, WORD};
use super::{Facts, MemoryError, NodeId, Operation, RemoteMemory};
use crate::tier::{Buffer, Completion, FileId, FileIds, Tier, Waker};

/// Exact counters of reads, shared by the threads of a compute node.
#[derive(Debug, Default)]
pub struct RemoteCounters {
    round_trips: AtomicU64,
    ranges: AtomicU64,
    /// Bytes that were read, by node.
    bytes: Mutex<Vec<u64>>,
    last_error: Mutex<Option<MemoryError>>,
    /// Set once a node has another load.
    replaced: OnceLock<MemoryError>,
}

impl RemoteCounters {
    /// The error of the last doorbell that failed.
    pub fn last_error(&self) -> Option<MemoryError> {
        self.last_error.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Reason why the load that was opened is over, once it is.
    pub fn replaced(&self) -> Option<&MemoryError> {
        self.replaced.get()
    }

    /// Notes the error of a request that shows that the load is over.
    pub(super) fn note(&self, error: &MemoryError) {
        if let MemoryError::EpochChanged { .. } = error {
            // The first one says what was open.
            let _ = self.replaced.set(error.clone());
        }
    }

    /// Doorbells that were rung.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Ranges that were read.
    pub fn ranges(&self) -> u64 {
        self.ranges.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.bytes_by_node().iter().sum()
    }

    /// Bytes that were read of each node, by number. Nodes after the last that was read are left out.
    pub fn bytes_by_node(&self) -> Vec<u64> {
        self.bytes.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Notes bytes that were read of a node.
    pub(super) fn read(&self, node: NodeId, bytes: u64) {
        let mut all = self.bytes.lock().unwrap_or_else(|e| e.into_inner());
        let node = usize::from(node.0);
        if all.len() <= node {
            all.resize(node + 1, 0);
        }
        all[node] += bytes;
    }
}

/// A read that waits for its doorbell.
struct Job {
    tag: u64,
    offset: u64,
    // Bytes that are in the region, from the start of the buffer.
    bytes: usize,
    buffer: Buffer,
}

/// A memory node, and the thread that waits for it.
struct NodeThread {
    facts: Facts,
    waiting: Vec<Job>,
    doorbells: Sender<Vec<Job>>,
    thread: Option<JoinHandle<Option<Box<dyn RemoteMemory>>>>,
}

/// Sets of connections that no tier uses now: one to each node.
pub(super) type IdleConnections = Arc<Mutex<Vec<Vec<Box<dyn RemoteMemory>>>>>;

/// Regions of memory nodes; store `n` of its numbers is the region of node `n`.
///
/// Reads that are submitted between two starts go out together: one request a node, of up to `doorbell` ranges. Each
/// node has a thread, so a doorbell is under way while the caller computes.
pub struct RemoteTier {
    nodes: BTreeMap<NodeId, NodeThread>,
    ids: FileIds,
    doorbell: usize,
    depth: usize,
    in_flight: usize,
    // `None` is a wake.
    done: Receiver<Option<Vec<Completion>>>,
    finished: Sender<Option<Vec<Completion>>>,
    is_wakeable: bool,
    idle: Option<IdleConnections>,
}

impl RemoteTier {
    /// A tier with up to `depth` reads under way. Nodes have different numbers.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(
        memories: Vec<Box<dyn RemoteMemory>>,
        depth: usize,
        doorbell: usize,
        counters: &Arc<RemoteCounters>,
    ) -> io::Result<RemoteTier> {
        let (finished, done) = channel();
        let mut nodes = BTreeMap::new();
        for memory in memories {
            let facts = memory.facts();
            let (doorbells, queue) = channel();
            let (finished, counters) = (finished.clone(), counters.clone());
            let thread = std::thread::Builder::new()
                .name(format!("memory-{}", facts.node.0))
                .spawn(move || serve(memory, &queue, &finished, &counters))?;
            let node = NodeThread { facts, waiting: Vec::new(), doorbells, thread: Some(thread) };
            nodes.insert(facts.node, node);
        }
        let doorbell = doorbell.clamp(1, OPERATIONS_MAX);
        Ok(RemoteTier {
            nodes,
            ids: FileIds::ALONE,
            doorbell,
            depth: depth.max(1),
            in_flight: 0,
            done,
            finished,
            is_wakeable: false,
            idle: None,
        })
    }

    /// Has these numbers in the process.
    pub(super) fn numbered(mut self, ids: FileIds) -> RemoteTier {
        self.ids = ids;
        self
    }

    fn node_of(&self, file: FileId) -> Option<NodeId> {
        self.ids.store(file).map(|store| NodeId(store.0))
    }

    /// Leaves its connections there when it ends, if all of them are sound.
    pub(super) fn returning(mut self, idle: IdleConnections) -> RemoteTier {
        self.idle = Some(idle);
        self
    }

    fn take(&mut self, completed: Option<Vec<Completion>>, done: &mut Vec<Completion>) {
        let completed = completed.unwrap_or_default();
        self.in_flight -= completed.len();
        done.extend(completed);
    }
}

/// Rings doorbells one after the other. Returns the connection, if every one succeeded.
fn serve(
    mut memory: Box<dyn RemoteMemory>,
    queue: &Receiver<Vec<Job>>,
    finished: &Sender<Option<Vec<Completion>>>,
    counters: &RemoteCounters,
) -> Option<Box<dyn RemoteMemory>> {
    let mut is_sound = true;
    for mut jobs in queue {
        counters.round_trips.fetch_add(1, Ordering::Relaxed);
        counters.ranges.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        counters.read(memory.facts().node, jobs.iter().map(|job| job.bytes as u64).sum());
        let mut operations: Vec<Operation<'_>> = jobs
            .iter_mut()
            .map(|job| Operation::Read { offset: job.offset, into: &mut job.buffer.bytes_mut()[..job.bytes] })
            .collect();
        let result = memory.execute(&mut operations).map_err(|e| {
            let text = e.to_string();
            counters.note(&e);
            *counters.last_error.lock().unwrap_or_else(|e| e.into_inner()) = Some(e);
            text
        });
        is_sound &= result.is_ok();
        let complete = |job: Job| Completion {
            tag: job.tag,
            buffer: job.buffer,
            result: result.clone().map(|()| job.bytes).map_err(io::Error::other),
        };
        // The tier waits for its threads when it is dropped, so it may have gone only then.
        let _ = finished.send(Some(jobs.into_iter().map(complete).collect()));
    }
    is_sound.then_some(memory)
}

/// Cuts reads into doorbells of one request each.
fn doorbells(mut jobs: Vec<Job>, ranges_max: usize) -> Vec<Vec<Job>> {
    // Adjacent ranges become neighbours, and one range on the wire.
    jobs.sort_by_key(|job| (job.offset, job.tag));
    let mut cut: Vec<Vec<Job>> = Vec::new();
    let mut bytes = 0;
    for job in jobs {
        bytes += job.bytes as u64;
        match cut.last_mut() {
            Some(last) if last.len() < ranges_max && bytes <= READ_BYTES_MAX => last.push(job),
            _ => {
                bytes = job.bytes as u64;
                cut.push(vec![job]);
            }
        }
    }
    cut
}

impl Tier for RemoteTier {
    fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.nodes.get(&self.node_of(file)?).map(|node| node.facts.region_bytes)
    }

    fn alignment(&self) -> usize {
        WORD as usize
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        assert!(self.room() > 0, "the caller asks for room first");
        self.in_flight += 1;
        let node = self.node_of(file).and_then(|node| self.nodes.get_mut(&node));
        let Some(node) = node else {
            let result = Err(io::Error::new(io::ErrorKind::NotFound, "there is no such memory node"));
            // The receiver is this tier's own.
            let _ = self.finished.send(Some(vec![Completion { tag, buffer, result }]));
            return;
        };
        let there = node.facts.region_bytes.saturating_sub(offset);
        let bytes = (buffer.len() as u64).min(there) as usize;
        node.waiting.push(Job { tag, offset: offset.min(node.facts.region_bytes), bytes, buffer });
    }

    fn start(&mut self) -> io::Result<()> {
        for node in self.nodes.values_mut() {
            for doorbell in doorbells(std::mem::take(&mut node.waiting), self.doorbell) {
                node.doorbells
                    .send(doorbell)
                    .map_err(|_| io::Error::other("a thread of the tier has ended"))?;
            }
        }
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if wait {
            self.start()?;
        }
        let mut next = match wait && (self.in_flight > 0 || self.is_wakeable) {
            true => self.done.recv().ok(),
            false => self.done.try_recv().ok(),
        };
        while let Some(completed) = next {
            self.take(completed, done);
            next = self.done.try_recv().ok();
        }
        Ok(())
    }

    fn waker(&mut self) -> io::Result<Waker> {
        self.is_wakeable = true;
        let finished = self.finished.clone();
        Ok(Waker::new(move || drop(finished.send(None))))
    }

    fn name(&self) -> &'static str {
        "remote-memory"
    }
}

impl Drop for RemoteTier {
    fn drop(&mut self) {
        for node in self.nodes.values_mut() {
            // Ends the queue, and with it the thread.
            node.doorbells = channel().0;
        }
        let threads: Vec<_> = self.nodes.values_mut().filter_map(|node| node.thread.take()).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().ok().flatten()).collect();
        let left: Option<Vec<_>> = ended.into_iter().collect();
        if let (Some(idle), Some(memories)) = (&self.idle, left) {
            idle.lock().unwrap_or_else(|e| e.into_inner()).push(memories);
        }
    }
}
