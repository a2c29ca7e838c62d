//! One connection of a memory node that has greeted: requests in order.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::super::protocol::{self, Refusal, ReplyHeader, Request};
use super::super::region::Region;
use super::super::{MemoryError, Operation};
use super::frames::{FRAME_TIME, FREE_BYTES, Frames, REPLY_TIME};
use crate::link::greeting::{GreetingError, Versions};
use crate::link::secure::Wire;
use crate::link::sockets;

/// Bytes of a reply that wait to be sent.
const OUTPUT_BYTES: usize = 256 << 10;
/// Bytes that are read from one connection before others have their turn.
const INPUT_BYTES: usize = 1 << 20;

/// Reason why a connection is closed.
#[derive(Debug)]
pub(super) enum End {
    /// The other side closed the connection.
    Closed,
    /// The reason.
    Because(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Because(error.to_string())
    }
}

/// A connection that has greeted.
pub(super) struct Connection {
    wire: Wire,
    descriptor: RawFd,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    reply: Option<Reply>,
    // Bytes may wait where poll(2) does not see them.
    is_eager: bool,
    is_unflushed: bool,
    number: u64,
    // Of the region that it knows.
    epoch: u64,
    // Whether it may access the region without requests.
    is_attached: bool,
    // Bytes of the allowance that its request has, and those that it waits for.
    held: usize,
    waits_for: Option<usize>,
    // When the request must have come, or its reply be made.
    deadline: Option<Instant>,
}

/// A reply that is being made.
struct Reply {
    requests: Vec<Request>,
    frame: Vec<u8>,
    // The request that is executed, and bytes of its result so far.
    at: usize,
    done: u64,
    sum: Xxh3,
}

impl Connection {
    /// Begins to take requests.
    pub(super) fn new(wire: Wire, number: u64, epoch: u64) -> io::Result<Connection> {
        sockets::end_when_silent(wire.socket())?;
        Ok(Connection {
            descriptor: wire.socket().as_raw_fd(),
            wire,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            reply: None,
            // A request may have come with the greeting.
            is_eager: true,
            is_unflushed: false,
            number,
            epoch,
            is_attached: false,
            held: 0,
            waits_for: None,
            deadline: None,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Whether it takes more bytes. One whose reply is not made yet takes none, nor one that waits for memory.
    pub(super) fn wants_input(&self) -> bool {
        self.reply.is_none() && self.waits_for.is_none()
    }

    /// Whether the memory that it waits for is there.
    pub(super) fn can_go_on(&self, frames: &Frames) -> bool {
        self.waits_for.is_some_and(|bytes| frames.has_room(self.number, bytes))
    }

    /// Time at which it is closed, unless a request comes or its reply is made.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Bytes of its buffers.
    pub(super) fn bytes(&self) -> usize {
        let frame = self.reply.as_ref().map_or(0, |reply| reply.frame.capacity());
        self.input.capacity() + self.output.capacity() + frame
    }

    /// Gives back the memory of its request.
    pub(super) fn release(&mut self, frames: &mut Frames) {
        frames.give_back(std::mem::take(&mut self.held));
        self.deadline = None;
    }

    /// Whether it has bytes that poll(2) does not see.
    pub(super) fn is_eager(&self) -> bool {
        self.is_eager && self.wants_input()
    }

    /// Whether it has something to send.
    pub(super) fn wants_output(&self) -> bool {
        self.sent < self.output.len() || self.reply.is_some() || self.is_unflushed
    }

    /// Reads what has come, and begins to execute a whole request.
    pub(super) fn receive(&mut self, region: &Region, frames: &mut Frames) -> Result<(), End> {
        (self.is_eager, self.waits_for) = (false, None);
        let mut taken = 0;
        while self.wants_input() {
            let wanted = self.wanted()?;
            if self.input.len() >= wanted {
                let request = std::mem::take(&mut self.input);
                self.begin(request, region)?;
                match self.reply.is_some() && self.held > 0 {
                    true => self.deadline = Some(Instant::now() + REPLY_TIME),
                    false => self.release(frames),
                }
                continue;
            }
            if !self.makes_room(wanted, frames) {
                break;
            }
            if taken >= INPUT_BYTES {
                self.is_eager = true;
                break;
            }
            let have = self.input.len();
            self.input.resize(wanted.min(have + OUTPUT_BYTES), 0);
            let read = self.wire.read(&mut self.input[have..]);
            self.input.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) if have == 0 => return Err(End::Closed),
                Ok(0) => return Err(End::Because("it ended within a request".into())),
                Ok(n) => {
                    taken += n;
                    if have == 0 {
                        self.deadline = Some(Instant::now() + FRAME_TIME);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        // What follows a request waits until its reply is made.
        self.is_eager |= self.reply.is_some();
        Ok(())
    }

    /// Makes room for a whole request. A long one takes it from the allowance, and waits where there is none.
    fn makes_room(&mut self, wanted: usize, frames: &mut Frames) -> bool {
        if self.held == 0 && wanted > FREE_BYTES {
            if !frames.take(self.number, wanted) {
                (self.waits_for, self.deadline) = (Some(wanted), None);
                return false;
            }
            (self.held, self.deadline) = (wanted, Some(Instant::now() + FRAME_TIME));
        }
        self.input.reserve_exact(wanted - self.input.len());
        true
    }

    /// Bytes of the whole request at the front.
    fn wanted(&self) -> Result<usize, End> {
        let length = protocol::request_len(&self.input).map_err(|e| End::Because(e.to_string()))?;
        Ok(length.unwrap_or(protocol::REQUEST_HEADER))
    }

    /// Begins the reply to a request.
    fn begin(&mut self, frame: Vec<u8>, region: &Region) -> Result<(), End> {
        let (number, requests) = protocol::decode(&frame).map_err(|e| End::Because(e.to_string()))?;
        let now = region.facts().epoch;
        if requests == [Request::Facts] {
            self.epoch = now;
        }
        let begins_load = requests.iter().any(|request| matches!(request, Request::Load { .. }));
        if begins_load && requests.len() > 1 {
            return Err(End::Because("a load begins in a request of its own".into()));
        }
        let checked = match protocol::check(&requests, region.facts().region_bytes) {
            _ if self.epoch != now && !begins_load => {
                Err(MemoryError::EpochChanged { address: String::new(), expected: self.epoch, found: now })
            }
            Ok(()) if region.attach().is_empty() && requests.contains(&Request::Attach) => {
                Err(MemoryError::Unavailable { address: String::new(), why: String::new() })
            }
            checked => checked,
        };
        let refusal = checked.err().and_then(|error| Refusal::of(&error));
        if let Some(Refusal { code, body }) = refusal {
            let header = ReplyHeader { number, code, body_bytes: body.len() as u64 };
            self.output.extend_from_slice(&header.bytes());
            self.output.extend_from_slice(&body);
            self.output.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&body).to_le_bytes());
            return Ok(());
        }
        let body_bytes = requests.iter().map(|request| request.result_bytes(region.attach().len())).sum();
        self.output.extend_from_slice(&ReplyHeader { number, code: 0, body_bytes }.bytes());
        self.reply = Some(Reply { requests, frame, at: 0, done: 0, sum: Xxh3::new() });
        Ok(())
    }

    /// The number of the load that its request begins. The connection is bound to it.
    pub(super) fn begins_load(&mut self) -> Option<u64> {
        match self.reply.as_ref().and_then(|reply| reply.requests.get(reply.at)) {
            Some(&Request::Load { load }) => {
                self.epoch = load;
                Some(load)
            }
            _ => None,
        }
    }

    /// Whether it is to be closed once the region has this epoch.
    pub(super) fn is_late(&self, epoch: u64) -> bool {
        self.epoch != epoch && (self.is_attached || self.reply.is_some())
    }

    /// Executes the present request, as long as its results have room.
    pub(super) fn produce(&mut self, region: &Region, frames: &mut Frames) {
        if self.epoch != region.facts().epoch {
            return;
        }
        let Some(reply) = &mut self.reply else { return };
        while self.output.len() - self.sent < OUTPUT_BYTES {
            let Some(request) = reply.requests.get(reply.at) else {
                self.output.extend_from_slice(&reply.sum.digest().to_le_bytes());
                self.reply = None;
                self.release(frames);
                return;
            };
            let from = self.output.len();
            self.is_attached |= *request == Request::Attach;
            let is_done = reply.execute(*request, region, &mut self.output);
            reply.sum.update(&self.output[from..]);
            if is_done {
                (reply.at, reply.done) = (reply.at + 1, 0);
            }
        }
    }

    /// Sends what it can.
    pub(super) fn send(&mut self) -> Result<(), End> {
        while self.sent < self.output.len() {
            match self.wire.write(&self.output[self.sent..]) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        self.is_unflushed = match self.wire.flush() {
            Ok(()) => false,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => true,
            Err(e) => return Err(e.into()),
        };
        Ok(())
    }
}

impl Reply {
    /// Executes a part of a request. Returns whether it was the last.
    fn execute(&mut self, request: Request, region: &Region, out: &mut Vec<u8>) -> bool {
        let frame = &self.frame;
        let atomic = |mut operation: Operation<'_>, out: &mut Vec<u8>| {
            region.execute(&mut operation);
            out.extend_from_slice(&operation.old().to_le_bytes());
        };
        match request {
            Request::Facts => out.extend_from_slice(&protocol::facts_bytes(&region.facts())),
            Request::Attach => out.extend_from_slice(region.attach()),
            Request::Load { .. } => {}
            Request::Write { offset, at, bytes } => {
                let from = &frame[at..at + bytes as usize];
                region.execute(&mut Operation::Write { offset, from });
            }
            Request::FetchAdd { offset, add } => atomic(Operation::FetchAdd { offset, add, old: 0 }, out),
            Request::CompareSwap { offset, expected, new } => {
                atomic(Operation::CompareSwap { offset, expected, new, old: 0 }, out);
            }
            Request::Read { offset, bytes } => {
                let part = (u64::from(bytes) - self.done).min(OUTPUT_BYTES as u64);
                let from = out.len();
                out.resize(from + part as usize, 0);
                region.read(offset + self.done, &mut out[from..]);
                self.done += part;
                return self.done == u64::from(bytes);
            }
        }
        true
    }
}

/// Reason why a greeting fails, in words for a memory node.
pub(super) fn refusal(why: &GreetingError) -> String {
    match why {
        GreetingError::Secret => {
            "it has another key; give it the file of --key-file that this node has".into()
        }
        GreetingError::Stranger => {
            "it is no compute node of stratann; check what connects to this address".into()
        }
        GreetingError::Versions(theirs) => versions_differ(theirs),
        why => why.to_string(),
    }
}

/// Message about a side with other versions.
pub(in super::super) fn versions_differ(theirs: &Versions) -> String {
    let (oldest, newest) = theirs.frames;
    format!(
        "it speaks versions {oldest} to {newest} of the protocol of memory nodes, this program {}; run one version",
        protocol::VERSION
    )
}
