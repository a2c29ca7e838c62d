//! Resources of a server, and prices of its work.

use stratann_core::PAGE;

use crate::trace::Work;

/// Prices and capacities of every server. They are integers, so that a replay is the same on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Threads of a server. A ready task waits for a free one.
    pub threads: usize,
    /// Preparing a query on a server: the look-up tables of its codes.
    pub prepare_ns: u64,
    /// A step, besides its comparisons.
    pub step_ns: u64,
    /// A read: submission, completion and checksum of a block.
    pub read_ns: u64,
    /// A distance of codes in the first step, which finds where to begin. Picoseconds: it takes a few nanoseconds.
    pub route_comparison_ps: u64,
    /// Any other distance of codes, with its share of decoding adjacency lists and updating the beam. Picoseconds.
    pub code_comparison_ps: u64,
    /// A distance of full vectors. Picoseconds.
    pub full_comparison_ps: u64,
    /// A job of the scorer of codes, which does one at a time: copies and launches, its share of a batch.
    pub scorer_job_ns: u64,
    /// A code that the scorer ranks. 0 where threads rank codes, at `code_comparison_ps`. Picoseconds.
    pub scorer_code_ps: u64,
    /// A component, where lists are scanned component by component. Picoseconds.
    pub component_ps: u64,
    /// A message, on the sender and again on the receiver: encoding or decoding, and its share of system calls.
    pub message_ns: u64,
    /// A byte of a message, on the sender and again on the receiver. Picoseconds.
    pub message_byte_ps: u64,
    /// Waking a search thread that waits.
    pub wake_ns: u64,
    /// A request of a client, on the server that receives it.
    pub request_ns: u64,
    /// Servers that share the cores and the disk of one host. Neighbours by number share it.
    pub servers_per_host: usize,
    /// Cores of a host; 0 for as many as its servers have threads.
    pub cores_per_host: usize,
    /// Latency of a read of one page.
    pub disk_latency_ns: u64,
    /// Reads of one page per second that a disk begins; 0 for no limit.
    pub disk_iops: u64,
    /// Bytes per second that a disk delivers beyond the first page of each read; 0 for no limit.
    pub disk_bytes_per_s: u64,
    /// Latency from the last byte sent to the received message.
    pub network_latency_ns: u64,
    /// Bits per second that a server sends; 0 for no limit.
    pub network_bits: u64,
}

const NS: u64 = 1_000_000_000;

impl Costs {
    /// Nanoseconds that a core is busy with `work`.
    pub fn work_ns(&self, work: &Work) -> u64 {
        self.search_ns(work).saturating_add(self.exchange_ns(work))
    }

    /// Nanoseconds of a search thread.
    pub(crate) fn search_ns(&self, work: &Work) -> u64 {
        let comparisons = [
            times(work.route_comparisons, self.route_comparison_ps),
            times(work.code_comparisons + self.ranked_by_threads(work), self.code_comparison_ps),
            times(work.full_comparisons, self.full_comparison_ps),
            work.components.saturating_mul(self.component_ps),
        ];
        let others = [
            times(work.prepared, self.prepare_ns),
            times(work.steps, self.step_ns),
            times(work.reads, self.read_ns),
        ];
        others.into_iter().fold(sum(&comparisons) / 1000, u64::saturating_add)
    }

    fn ranked_by_threads(&self, work: &Work) -> u32 {
        if self.scorer_code_ps == 0 { work.scored } else { 0 }
    }

    /// Nanoseconds that the scorer is busy with a job of so many codes.
    pub(crate) fn scorer_ns(&self, codes: u32) -> u64 {
        if self.scorer_code_ps == 0 {
            0
        } else {
            self.scorer_job_ns + times(codes, self.scorer_code_ps) / 1000
        }
    }

    /// Nanoseconds of the threads that exchange messages with clients and servers.
    fn exchange_ns(&self, work: &Work) -> u64 {
        let bytes = times(work.message_bytes, self.message_byte_ps) / 1000;
        sum(&[times(work.messages, self.message_ns), times(work.requests, self.request_ns), bytes])
    }

    /// Cores of a host, at least one.
    pub(crate) fn cores(&self) -> usize {
        let all = self.threads.saturating_mul(self.servers_per_host.max(1));
        if self.cores_per_host == 0 { all.max(1) } else { self.cores_per_host }
    }

    /// Nanoseconds that a read of `bytes` keeps the disk from the next one: a share of the operations, and the time of
    /// the bytes beyond the first page, which a share of the operations has.
    pub(crate) fn read_gap_ns(&self, bytes: u32) -> u64 {
        NS.checked_div(self.disk_iops).unwrap_or(0) + self.transfer_ns(bytes)
    }

    /// Least nanoseconds from the beginning of a read to its end.
    pub(crate) fn read_latency_ns(&self, bytes: u32) -> u64 {
        (self.disk_latency_ns + self.transfer_ns(bytes)).max(self.read_gap_ns(bytes))
    }

    fn transfer_ns(&self, bytes: u32) -> u64 {
        let beyond = u64::from(bytes).saturating_sub(PAGE as u64);
        (beyond * NS).checked_div(self.disk_bytes_per_s).unwrap_or(0)
    }

    /// Nanoseconds until the last of `bytes` has left.
    pub(crate) fn sending_ns(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * 8 * NS).checked_div(self.network_bits).unwrap_or(0)
    }
}

fn times(count: u32, each: u64) -> u64 {
    u64::from(count).saturating_mul(each)
}

fn sum(parts: &[u64]) -> u64 {
    parts.iter().copied().fold(0, u64::saturating_add)
}
