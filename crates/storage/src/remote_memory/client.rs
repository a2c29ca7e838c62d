//! Remote memory over TCP.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::connect::Credentials;
use super::node::{versions, versions_differ};
use super::operation::check_limits;
use super::protocol::{self, FrameError, REPLY_HEADER, REPLY_SUM, Refusal, ReplyHeader, Request};
use super::{Facts, MemoryError, NodeId, Operation, RemoteMemory};
use crate::link::greeting::{self, GreetingError, Identity, REMOTE_MEMORY};
use crate::link::secure::Wire;
use crate::link::sockets::is_quiet;
use crate::link::timed::Timed;
use crate::link::{GREETING, SILENCE};

/// A node that sends nothing for this long, within a reply, counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Least rate of a long request and its reply, bytes a second: with it they have more time as a whole.
const LEAST_RATE: u64 = 256 << 10;
/// Pauses between attempts to reach a node: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Most bytes of what a node sends for attach.
const ATTACH_BYTES_MAX: u64 = 64 << 10;

/// A connection to a memory node, which is dialed again when it breaks.
pub(super) struct TcpMemory {
    address: String,
    credentials: Credentials,
    facts: Facts,
    wire: Option<Wire>,
    // The socket of `wire`.
    handle: Option<TcpStream>,
    number: u64,
    frame: Vec<u8>,
    // Set while dialing fails.
    failed: Option<FailedDial>,
}

struct FailedDial {
    /// Time of the next try.
    again: Instant,
    /// Pause after the next try.
    pause: Duration,
    why: MemoryError,
}

/// Failure of an exchange.
enum Failure {
    /// The node refused it; the connection goes on.
    Refused(MemoryError),
    /// The connection broke.
    Io(io::Error),
    /// The bytes that came are no reply.
    Frame(FrameError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Failure {
        Failure::Frame(error)
    }
}

impl TcpMemory {
    /// Dials a node.
    pub(super) fn connect(address: &str, credentials: &Credentials) -> Result<TcpMemory, MemoryError> {
        let nowhere = Facts { node: NodeId(0), region_bytes: 0, epoch: 0 };
        let mut memory = TcpMemory {
            address: address.into(),
            credentials: credentials.clone(),
            facts: nowhere,
            wire: None,
            handle: None,
            number: 0,
            frame: Vec::new(),
            failed: None,
        };
        memory.dial()?;
        Ok(memory)
    }

    /// Sends attach, and returns what comes.
    pub(super) fn attach(&mut self) -> Result<Vec<u8>, MemoryError> {
        let mut wire = self.take_wire()?;
        protocol::encode_plain(self.next_number(), Request::Attach, &mut self.frame);
        let attached = plain(&mut wire, &self.frame, (self.number, &self.address), ATTACH_BYTES_MAX);
        self.finish(wire, attached, false)
    }

    /// Begins a load: the region is zeros then, and only this connection is bound to it.
    pub(super) fn begin_load(&mut self, load: u64) -> Result<(), MemoryError> {
        let mut wire = self.take_wire()?;
        protocol::encode_plain(self.next_number(), Request::Load { load }, &mut self.frame);
        let begun = plain(&mut wire, &self.frame, (self.number, &self.address), 0);
        self.finish(wire, begun, true)?;
        self.facts.epoch = load;
        Ok(())
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The connection, dialed if there is none.
    fn take_wire(&mut self) -> Result<Wire, MemoryError> {
        if self.wire.is_none() {
            if let Some(FailedDial { again, why, .. }) = &self.failed
                && Instant::now() < *again
            {
                return Err(why.clone());
            }
            self.dial().inspect_err(|why| {
                let pause = self.failed.as_ref().map_or(FIRST_PAUSE, |failed| failed.pause);
                let again = Instant::now() + pause;
                self.failed =
                    Some(FailedDial { again, pause: (pause * 2).min(LAST_PAUSE), why: why.clone() });
            })?;
        }
        self.failed = None;
        self.wire.take().ok_or_else(|| self.disconnected("there is no connection".into(), false))
    }

    fn disconnected(&self, why: String, may_have_run: bool) -> MemoryError {
        MemoryError::Disconnected { address: self.address.clone(), why, may_have_run }
    }

    /// Dials and greets. The first time it learns the facts, later it compares the epoch.
    fn dial(&mut self) -> Result<(), MemoryError> {
        let gone = |e: io::Error| self.disconnected(reason(&e), false);
        let stream = open(&self.address).map_err(gone)?;
        let handle = stream.try_clone().map_err(gone)?;
        let tls = self.credentials.tls.as_ref();
        let timed = Timed::new(stream, GREETING).map_err(gone)?;
        let mut wire = Wire::dial(tls, &self.address, timed).map_err(gone)?;
        let secret = &self.credentials.secret;
        let me = Identity { server: 1, servers: 2, build: 0, secret, versions: versions() };
        greeting::dial_as(&REMOTE_MEMORY, &me, 0, &mut wire).map_err(|e| self.greeting_failed(e))?;
        wire.end_greeting().map_err(gone)?;
        handle.set_read_timeout(Some(PATIENCE)).map_err(gone)?;
        handle.set_write_timeout(Some(PATIENCE)).map_err(gone)?;
        protocol::encode_plain(self.next_number(), Request::Facts, &mut self.frame);
        let facts = plain(&mut wire, &self.frame, (self.number, &self.address), protocol::FACTS_BYTES as u64)
            .and_then(|bytes| Ok(protocol::read_facts(&bytes)?));
        let facts = facts.map_err(|failure| self.failed_by(failure, false))?;
        if self.facts.epoch == 0 {
            self.facts = facts;
        } else if self.facts.epoch != facts.epoch {
            let (address, expected) = (self.address.clone(), self.facts.epoch);
            return Err(MemoryError::EpochChanged { address, expected, found: facts.epoch });
        }
        self.wire = Some(wire);
        self.handle = Some(handle);
        Ok(())
    }

    /// Whether the connection is open, and the node has not closed it.
    pub(super) fn is_open(&self) -> bool {
        self.wire.is_some() && self.handle.as_ref().is_some_and(is_quiet)
    }

    fn greeting_failed(&self, error: GreetingError) -> MemoryError {
        let address = self.address.clone();
        match error {
            GreetingError::Io(e) => self.disconnected(reason(&e), false),
            GreetingError::Secret => MemoryError::Key { address },
            GreetingError::Versions(theirs) => {
                MemoryError::Version { address, why: versions_differ(&theirs) }
            }
            why => MemoryError::Version { address, why: why.to_string() },
        }
    }

    fn failed_by(&self, failure: Failure, may_have_run: bool) -> MemoryError {
        match failure {
            Failure::Refused(error) => error,
            Failure::Io(e) => self.disconnected(reason(&e), may_have_run),
            Failure::Frame(e) => MemoryError::Protocol { address: self.address.clone(), why: e.to_string() },
        }
    }

    /// Keeps the connection unless it broke.
    fn finish<T>(
        &mut self,
        wire: Wire,
        result: Result<T, Failure>,
        may_have_run: bool,
    ) -> Result<T, MemoryError> {
        if matches!(result, Ok(_) | Err(Failure::Refused(_))) {
            self.wire = Some(wire);
        }
        result.map_err(|failure| self.failed_by(failure, may_have_run))
    }

    fn execute_once(&mut self, operations: &mut [Operation<'_>], changes: bool) -> Result<(), MemoryError> {
        let mut wire = self.take_wire()?;
        protocol::encode(self.next_number(), operations, &mut self.frame);
        let result = exchange(&mut wire, &self.frame, (self.number, &self.address), operations);
        // A large write is not kept in memory.
        self.frame.clear();
        self.frame.shrink_to(64 << 10);
        self.finish(wire, result, changes)
    }
}

impl RemoteMemory for TcpMemory {
    fn facts(&self) -> Facts {
        self.facts
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn execute(&mut self, operations: &mut [Operation<'_>]) -> Result<(), MemoryError> {
        check_limits(operations.iter().map(Operation::access))?;
        let changes = operations.iter().any(Operation::changes);
        match self.execute_once(operations, changes) {
            // Reads may be repeated; a connection that broke long ago is found out only now.
            Err(MemoryError::Disconnected { .. }) if !changes && self.failed.is_none() => {
                self.execute_once(operations, changes)
            }
            result => result,
        }
    }

    fn begin_load(&mut self, load: u64) -> Result<(), MemoryError> {
        TcpMemory::begin_load(self, load)
    }

    fn backend(&self) -> &'static str {
        "tcp"
    }
}

fn open(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, SILENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".into(),
        io::ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    }
}

/// Sends a request and reads the header of its reply, which may have so many bytes. A refusal is read whole.
fn request(
    wire: &mut Wire,
    frame: &[u8],
    (number, address): (u64, &str),
    reply_bytes: u64,
) -> Result<u64, Failure> {
    wire.begin_exchange(PATIENCE + Duration::from_secs((frame.len() as u64 + reply_bytes) / LEAST_RATE));
    wire.write_all(frame)?;
    wire.flush()?;
    let mut header = [0; REPLY_HEADER];
    wire.read_exact(&mut header)?;
    let header = ReplyHeader::read(&header)?;
    if header.number != number {
        return Err(FrameError::Content.into());
    }
    if header.code == 0 {
        return Ok(header.body_bytes);
    }
    let mut body = [0; Refusal::BYTES];
    if header.body_bytes != body.len() as u64 {
        return Err(FrameError::Content.into());
    }
    wire.read_exact(&mut body)?;
    check_sum(wire, xxh3_64(&body))?;
    Err(Refusal::error(header.code, &body, address)
        .map_or(Failure::Frame(FrameError::Content), Failure::Refused))
}

fn check_sum(wire: &mut Wire, sum: u64) -> Result<(), Failure> {
    let mut found = [0; REPLY_SUM];
    wire.read_exact(&mut found)?;
    if u64::from_le_bytes(found) == sum { Ok(()) } else { Err(FrameError::Checksum.into()) }
}

/// Sends a request of the node itself, and returns the body of the reply.
fn plain(wire: &mut Wire, frame: &[u8], call: (u64, &str), bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let length = request(wire, frame, call, bytes_max)?;
    if length > bytes_max {
        return Err(FrameError::TooLarge.into());
    }
    let mut body = vec![0; length as usize];
    wire.read_exact(&mut body)?;
    check_sum(wire, xxh3_64(&body))?;
    Ok(body)
}

/// Sends operations, and stores their results.
fn exchange(
    wire: &mut Wire,
    frame: &[u8],
    call: (u64, &str),
    operations: &mut [Operation<'_>],
) -> Result<(), Failure> {
    let results = operations.iter().map(|operation| match operation {
        Operation::Read { into, .. } => into.len() as u64,
        Operation::Write { .. } => 0,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => 8,
    });
    let results = results.sum();
    if request(wire, frame, call, results)? != results {
        return Err(FrameError::Content.into());
    }
    let mut sum = Xxh3::new();
    for operation in operations {
        match operation {
            Operation::Read { into, .. } => {
                wire.read_exact(into)?;
                sum.update(into);
            }
            Operation::Write { .. } => {}
            Operation::FetchAdd { old, .. } | Operation::CompareSwap { old, .. } => {
                let mut bytes = [0; 8];
                wire.read_exact(&mut bytes)?;
                sum.update(&bytes);
                *old = u64::from_le_bytes(bytes);
            }
        }
    }
    check_sum(wire, sum.digest())
}
