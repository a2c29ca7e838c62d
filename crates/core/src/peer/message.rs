//! The layout of frames between servers.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version of this layout |
//! | 4 | length of all that follows the checksum |
//! | 8 | checksum of all that follows |
//! | 8 | build of the index that the sender serves |
//! | 1 | type: 0 baton, 1 answer, 2 release, 3 status, 4 partial results, 5 scores, 6 no scores, 7 threshold, 8 no filter |
//! | 1 | queries that run or wait at the sender, 255 for that or more |
//! | 1 + 4 + 8 | query: origin, incarnation of the origin, number at the origin |
//! | 1 | attempt; absent in a release |
//! | 1 | whether this is a job of the query: 0 or 1; absent in a release |
//! | 1 + 4 + 1 | job: the server that asked, tag, times sent before; absent where it is none |
//! | 8 | a bit for every server that has the query's vector; absent in a release, partial results, no scores, a threshold and no filter |
//! | 4 + 4 | baton only: microseconds until the query expires, bytes of its vector and filter (0: the receiver has them) |
//! | … | baton: the vector, followed by the filter of a query that has one (from version 16 of states on first its key, 32 bytes, and nothing more for a server that has it; what follows is [`crate::sieve::Sieve::encode`], or what servers with an index each write), then the state ([`crate::query::wire`]); answer: the ended state |
//! | 4 + … | partial results: sequence number, then hits |
//! | … | scores: as [`crate::query::wire::write_scores`] writes them |
//! | 1 | no scores: 0 busy, 1 the vector is missing |
//! | 8 | threshold: a double |
//!
//! A status has these fields in place of the query and everything after it:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | a bit for every server that answers the sender |
//! | 1 | whether all queries of its clients in this build have ended, and it accepts no more: 0 or 1 |
//!
//! All numbers are little-endian.

use alloc::vec::Vec;

use crate::codec::Reader;
pub use crate::codec::Refused;
use crate::hash::checksum;
use crate::search::Threshold;

use super::{JobId, PeerStatus, Run};

/// The version written and understood.
pub const VERSION: u32 = 5;
/// The version that servers agree on where both let the other measure the link. The frames are those of [`VERSION`].
pub const MEASURED_VERSION: u32 = 6;
/// Bytes before the body.
pub const HEADER: usize = 16;
/// Longest frame that is accepted. A beam of the greatest length and a vector of 4,096 f32 need far less.
pub const FRAME_MAX: usize = 4 << 20;

/// A query, unique in the whole cluster and over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryId {
    /// The server that a client submitted it to.
    pub origin: u8,
    /// Incarnation of the origin: differs each time that server starts.
    pub incarnation: u32,
    /// Number of the query in that incarnation.
    pub number: u64,
}

/// Reason why a server does not do a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoScores {
    /// The server has too much to do: to be asked later.
    Busy,
    /// The server does not have the query's vector: to be sent again with it.
    Missing,
}

/// One message. `B` holds bytes, `S` a state and `H` partial results: in a frame and before it is sent all of them are
/// bytes, once received a state and hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<B, S = B, H = B> {
    /// A query goes on at the receiver.
    Baton {
        /// The attempt.
        run: Run,
        /// Servers that have its vector.
        visited: u64,
        /// Microseconds until its deadline.
        left_us: u32,
        /// The vector; empty when the receiver has it.
        vector: B,
        /// The state.
        state: S,
    },
    /// A query has ended.
    Answer {
        /// The attempt that ended.
        run: Run,
        /// Servers that have its vector, to be released.
        visited: u64,
        /// The state, its beam empty.
        state: S,
    },
    /// Results of a handed-over query, reported to its origin.
    PartialResults {
        /// The attempt.
        run: Run,
        /// Number of the report: reports that were sent before it.
        sequence: u32,
        /// Hits.
        hits: H,
    },
    /// A job has ended.
    Scores {
        /// The attempt and the job.
        run: Run,
        /// Servers that have the query's vector, to be released.
        visited: u64,
        /// The scores.
        scores: B,
    },
    /// A job is not done.
    NoScores {
        /// The attempt and the job.
        run: Run,
        /// The reason.
        why: NoScores,
    },
    /// Jobs of an attempt need find nothing beyond this.
    Threshold {
        /// The attempt.
        run: Run,
        /// The threshold.
        threshold: Threshold,
    },
    /// The filter of a query came as its key alone, and is not there.
    NoFilter {
        /// The attempt.
        run: Run,
    },
    /// The sender's status among the servers of this build.
    Status(PeerStatus),
    /// The query has ended: forget it.
    Release {
        /// The query.
        query: QueryId,
    },
}

impl<B, S, H> Message<B, S, H> {
    /// The attempt, and the job, that it belongs to.
    pub fn run(&self) -> Option<Run> {
        match self {
            Message::Baton { run, .. }
            | Message::Answer { run, .. }
            | Message::PartialResults { run, .. }
            | Message::Scores { run, .. }
            | Message::NoScores { run, .. }
            | Message::Threshold { run, .. }
            | Message::NoFilter { run } => Some(*run),
            Message::Status(_) | Message::Release { .. } => None,
        }
    }
}

impl<B: AsRef<[u8]>> Message<B> {
    /// Appends the message to `out` as a frame, from a server of build `build` with `load` queries.
    pub fn encode(&self, build: u64, load: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(&build.to_le_bytes());
        let head = |number: u8, query: &QueryId, out: &mut Vec<u8>| {
            out.extend_from_slice(&[number, load, query.origin]);
            out.extend_from_slice(&query.incarnation.to_le_bytes());
            out.extend_from_slice(&query.number.to_le_bytes());
        };
        match self {
            Message::Baton { run, visited, left_us, vector, state } => {
                let vector = vector.as_ref();
                head(0, &run.query, out);
                put_run(run, out);
                out.extend_from_slice(&visited.to_le_bytes());
                out.extend_from_slice(&left_us.to_le_bytes());
                out.extend_from_slice(&(vector.len() as u32).to_le_bytes());
                out.extend_from_slice(vector);
                out.extend_from_slice(state.as_ref());
            }
            Message::Answer { run, visited, state } => {
                head(1, &run.query, out);
                put_run(run, out);
                out.extend_from_slice(&visited.to_le_bytes());
                out.extend_from_slice(state.as_ref());
            }
            Message::Release { query } => head(2, query, out),
            Message::PartialResults { run, sequence, hits } => {
                head(4, &run.query, out);
                put_run(run, out);
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(hits.as_ref());
            }
            Message::Scores { run, visited, scores } => {
                head(5, &run.query, out);
                put_run(run, out);
                out.extend_from_slice(&visited.to_le_bytes());
                out.extend_from_slice(scores.as_ref());
            }
            Message::NoScores { run, why } => {
                head(6, &run.query, out);
                put_run(run, out);
                out.push(*why as u8);
            }
            Message::Threshold { run, threshold } => {
                head(7, &run.query, out);
                put_run(run, out);
                out.extend_from_slice(&threshold.get().to_le_bytes());
            }
            Message::NoFilter { run } => {
                head(8, &run.query, out);
                put_run(run, out);
            }
            Message::Status(status) => {
                out.extend_from_slice(&[3, load]);
                out.extend_from_slice(&status.live.to_le_bytes());
                out.push(u8::from(status.is_drained));
            }
        }
        let body = &out[start + HEADER..];
        let (length, sum) = (body.len() as u32, checksum(body));
        out[start..start + 4].copy_from_slice(&VERSION.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        out[start + 8..start + 16].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Length of the frame that begins with `header`, for reading from a stream.
///
/// # Errors
/// Another version; a length beyond [`FRAME_MAX`].
pub fn frame_len(header: &[u8; HEADER]) -> Result<usize, Refused> {
    let mut r = Reader(header);
    let version = r.u32()?;
    if version != VERSION {
        return Err(Refused::Version(version));
    }
    let length = HEADER + r.u32()? as usize;
    if length <= FRAME_MAX { Ok(length) } else { Err(Refused::Length) }
}

/// Decodes the message in `frame` (all of it), of build `build`, and the number of queries at its sender.
///
/// # Errors
/// A frame of another version or build, or a damaged one. The connection that it came by is not to be trusted then.
pub fn decode(frame: &[u8], build: u64) -> Result<(Message<&[u8]>, u8), Refused> {
    let (header, _) = frame.split_first_chunk::<HEADER>().ok_or(Refused::Length)?;
    if frame_len(header)? != frame.len() {
        return Err(Refused::Length);
    }
    let mut r = Reader(&frame[8..]);
    let sum = r.u64()?;
    if checksum(r.0) != sum {
        return Err(Refused::Checksum);
    }
    let theirs = r.u64()?;
    if theirs != build {
        return Err(Refused::Build(theirs));
    }
    let (number, load) = (r.u8()?, r.u8()?);
    if number == 3 {
        let (live, flag) = (r.u64()?, r.u8()?);
        let is_sane = flag < 2 && r.0.is_empty();
        let status = PeerStatus { live, is_drained: flag == 1 };
        return if is_sane { Ok((Message::Status(status), load)) } else { Err(Refused::Content) };
    }
    let query = QueryId { origin: r.u8()?, incarnation: r.u32()?, number: r.u64()? };
    if usize::from(query.origin) >= crate::place::SERVERS_MAX {
        return Err(Refused::Content);
    }
    let message = take_message(number, query, &mut r)?;
    let is_short =
        matches!(message, Message::NoScores { .. } | Message::Threshold { .. } | Message::NoFilter { .. });
    if is_short && !r.0.is_empty() {
        return Err(Refused::Length);
    }
    let is_job = matches!(message, Message::Scores { .. } | Message::NoScores { .. });
    let is_query = matches!(
        message,
        Message::Answer { .. }
            | Message::PartialResults { .. }
            | Message::Threshold { .. }
            | Message::NoFilter { .. }
    );
    match message.run() {
        Some(run) if run.job.is_some() && is_query || run.job.is_none() && is_job => Err(Refused::Content),
        _ => Ok((message, load)),
    }
}

/// Reads a message about a query.
fn take_message<'a>(number: u8, query: QueryId, r: &mut Reader<'a>) -> Result<Message<&'a [u8]>, Refused> {
    Ok(match number {
        0 => {
            let run = take_run(query, r)?;
            let (visited, left_us) = (r.u64()?, r.u32()?);
            let length = r.u32()? as usize;
            let (vector, state) = r.0.split_at_checked(length).ok_or(Refused::Length)?;
            Message::Baton { run, visited, left_us, vector, state }
        }
        1 => {
            let run = take_run(query, r)?;
            Message::Answer { run, visited: r.u64()?, state: r.0 }
        }
        2 if r.0.is_empty() => Message::Release { query },
        4 => {
            let run = take_run(query, r)?;
            Message::PartialResults { run, sequence: r.u32()?, hits: r.0 }
        }
        5 => {
            let run = take_run(query, r)?;
            Message::Scores { run, visited: r.u64()?, scores: r.0 }
        }
        6 => {
            let run = take_run(query, r)?;
            Message::NoScores { run, why: take_why(r)? }
        }
        7 => {
            let run = take_run(query, r)?;
            let threshold = Threshold::new(f64::from_bits(r.u64()?)).ok_or(Refused::Content)?;
            Message::Threshold { run, threshold }
        }
        8 => Message::NoFilter { run: take_run(query, r)? },
        _ => return Err(Refused::Content),
    })
}

fn take_why(r: &mut Reader<'_>) -> Result<NoScores, Refused> {
    match r.u8()? {
        0 => Ok(NoScores::Busy),
        1 => Ok(NoScores::Missing),
        _ => Err(Refused::Content),
    }
}

fn put_run(run: &Run, out: &mut Vec<u8>) {
    out.extend_from_slice(&[run.attempt, u8::from(run.job.is_some())]);
    if let Some(job) = run.job {
        out.push(job.asker);
        out.extend_from_slice(&job.tag.to_le_bytes());
        out.push(job.sends);
    }
}

fn take_run(query: QueryId, r: &mut Reader<'_>) -> Result<Run, Refused> {
    let attempt = r.u8()?;
    let job = match r.u8()? {
        0 => None,
        1 => Some(JobId { asker: r.u8()?, tag: r.u32()?, sends: r.u8()? }),
        _ => return Err(Refused::Content),
    };
    if job.is_some_and(|job| usize::from(job.asker) >= crate::place::SERVERS_MAX) {
        return Err(Refused::Content);
    }
    Ok(Run { query, attempt, job })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const QUERY: QueryId = QueryId { origin: 3, incarnation: 7, number: 9 };
    const BATON: Message<&[u8]> = Message::Baton {
        run: Run { query: QUERY, attempt: 1, job: None },
        visited: 5,
        left_us: 99,
        vector: &[1, 2],
        state: &[3; 40],
    };

    fn frame(message: &Message<&[u8]>) -> Vec<u8> {
        let mut out = vec![];
        message.encode(77, 5, &mut out);
        out
    }

    #[test]
    fn messages_survive_encoding() {
        let answer = Message::Answer {
            run: Run { query: QUERY, attempt: 2, job: None },
            visited: 6,
            state: &[4u8; 9][..],
        };
        let status = Message::Status(PeerStatus { live: 0b101, is_drained: true });
        let report = Message::PartialResults {
            run: Run { query: QUERY, attempt: 1, job: None },
            sequence: 3,
            hits: &[5u8; 7][..],
        };
        let job = JobId { asker: 2, tag: 0x1_0203, sends: 4 };
        let run = Run { query: QUERY, attempt: 1, job: Some(job) };
        let part = Message::Baton { run, visited: 5, left_us: 99, vector: &[][..], state: &[3; 40][..] };
        let scores = Message::Scores { run, visited: 3, scores: &[6u8; 11][..] };
        let none = Message::NoScores { run, why: NoScores::Missing };
        let release = Message::Release { query: QUERY };
        let threshold = Threshold::new(12.5).unwrap();
        let threshold = Message::Threshold { run: Run { query: QUERY, attempt: 1, job: None }, threshold };
        for message in [BATON, answer, release, status, report, part, scores, none, threshold] {
            assert_eq!(decode(&frame(&message), 77), Ok((message, 5)));
            assert_eq!(decode(&frame(&message), 78), Err(Refused::Build(77)));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let mut bytes = frame(&BATON);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, 77).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length], 77).is_err()));
        bytes[4..8].fill(0xFF);
        assert_eq!(decode(&bytes, 77), Err(Refused::Length));
    }

    proptest! {
        #[test]
        fn any_body_with_a_good_checksum_is_no_panic(
            body in prop::collection::vec(any::<u8>(), 0..90),
            is_ours in any::<bool>(),
        ) {
            let mut bytes = vec![0; HEADER];
            if is_ours {
                bytes.extend_from_slice(&77u64.to_le_bytes());
                bytes.push(body.len() as u8 % 9);
            }
            bytes.extend(body);
            let (length, sum) = ((bytes.len() - HEADER) as u32, checksum(&bytes[HEADER..]));
            bytes[0] = VERSION as u8;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..16].copy_from_slice(&sum.to_le_bytes());
            let _ = decode(&bytes, 77);
        }
    }
}
