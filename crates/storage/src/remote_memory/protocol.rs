//! Frames between a compute node and a memory node, after the greeting. All numbers are little endian.
//!
//! | bytes of a request | content |
//! |---|---|
//! | 4 | bytes of the body |
//! | 4 | number of operations |
//! | 8 | number of the request |
//! | 8 | XXH3 of all above and the body |
//! | | body: operations |
//!
//! | operation | content after its code |
//! |---|---|
//! | 0 facts | |
//! | 1 read | offset u64, bytes u32 |
//! | 2 write | offset u64, bytes u32, the bytes |
//! | 3 fetch-and-add | offset u64, summand u64 |
//! | 4 compare-and-swap | offset u64, expected u64, new u64 |
//! | 5 attach | |
//! | 6 begin a load | number of the load u64 |
//!
//! | bytes of a reply | content |
//! |---|---|
//! | 8 | number of the request |
//! | 4 | 0, or a code of [`Refusal`] |
//! | 4 | reserved: 0 |
//! | 8 | bytes of the body |
//! | 8 | XXH3 of all above |
//! | | body: the results of the operations, in order, or three numbers of a refusal |
//! | 8 | XXH3 of the body |
//!
//! A connection is bound to the epoch that its facts named. Once a load begins, requests of others are refused: the
//! region that they know is gone. To begin a load is a request of its own.
//!
//! A result is the bytes of a read, the value before an atomic operation, nothing for a write, three numbers for facts,
//! and for attach what the ucx back end needs. The sum of the body comes last, so that the node
//! sends a long reply without holding it.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::operation::{Access, OPERATIONS_MAX, WRITE_BYTES_MAX, check_bounds, check_limits};
use super::{Facts, MemoryError, NodeId, Operation};

/// Version of the frames.
pub(super) const VERSION: u16 = 2;
/// Bytes before the body of a request.
pub(super) const REQUEST_HEADER: usize = 24;
/// Bytes before the body of a reply.
pub(super) const REPLY_HEADER: usize = 32;
/// Bytes of the sum behind the body of a reply.
pub(super) const REPLY_SUM: usize = 8;
/// Bytes of the largest operation without the bytes that it writes.
const OPERATION_BYTES_MAX: usize = 25;
/// Most bytes of the body of a request.
pub(super) const BODY_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + OPERATIONS_MAX * OPERATION_BYTES_MAX;
/// Bytes of the result of facts.
pub(super) const FACTS_BYTES: usize = 24;
/// Bytes of the body of a refusal.
const REFUSAL_BYTES: usize = 24;

/// Reason why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The body, or the number of operations, is beyond the limit.
    #[error("a frame beyond the limits")]
    TooLarge,
    /// A checksum is not that of the bytes.
    #[error("a frame with a wrong checksum")]
    Checksum,
    /// The content is not that of its kind of frame.
    #[error("a frame with other content than its header says")]
    Content,
}

/// An operation as the node reads it: what is written stays in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Facts,
    Read { offset: u64, bytes: u32 },
    Write { offset: u64, at: usize, bytes: u32 },
    FetchAdd { offset: u64, add: u64 },
    CompareSwap { offset: u64, expected: u64, new: u64 },
    Attach,
    Load { load: u64 },
}

impl Request {
    fn access(&self) -> Option<Access> {
        Some(match *self {
            Request::Facts | Request::Attach | Request::Load { .. } => return None,
            Request::Read { offset, bytes } => Access::Read { offset, bytes: bytes.into() },
            Request::Write { offset, bytes, .. } => Access::Write { offset, bytes: bytes.into() },
            Request::FetchAdd { offset, .. } | Request::CompareSwap { offset, .. } => {
                Access::Atomic { offset }
            }
        })
    }

    /// Bytes of its result; `attach_bytes` for attach.
    pub(super) fn result_bytes(&self, attach_bytes: usize) -> u64 {
        match *self {
            Request::Facts => FACTS_BYTES as u64,
            Request::Read { bytes, .. } => bytes.into(),
            Request::Write { .. } | Request::Load { .. } => 0,
            Request::FetchAdd { .. } | Request::CompareSwap { .. } => 8,
            Request::Attach => attach_bytes as u64,
        }
    }
}

/// Checks all operations of a request before the first is executed.
pub(super) fn check(requests: &[Request], region_bytes: u64) -> Result<(), MemoryError> {
    let accesses: Vec<Access> = requests.iter().filter_map(Request::access).collect();
    check_limits(accesses.iter().copied())?;
    check_bounds(accesses.into_iter(), region_bytes)
}

/// Encodes a request of the node itself.
pub(super) fn encode_plain(number: u64, request: Request, out: &mut Vec<u8>) {
    out.clear();
    out.resize(REQUEST_HEADER, 0);
    match request {
        Request::Attach => out.push(5),
        Request::Load { load } => put(out, 6, &[load]),
        _ => out.push(0),
    }
    seal(number, 1, out);
}

/// Encodes a request. Reads of adjacent ranges become one.
pub(super) fn encode(number: u64, operations: &[Operation<'_>], out: &mut Vec<u8>) {
    out.clear();
    out.resize(REQUEST_HEADER, 0);
    let (mut count, mut at) = (0, 0);
    while let Some(operation) = operations.get(at) {
        at += 1;
        match operation {
            Operation::Read { offset, into } => {
                let mut bytes = into.len() as u64;
                while let Some(Operation::Read { offset: next, into }) = operations.get(at)
                    && offset.checked_add(bytes) == Some(*next)
                    && bytes + into.len() as u64 <= u32::MAX.into()
                {
                    bytes += into.len() as u64;
                    at += 1;
                }
                put(out, 1, &[*offset]);
                out.extend_from_slice(&(bytes as u32).to_le_bytes());
            }
            Operation::Write { offset, from } => {
                put(out, 2, &[*offset]);
                out.extend_from_slice(&(from.len() as u32).to_le_bytes());
                out.extend_from_slice(from);
            }
            Operation::FetchAdd { offset, add, .. } => put(out, 3, &[*offset, *add]),
            Operation::CompareSwap { offset, expected, new, .. } => put(out, 4, &[*offset, *expected, *new]),
        }
        count += 1;
    }
    seal(number, count, out);
}

fn put(out: &mut Vec<u8>, code: u8, words: &[u64]) {
    out.push(code);
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn seal(number: u64, operations: u32, out: &mut [u8]) {
    let body = (out.len() - REQUEST_HEADER) as u32;
    out[..4].copy_from_slice(&body.to_le_bytes());
    out[4..8].copy_from_slice(&operations.to_le_bytes());
    out[8..16].copy_from_slice(&number.to_le_bytes());
    let sum = request_sum(out);
    out[16..24].copy_from_slice(&sum.to_le_bytes());
}

fn request_sum(frame: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&frame[..16]);
    sum.update(&frame[REQUEST_HEADER..]);
    sum.digest()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Length of the request at the front of `bytes`, once its header has come.
pub(super) fn request_len(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    if bytes.len() < REQUEST_HEADER {
        return Ok(None);
    }
    let (body, count) = (half(bytes, 0).unwrap_or(0), half(bytes, 4).unwrap_or(0));
    // One operation more than a request may have is refused with a reason; more are not read.
    if body as usize > BODY_BYTES_MAX || count as usize > 2 * OPERATIONS_MAX {
        return Err(FrameError::TooLarge);
    }
    Ok(Some(REQUEST_HEADER + body as usize))
}

/// Decodes a whole request: its number and operations.
pub(super) fn decode(frame: &[u8]) -> Result<(u64, Vec<Request>), FrameError> {
    if frame.len() < REQUEST_HEADER || request_len(frame)? != Some(frame.len()) {
        return Err(FrameError::Content);
    }
    if word(frame, 16) != Some(request_sum(frame)) {
        return Err(FrameError::Checksum);
    }
    let count = half(frame, 4).unwrap_or(0) as usize;
    let mut requests = Vec::with_capacity(count);
    let mut at = REQUEST_HEADER;
    for _ in 0..count {
        let (request, length) = operation(frame, at).ok_or(FrameError::Content)?;
        requests.push(request);
        at += length;
    }
    if at != frame.len() {
        return Err(FrameError::Content);
    }
    Ok((word(frame, 8).unwrap_or(0), requests))
}

fn operation(frame: &[u8], at: usize) -> Option<(Request, usize)> {
    let first = at + 1;
    Some(match *frame.get(at)? {
        0 => (Request::Facts, 1),
        1 => (Request::Read { offset: word(frame, first)?, bytes: half(frame, first + 8)? }, 13),
        2 => {
            let (offset, bytes) = (word(frame, first)?, half(frame, first + 8)?);
            let at = first + 12;
            frame.get(at..at.checked_add(bytes as usize)?)?;
            (Request::Write { offset, at, bytes }, 13 + bytes as usize)
        }
        3 => (Request::FetchAdd { offset: word(frame, first)?, add: word(frame, first + 8)? }, 17),
        4 => {
            let (offset, expected) = (word(frame, first)?, word(frame, first + 8)?);
            (Request::CompareSwap { offset, expected, new: word(frame, first + 16)? }, 25)
        }
        5 => (Request::Attach, 1),
        6 => (Request::Load { load: word(frame, first).filter(|load| *load > 0)? }, 9),
        _ => return None,
    })
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyHeader {
    pub(super) number: u64,
    pub(super) code: u32,
    pub(super) body_bytes: u64,
}

impl ReplyHeader {
    pub(super) fn bytes(&self) -> [u8; REPLY_HEADER] {
        let mut out = [0; REPLY_HEADER];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&self.code.to_le_bytes());
        out[16..24].copy_from_slice(&self.body_bytes.to_le_bytes());
        let sum = xxh3_64(&out[..24]);
        out[24..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn read(bytes: &[u8; REPLY_HEADER]) -> Result<ReplyHeader, FrameError> {
        if word(bytes, 24) != Some(xxh3_64(&bytes[..24])) {
            return Err(FrameError::Checksum);
        }
        let field = |at| word(bytes, at).ok_or(FrameError::Content);
        let code = half(bytes, 8).ok_or(FrameError::Content)?;
        Ok(ReplyHeader { number: field(0)?, code, body_bytes: field(16)? })
    }
}

/// Codes of refusals: what a node says instead of results.
pub(super) struct Refusal {
    pub(super) code: u32,
    pub(super) body: [u8; REFUSAL_BYTES],
}

impl Refusal {
    /// The refusal of operations; `None` for an error that no operation leads to.
    pub(super) fn of(error: &MemoryError) -> Option<Refusal> {
        let (code, words) = match *error {
            MemoryError::OutOfBounds { offset, bytes, region_bytes } => (1, [offset, bytes, region_bytes]),
            MemoryError::Unaligned { offset } => (2, [offset, 0, 0]),
            MemoryError::TooMany { operations, limit } => (3, [operations, limit, 0]),
            MemoryError::TooLarge { bytes, limit } => (4, [bytes, limit, 0]),
            MemoryError::Unavailable { .. } => (5, [0; 3]),
            MemoryError::EpochChanged { expected, found, .. } => (6, [expected, found, 0]),
            _ => return None,
        };
        let mut body = [0; REFUSAL_BYTES];
        body.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        Some(Refusal { code, body })
    }

    /// The error that a refusal says; `None` for an unknown one.
    pub(super) fn error(code: u32, body: &[u8], address: &str) -> Option<MemoryError> {
        let words: [u64; 3] = [word(body, 0)?, word(body, 8)?, word(body, 16)?];
        Some(match (code, words) {
            (1, [offset, bytes, region_bytes]) => MemoryError::OutOfBounds { offset, bytes, region_bytes },
            (2, [offset, ..]) => MemoryError::Unaligned { offset },
            (3, [operations, limit, _]) => MemoryError::TooMany { operations, limit },
            (4, [bytes, limit, _]) => MemoryError::TooLarge { bytes, limit },
            (5, _) => MemoryError::Unavailable {
                address: address.into(),
                why: "the memory node runs without this back end; start it with --ucx, or use tcp".into(),
            },
            (6, [expected, found, _]) => {
                MemoryError::EpochChanged { address: address.into(), expected, found }
            }
            _ => return None,
        })
    }

    /// Bytes of the body of a refusal.
    pub(super) const BYTES: usize = REFUSAL_BYTES;
}

/// Encodes facts.
pub(super) fn facts_bytes(facts: &Facts) -> [u8; FACTS_BYTES] {
    let words = [facts.node.0.into(), facts.region_bytes, facts.epoch];
    let mut out = [0; FACTS_BYTES];
    out.chunks_exact_mut(8)
        .zip(words)
        .for_each(|(at, word): (_, u64)| at.copy_from_slice(&word.to_le_bytes()));
    out
}

/// Decodes facts.
pub(super) fn read_facts(bytes: &[u8]) -> Result<Facts, FrameError> {
    let field = |at| word(bytes, at).ok_or(FrameError::Content);
    let node = u8::try_from(field(0)?).map_err(|_| FrameError::Content)?;
    let (region_bytes, epoch) = (field(8)?, field(16)?);
    if bytes.len() != FACTS_BYTES {
        return Err(FrameError::Content);
    }
    Ok(Facts { node: NodeId(node), region_bytes, epoch })
}

/// Decodes a frame of either side, for fuzzing: it must not panic, and what it decodes encodes to the same bytes.
pub fn check_frame(bytes: &[u8]) -> Result<(), FrameError> {
    if let Some(header) = bytes.first_chunk::<REPLY_HEADER>()
        && let Ok(header) = ReplyHeader::read(header)
    {
        let body = &bytes[REPLY_HEADER..];
        let _ = Refusal::error(header.code, body, "");
        let _ = read_facts(body);
    }
    let (number, requests) = decode(bytes)?;
    let _ = check(&requests, u64::MAX);
    let _ = check(&requests, 1 << 20);
    let mut again = vec![0; REQUEST_HEADER];
    for request in &requests {
        match *request {
            Request::Facts => put(&mut again, 0, &[]),
            Request::Attach => put(&mut again, 5, &[]),
            Request::Load { load } => put(&mut again, 6, &[load]),
            Request::Read { offset, bytes } => {
                put(&mut again, 1, &[offset]);
                again.extend_from_slice(&bytes.to_le_bytes());
            }
            Request::Write { offset, at, bytes: length } => {
                put(&mut again, 2, &[offset]);
                again.extend_from_slice(&length.to_le_bytes());
                again.extend_from_slice(&bytes[at..at + length as usize]);
            }
            Request::FetchAdd { offset, add } => put(&mut again, 3, &[offset, add]),
            Request::CompareSwap { offset, expected, new } => put(&mut again, 4, &[offset, expected, new]),
        }
    }
    seal(number, requests.len() as u32, &mut again);
    assert_eq!(again, bytes, "a frame and what was decoded from it");
    Ok(())
}

/// A frame with a valid checksum around a body, for fuzzing.
pub fn seal_frame(operations: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; REQUEST_HEADER];
    frame.extend_from_slice(body);
    seal(1, operations, &mut frame);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn adjacent_reads_are_one_on_the_wire() {
        let (mut a, mut b, mut c) = ([0; 8], [0; 16], [0; 4]);
        let operations = [
            Operation::Read { offset: 100, into: &mut a },
            Operation::Read { offset: 108, into: &mut b },
            Operation::Read { offset: 125, into: &mut c },
            Operation::Write { offset: 1, from: b"xyz" },
            Operation::CompareSwap { offset: 8, expected: 1, new: 2, old: 0 },
        ];
        let mut frame = Vec::new();
        encode(9, &operations, &mut frame);
        let (number, requests) = decode(&frame).unwrap();
        let at = frame.len() - 25 - 3;
        assert_eq!(number, 9);
        let expected = [
            Request::Read { offset: 100, bytes: 24 },
            Request::Read { offset: 125, bytes: 4 },
            Request::Write { offset: 1, at, bytes: 3 },
            Request::CompareSwap { offset: 8, expected: 1, new: 2 },
        ];
        assert_eq!(requests, expected);
        check_frame(&frame).unwrap();
    }

    #[test]
    fn each_flipped_bit_is_found() {
        let mut frame = Vec::new();
        encode(3, &[Operation::Write { offset: 64, from: &[7; 20] }], &mut frame);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        let header = ReplyHeader { number: 3, code: 0, body_bytes: 20 }.bytes();
        for bit in 0..header.len() * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(ReplyHeader::read(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn refusals_come_back_as_the_error() {
        let errors = [
            MemoryError::OutOfBounds { offset: 1, bytes: 2, region_bytes: 3 },
            MemoryError::Unaligned { offset: 4 },
            MemoryError::TooMany { operations: 5, limit: 6 },
            MemoryError::TooLarge { bytes: 7, limit: 8 },
            MemoryError::EpochChanged { address: String::new(), expected: 9, found: 10 },
        ];
        for error in errors {
            let refusal = Refusal::of(&error).unwrap();
            assert_eq!(Refusal::error(refusal.code, &refusal.body, ""), Some(error));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check_frame(&bytes);
        }

        #[test]
        fn any_sealed_body_is_decoded_or_refused(
            body in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..100),
            count in 0u32..6,
        ) {
            let _ = check_frame(&seal_frame(count, &body));
        }
    }
}
