//! What servers say to each other.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version of this layout |
//! | 4 | length of all that follows the checksum |
//! | 8 | checksum of all that follows |
//! | 8 | build of the index that the sender serves |
//! | 1 | kind: 0 baton, 1 answer, 2 release, 3 standing, 4 found |
//! | 1 | how much waits at the sender, 255 for that or more |
//! | 1 + 4 + 8 | query: server it came to first, that server's incarnation, its number there |
//! | 1 | attempt; absent in a release |
//! | 8 | a bit for every server that has been given the query's vector; absent in a release and in what was found |
//! | 4 + 4 | baton alone: microseconds until the query expires, bytes of its vector (0: the receiver has it) |
//! | … | the vector, then the state ([`crate::query::wire`]); an answer carries a state with an empty beam; what was found, 4 bytes for which word it is, and hits |
//!
//! A standing has instead of the query and what follows it
//!
//! | bytes | content |
//! |---|---|
//! | 8 | a bit for every server that answers the sender |
//! | 1 | whether the sender has ended all queries that came to it in this build, and will take no more: 0 or 1 |
//!
//! All numbers are little-endian.

use alloc::vec::Vec;

use crate::codec::Reader;
pub use crate::codec::Refused;
use crate::hash::checksum;

/// The version written and understood.
pub const VERSION: u32 = 4;
/// Bytes before the body.
pub const HEADER: usize = 16;
/// Longest frame that is taken in: a beam of the greatest length and a vector of 4,096 f32 are well below it.
pub const FRAME_MAX: usize = 4 << 20;

/// Which query, in the whole cluster and over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryId {
    /// The server that a client asked; it keeps the query until its answer is there.
    pub origin: u8,
    /// Differs each time that server starts.
    pub incarnation: u32,
    /// Counts the queries since.
    pub number: u64,
}

/// One message, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Go on with this query.
    Baton {
        /// Which.
        query: QueryId,
        /// How often its origin has begun anew.
        attempt: u8,
        /// Servers that have its vector.
        visited: u64,
        /// Microseconds until nobody waits for it any more.
        left_us: u32,
        /// The vector, or nothing when the receiver has it.
        vector: &'a [u8],
        /// The state.
        state: &'a [u8],
    },
    /// The query has ended.
    Answer {
        /// Which.
        query: QueryId,
        /// Which attempt ended.
        attempt: u8,
        /// Servers that hold its vector, to be told to drop it.
        visited: u64,
        /// The state, its beam empty.
        state: &'a [u8],
    },
    /// To the origin of a query that is handed on: what was found for it at the sender.
    Found {
        /// Which.
        query: QueryId,
        /// In which attempt.
        attempt: u8,
        /// How many such messages came before.
        word: u32,
        /// Hits.
        hits: &'a [u8],
    },
    /// How the sender stands among the servers of this build.
    Standing {
        /// A bit for every server that answers it.
        live: u64,
        /// Whether it has ended its own queries in this build and takes no more.
        has_left: bool,
    },
    /// The answer is there: forget the query.
    Release {
        /// Which.
        query: QueryId,
    },
}

impl Message<'_> {
    /// Appends the message to `out` as a frame, from a server that serves `build` and where `load` waits.
    pub fn encode(&self, build: u64, load: u8, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(&build.to_le_bytes());
        let head = |kind: u8, query: &QueryId, out: &mut Vec<u8>| {
            out.extend_from_slice(&[kind, load, query.origin]);
            out.extend_from_slice(&query.incarnation.to_le_bytes());
            out.extend_from_slice(&query.number.to_le_bytes());
        };
        match self {
            Message::Baton { query, attempt, visited, left_us, vector, state } => {
                head(0, query, out);
                out.push(*attempt);
                out.extend_from_slice(&visited.to_le_bytes());
                out.extend_from_slice(&left_us.to_le_bytes());
                out.extend_from_slice(&(vector.len() as u32).to_le_bytes());
                out.extend_from_slice(vector);
                out.extend_from_slice(state);
            }
            Message::Answer { query, attempt, visited, state } => {
                head(1, query, out);
                out.push(*attempt);
                out.extend_from_slice(&visited.to_le_bytes());
                out.extend_from_slice(state);
            }
            Message::Release { query } => head(2, query, out),
            Message::Found { query, attempt, word, hits } => {
                head(4, query, out);
                out.push(*attempt);
                out.extend_from_slice(&word.to_le_bytes());
                out.extend_from_slice(hits);
            }
            Message::Standing { live, has_left } => {
                out.extend_from_slice(&[3, load]);
                out.extend_from_slice(&live.to_le_bytes());
                out.push(u8::from(*has_left));
            }
        }
        let body = &out[start + HEADER..];
        let (length, sum) = (body.len() as u32, checksum(body));
        out[start..start + 4].copy_from_slice(&VERSION.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        out[start + 8..start + 16].copy_from_slice(&sum.to_le_bytes());
    }

    /// Length of the frame that begins with `header`, for those who read from a stream.
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
}

/// The message that `frame` (all of it) holds, when it speaks of `build`, and what waits at its sender.
///
/// # Errors
/// Whatever is wrong with it; nothing of it is to be used then, and the connection it came by not to be trusted.
pub fn decode(frame: &[u8], build: u64) -> Result<(Message<'_>, u8), Refused> {
    let (header, _) = frame.split_first_chunk::<HEADER>().ok_or(Refused::Length)?;
    if Message::frame_len(header)? != frame.len() {
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
    let (kind, load) = (r.u8()?, r.u8()?);
    if kind == 3 {
        let (live, has_left) = (r.u64()?, r.u8()?);
        let is_sane = has_left < 2 && r.0.is_empty();
        let standing = Message::Standing { live, has_left: has_left == 1 };
        return if is_sane { Ok((standing, load)) } else { Err(Refused::Content) };
    }
    let query = QueryId { origin: r.u8()?, incarnation: r.u32()?, number: r.u64()? };
    if usize::from(query.origin) >= crate::place::SERVERS_MAX {
        return Err(Refused::Content);
    }
    let message = match kind {
        0 => {
            let (attempt, visited, left_us) = (r.u8()?, r.u64()?, r.u32()?);
            let length = r.u32()? as usize;
            let (vector, state) = r.0.split_at_checked(length).ok_or(Refused::Length)?;
            Message::Baton { query, attempt, visited, left_us, vector, state }
        }
        1 => Message::Answer { query, attempt: r.u8()?, visited: r.u64()?, state: r.0 },
        2 if r.0.is_empty() => Message::Release { query },
        4 => Message::Found { query, attempt: r.u8()?, word: r.u32()?, hits: r.0 },
        _ => return Err(Refused::Content),
    };
    Ok((message, load))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const QUERY: QueryId = QueryId { origin: 3, incarnation: 7, number: 9 };
    const BATON: Message<'_> = Message::Baton {
        query: QUERY,
        attempt: 1,
        visited: 5,
        left_us: 99,
        vector: &[1, 2],
        state: &[3; 40],
    };

    fn frame(message: &Message<'_>) -> Vec<u8> {
        let mut out = vec![];
        message.encode(77, 5, &mut out);
        out
    }

    #[test]
    fn messages_come_back() {
        let answer = Message::Answer { query: QUERY, attempt: 2, visited: 6, state: &[4; 9] };
        let standing = Message::Standing { live: 0b101, has_left: true };
        let found = Message::Found { query: QUERY, attempt: 1, word: 3, hits: &[5; 7] };
        for message in [BATON, answer, Message::Release { query: QUERY }, standing, found] {
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
        fn any_body_behind_a_good_seal_is_no_panic(body in prop::collection::vec(any::<u8>(), 0..90), honest in any::<bool>()) {
            let mut bytes = vec![0; HEADER];
            if honest {
                bytes.extend_from_slice(&77u64.to_le_bytes());
                bytes.push(body.len() as u8 % 6);
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
