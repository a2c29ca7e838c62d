//! Runs the machines of [`stratann_core::remote_protocol`] over connections to memory nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stratann_core::remote_protocol::{Answer, Op, Step};

use super::connect::connect_answering;
use super::known::{Dialed, Known};
use super::operation::{OPERATIONS_MAX, READ_BYTES_MAX, WRITE_BYTES_MAX};
use super::{Credentials, Facts, MemoryError, NodeId, Operation, RemoteCounters, RemoteMemory};

/// Time that a machine waits that has asked to.
const PAUSE: Duration = Duration::from_millis(1);

/// Connections to memory nodes, for one thread.
pub struct Nodes {
    by_number: Vec<Option<Box<dyn RemoteMemory>>>,
    error: Option<MemoryError>,
    /// Nodes that did not answer the last request to them.
    lost: BTreeSet<u8>,
    /// Requests that were sent, and bytes that they read.
    round_trips: u64,
    bytes_read: u64,
    /// Requests that [`Nodes::asked`] has counted, and [`Nodes::requests`] has not.
    requests: u64,
    /// Counters of all connections of a compute node.
    counters: Option<Arc<RemoteCounters>>,
}

/// Requests since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Requests.
    pub round_trips: u64,
    /// Bytes that they read.
    pub bytes_read: u64,
}

impl Nodes {
    /// Connects to all nodes that answer. One that does not is lost.
    ///
    /// # Errors
    /// No node answers: why the first one does not. Two nodes have one number.
    pub fn new(addresses: &[String], credentials: &Credentials) -> Result<Nodes, MemoryError> {
        let (nodes, error) = connect_answering(addresses, credentials)?;
        Ok(Nodes { error, ..Nodes::of(nodes) })
    }

    /// Nodes of an open index, which are dialed when something is asked of them.
    pub(super) fn dialed(known: &[Known], credentials: &Credentials) -> Nodes {
        Nodes::of(known.iter().map(|own| Dialed::boxed(own, credentials)).collect())
    }

    /// Nodes by number.
    fn of(nodes: Vec<Box<dyn RemoteMemory>>) -> Nodes {
        let mut by_number = Vec::new();
        for memory in nodes {
            by_number.resize_with(usize::from(memory.facts().node.0), || None);
            by_number.push(Some(memory));
        }
        Nodes {
            by_number,
            error: None,
            lost: BTreeSet::new(),
            round_trips: 0,
            bytes_read: 0,
            requests: 0,
            counters: None,
        }
    }

    /// Counts what is read also there.
    pub(super) fn counted(self, counters: &Arc<RemoteCounters>) -> Nodes {
        Nodes { counters: Some(counters.clone()), ..self }
    }

    fn note_read(&mut self, node: u8, bytes: u64) {
        self.bytes_read += bytes;
        self.counters.iter().for_each(|counters| counters.read(NodeId(node), bytes));
    }

    /// Properties of the nodes that answered, by number.
    pub fn facts(&self) -> Vec<Facts> {
        self.by_number.iter().flatten().map(|memory| memory.facts()).collect()
    }

    /// The addresses of the nodes that answered, and their properties.
    pub(super) fn known(&self) -> Vec<Known> {
        let nodes = self.by_number.iter().flatten();
        nodes.map(|memory| Known { address: memory.address().into(), facts: memory.facts() }).collect()
    }

    /// Reason why a node was lost last.
    pub fn last_error(&self) -> Option<&MemoryError> {
        self.error.as_ref()
    }

    /// Whether a node did not answer the last request to it.
    pub fn is_lost(&self, node: u8) -> bool {
        self.lost.contains(&node)
    }

    /// Requests since the last call.
    pub fn asked(&mut self) -> Asked {
        let (round_trips, bytes_read) =
            (std::mem::take(&mut self.round_trips), std::mem::take(&mut self.bytes_read));
        self.requests += round_trips;
        Asked { round_trips, bytes_read }
    }

    /// All requests since the last call, whatever [`Nodes::asked`] has counted.
    pub fn requests(&mut self) -> u64 {
        std::mem::take(&mut self.requests) + std::mem::take(&mut self.round_trips)
    }

    /// Reads bytes of a node, in as many requests as they need.
    ///
    /// # Errors
    /// Why the node does not give them.
    pub fn read(&mut self, node: u8, offset: u64, bytes: u64) -> Result<Vec<u8>, MemoryError> {
        let mut out = vec![0; bytes as usize];
        let parts = out.chunks_mut(READ_BYTES_MAX as usize);
        for (offset, into) in (offset..).step_by(READ_BYTES_MAX as usize).zip(parts) {
            self.note_read(node, into.len() as u64);
            self.execute(node, &mut [Operation::Read { offset, into }])?;
        }
        Ok(out)
    }

    /// Executes operations of one request on a node.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`].
    pub fn execute(&mut self, node: u8, operations: &mut [Operation<'_>]) -> Result<(), MemoryError> {
        self.round_trips += 1;
        let done = match self.by_number.get_mut(usize::from(node)) {
            Some(Some(memory)) => memory.execute(operations),
            _ => Err(MemoryError::Missing { node }),
        };
        done.inspect_err(|e| self.counters.iter().for_each(|counters| counters.note(e)))
    }

    /// Begins a load on all nodes, which are empty then. Only these connections may write it.
    ///
    /// # Errors
    /// As [`RemoteMemory::begin_load`].
    pub fn begin_load(&mut self, load: u64) -> Result<(), MemoryError> {
        self.by_number.iter_mut().flatten().try_for_each(|memory| memory.begin_load(load))
    }

    /// Steps a machine to its end.
    pub fn run<T>(&mut self, mut step: impl FnMut(Vec<Answer>) -> Step<T>) -> T {
        let mut answers = Vec::new();
        loop {
            match step(std::mem::take(&mut answers)) {
                Step::Ask(ops) => answers = self.ask(ops),
                Step::Pause => std::thread::sleep(PAUSE),
                Step::Done(outcome) => return outcome,
            }
        }
    }

    /// Steps machines side by side to their ends: what all of them ask for at a time goes out together. `step` steps
    /// the machine with a number.
    pub fn run_batch<T>(
        &mut self,
        machines: usize,
        mut step: impl FnMut(usize, Vec<Answer>) -> Step<T>,
    ) -> Vec<T> {
        let mut ends: Vec<Option<T>> = (0..machines).map(|_| None).collect();
        let mut answers: Vec<Vec<Answer>> = (0..machines).map(|_| Vec::new()).collect();
        while ends.iter().any(Option::is_none) {
            let (mut all, mut counts, mut has_pause) = (Vec::new(), vec![0; machines], false);
            for (machine, end) in ends.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
                match step(machine, std::mem::take(&mut answers[machine])) {
                    Step::Ask(ops) => {
                        counts[machine] = ops.len();
                        all.extend(ops);
                    }
                    Step::Pause => has_pause = true,
                    Step::Done(outcome) => *end = Some(outcome),
                }
            }
            // Machines count their pauses to find out who stands still.
            if has_pause {
                std::thread::sleep(PAUSE);
            }
            let mut found = self.ask(all).into_iter();
            for (own, count) in answers.iter_mut().zip(counts) {
                own.extend(found.by_ref().take(count));
            }
        }
        ends.into_iter().flatten().collect()
    }

    /// Executes operations: those of each node in order, as one request, or as several where they are many. Once a node
    /// is lost nothing more is asked of it.
    pub fn ask(&mut self, ops: Vec<Op>) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; ops.len()];
        let mut numbers: Vec<u8> = ops.iter().map(|op| op.at().node()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for node in numbers {
            let own: Vec<usize> = (0..ops.len()).filter(|&at| ops[at].at().node() == node).collect();
            let mut is_lost = false;
            for request in requests(&ops, &own) {
                if !is_lost && let Err(e) = self.request(node, &ops, request, &mut answers) {
                    self.error = Some(e);
                    is_lost = true;
                }
            }
            self.lost.remove(&node);
            if is_lost {
                self.lost.insert(node);
                own.iter().for_each(|&at| answers[at] = Some(Answer::Lost(node)));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Answer::Written)).collect()
    }

    fn request(
        &mut self,
        node: u8,
        ops: &[Op],
        numbers: &[usize],
        answers: &mut [Option<Answer>],
    ) -> Result<(), MemoryError> {
        let mut buffers: Vec<Vec<u8>> = numbers
            .iter()
            .map(
                |&at| if let Op::Read { bytes, .. } = ops[at] { vec![0; bytes as usize] } else { Vec::new() },
            )
            .collect();
        let mut operations: Vec<Operation<'_>> =
            numbers.iter().zip(&mut buffers).map(|(&at, into)| operation(&ops[at], into)).collect();
        self.execute(node, &mut operations)?;
        let words: Vec<u64> = operations.iter().map(Operation::old).collect();
        for ((&at, bytes), word) in numbers.iter().zip(buffers).zip(words) {
            self.note_read(node, bytes.len() as u64);
            answers[at] = Some(match ops[at] {
                Op::Read { .. } => Answer::Bytes(bytes),
                Op::Write { .. } => Answer::Written,
                Op::FetchAdd { .. } | Op::CompareSwap { .. } => Answer::Word(word),
            });
        }
        Ok(())
    }
}

fn operation<'a>(op: &'a Op, into: &'a mut [u8]) -> Operation<'a> {
    let offset = op.at().offset();
    match op {
        Op::Read { .. } => Operation::Read { offset, into },
        Op::Write { bytes, .. } => Operation::Write { offset, from: bytes },
        Op::FetchAdd { add, .. } => Operation::FetchAdd { offset, add: *add, old: 0 },
        Op::CompareSwap { expect, new, .. } => {
            Operation::CompareSwap { offset, expected: *expect, new: *new, old: 0 }
        }
    }
}

/// Cuts the operations of a node into requests within the limits.
fn requests<'a>(ops: &[Op], own: &'a [usize]) -> Vec<&'a [usize]> {
    let (mut cut, mut from, mut read, mut written) = (Vec::new(), 0, 0, 0);
    for (at, &op) in own.iter().enumerate() {
        let (more_read, more_written) = match &ops[op] {
            Op::Read { bytes, .. } => (*bytes, 0),
            Op::Write { bytes, .. } => (0, bytes.len() as u64),
            _ => (0, 0),
        };
        let is_full = at - from == OPERATIONS_MAX
            || read + more_read > READ_BYTES_MAX
            || written + more_written > WRITE_BYTES_MAX;
        if is_full && at > from {
            cut.push(&own[from..at]);
            (from, read, written) = (at, 0, 0);
        }
        (read, written) = (read + more_read, written + more_written);
    }
    cut.push(&own[from..]);
    cut
}
