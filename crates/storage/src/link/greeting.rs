//! The greeting: two servers authenticate each other on a new connection, before any frame.
//!
//! | sender | bytes | content |
//! |---|---|---|
//! | the dialed server | 8 + 4 | `STRATANN`, version of this greeting |
//! | | 4 × 2 | oldest and newest version of frames that it reads and writes, and of states |
//! | | 32 | a nonce |
//! | the dialing server | 8 + 4 | the same |
//! | | 1 + 1 | its number, and the number of the server that it dials, with 128 added where it will measure the link |
//! | | 8 | its build of the index |
//! | | 32 + 32 | a nonce, and proof |
//! | the dialed server | 1 | verdict |
//! | | 8 + 32 | its own build, and proof |
//!
//! A proof is an HMAC-SHA-256, under the cluster's secret, of the sender's role, both nonces and all bytes before it.
//! So both sides know that the other knows the secret, and recorded bytes cannot be replayed. Frames that follow are
//! not signed: use TLS, which carries the greeting too, where others can get between two servers.

use std::io::{self, Read, Write};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use stratann_core::peer::message;
use stratann_core::query::wire;

/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 32;
const VERSION: u32 = 2;
const VERSIONS_BYTES: usize = 8;
const PROOF_BYTES: usize = 32;
const OPENING_BYTES: usize = 12 + VERSIONS_BYTES + NONCE_BYTES;
const CLAIM_BYTES: usize = 12 + VERSIONS_BYTES + 2 + 8 + NONCE_BYTES;
const REPLY_BYTES: usize = 1 + 8;
/// Bytes that the dialed side receives.
pub(crate) const ANSWERED_BYTES: usize = CLAIM_BYTES + PROOF_BYTES;

/// Added to the number of the dialed server where the connection is for a measurement, not for frames.
const MEASUREMENT: u8 = 128;

/// Relation of two sides to each other. A greeting in one role proves nothing in another.
pub(crate) struct Role {
    magic: &'static [u8; 8],
    dials: &'static [u8],
    answers: &'static [u8],
    is_measured: bool,
}

/// Two servers of a cluster.
pub(crate) const PEERS: Role =
    Role { magic: b"STRATANN", dials: b"dials", answers: b"answers", is_measured: true };
/// A compute node, which dials, and a memory node.
pub(crate) const REMOTE_MEMORY: Role = Role {
    magic: b"STRATMEM",
    dials: b"uses remote memory",
    answers: b"has remote memory",
    is_measured: false,
};

/// Number, build and secret of one side.
#[derive(Clone)]
pub(crate) struct Identity<'a> {
    pub(crate) server: u8,
    pub(crate) servers: usize,
    pub(crate) build: u64,
    pub(crate) secret: &'a [u8],
    pub(crate) versions: Versions,
}

/// Versions of frames and of states that a server reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest and newest of frames ([`message`]).
    pub frames: (u16, u16),
    /// Oldest and newest of states ([`wire`]).
    pub states: (u16, u16),
}

impl Default for Versions {
    fn default() -> Self {
        Versions {
            frames: (message::VERSION as u16, message::MEASURED_VERSION as u16),
            states: (wire::OLDEST_VERSION as u16, wire::VERSION as u16),
        }
    }
}

impl Versions {
    /// The newest versions of frames and states that both sides have.
    pub(crate) fn agree(&self, other: &Versions) -> Option<Agreed> {
        let newest = |a: (u16, u16), b: (u16, u16)| Some(a.1.min(b.1)).filter(|&v| v >= a.0.max(b.0));
        Some(Agreed {
            frames: newest(self.frames, other.frames)?.into(),
            states: newest(self.states, other.states)?.into(),
        })
    }

    fn bytes(&self) -> [u8; VERSIONS_BYTES] {
        let all = [self.frames.0, self.frames.1, self.states.0, self.states.1];
        let mut bytes = [0; VERSIONS_BYTES];
        bytes
            .chunks_exact_mut(2)
            .zip(all)
            .for_each(|(at, version)| at.copy_from_slice(&version.to_le_bytes()));
        bytes
    }

    /// Versions behind the magic number and the version of a greeting.
    fn read(greeting: &[u8]) -> Versions {
        let at = |i: usize| u16::from_le_bytes([greeting[12 + 2 * i], greeting[13 + 2 * i]]);
        Versions { frames: (at(0), at(1)), states: (at(2), at(3)) }
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = |(a, b): (u16, u16)| if a == b { a.to_string() } else { format!("{a} to {b}") };
        write!(f, "frames {} and states {}", range(self.frames), range(self.states))
    }
}

/// Agreement of two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Version of frames.
    pub frames: u32,
    /// Version of states.
    pub states: u32,
}

/// Reason why a greeting failed.
#[derive(Debug)]
pub(crate) enum GreetingError {
    /// The connection broke, or took too long.
    Io(io::Error),
    /// The other side is no stratann server.
    Stranger,
    /// The other side greets in another version.
    Version(u32),
    /// The other side does not know the secret.
    Secret,
    /// The other side serves another build of the index.
    Build(u64),
    /// The other side has an unexpected number.
    Number(u8),
    /// No version of frames or states is known to both: what it has.
    Versions(Versions),
}

impl From<io::Error> for GreetingError {
    fn from(error: io::Error) -> GreetingError {
        GreetingError::Io(error)
    }
}

impl std::fmt::Display for GreetingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GreetingError::Io(e) => write!(f, "{e}"),
            GreetingError::Stranger => write!(f, "it is no stratann server; check the address"),
            GreetingError::Version(v) => write!(
                f,
                "it greets in version {v}, this program in {VERSION}; run the same stratann everywhere"
            ),
            GreetingError::Secret => {
                write!(f, "it has another secret; give all servers the same secret_file")
            }
            GreetingError::Build(b) => {
                write!(f, "it serves another build of the index ({b:016x}); give all servers the same index")
            }
            GreetingError::Versions(theirs) => write!(
                f,
                "it has {theirs}, this program {}; upgrade from one version to the next",
                Versions::default()
            ),
            GreetingError::Number(n) => {
                write!(f, "it is not the server {n} that is meant; check the list of peers")
            }
        }
    }
}

/// Greets server `to` over a dialed connection.
pub(crate) fn dial(
    me: &Identity<'_>,
    to: u8,
    stream: &mut (impl Read + Write),
) -> Result<Agreed, GreetingError> {
    dial_as(&PEERS, me, to, stream)
}

/// As [`dial`], for a connection that measures the link and carries no frames.
pub(crate) fn dial_to_measure(
    me: &Identity<'_>,
    to: u8,
    stream: &mut (impl Read + Write),
) -> Result<Agreed, GreetingError> {
    dial_as(&PEERS, me, to | MEASUREMENT, stream)
}

/// Who dialed, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialer {
    pub(crate) server: u8,
    pub(crate) is_measuring: bool,
}

/// As [`dial`], in any role.
pub(crate) fn dial_as(
    role: &Role,
    me: &Identity<'_>,
    to: u8,
    stream: &mut (impl Read + Write),
) -> Result<Agreed, GreetingError> {
    let mut opening = [0; OPENING_BYTES];
    stream.read_exact(&mut opening)?;
    check_start(role, &opening)?;
    let theirs = Versions::read(&opening);
    let agreed = me.versions.agree(&theirs);
    let mut claim = Vec::with_capacity(CLAIM_BYTES + PROOF_BYTES);
    claim.extend_from_slice(role.magic);
    claim.extend_from_slice(&VERSION.to_le_bytes());
    claim.extend_from_slice(&me.versions.bytes());
    claim.extend_from_slice(&[me.server, to]);
    claim.extend_from_slice(&me.build.to_le_bytes());
    claim.extend_from_slice(&nonce()?);
    let proof = sign(me.secret, role.dials, &[&opening, &claim]);
    let sent = [claim.as_slice(), proof.as_ref()].concat();
    stream.write_all(&sent)?;
    let mut reply = [0; REPLY_BYTES + PROOF_BYTES];
    stream.read_exact(&mut reply)?;
    let (verdict, proof) = reply.split_at(REPLY_BYTES);
    let build = verdict[1..].try_into().map_or(0, u64::from_le_bytes);
    match verdict[0] {
        // Without the secret it can prove nothing else.
        1 => Err(GreetingError::Secret),
        _ if !is_signed(me.secret, role.answers, &[&opening, &sent, verdict], proof) => {
            Err(GreetingError::Secret)
        }
        0 => agreed.ok_or(GreetingError::Versions(theirs)),
        4 => Err(GreetingError::Versions(theirs)),
        2 => Err(GreetingError::Build(build)),
        _ => Err(GreetingError::Number(to & !MEASUREMENT)),
    }
}

/// First bytes that the dialed side sends.
pub(crate) fn opening(role: &Role, versions: Versions) -> io::Result<Vec<u8>> {
    let mut opening = Vec::with_capacity(OPENING_BYTES);
    opening.extend_from_slice(role.magic);
    opening.extend_from_slice(&VERSION.to_le_bytes());
    opening.extend_from_slice(&versions.bytes());
    opening.extend_from_slice(&nonce()?);
    Ok(opening)
}

/// Judges what came in answer to an opening. `find` returns the identity that serves a build here; `build` is reported
/// when there is none. Returns the reply, which is empty for a stranger, and who dialed, with the value that `find`
/// returned.
pub(crate) fn judge<'a, T>(
    role: &Role,
    secret: &[u8],
    (opening, received): (&[u8], &[u8; ANSWERED_BYTES]),
    (build, versions): (u64, Versions),
    find: impl FnOnce(u64) -> Option<(Identity<'a>, T)>,
) -> (Vec<u8>, Result<(Dialer, T), GreetingError>) {
    if let Err(why) = check_start(role, received) {
        return (Vec::new(), Err(why));
    }
    let (claim, proof) = received.split_at(CLAIM_BYTES);
    let server = claim[20];
    let (to, is_measuring) = match claim[21] {
        to if role.is_measured => (to & !MEASUREMENT, to & MEASUREMENT != 0),
        to => (to, false),
    };
    let theirs = claim[22..30].try_into().map_or(0, u64::from_le_bytes);
    let offered = Versions::read(claim);
    let verdict = match is_signed(secret, role.dials, &[opening, claim], proof).then(|| find(theirs)) {
        None => Err((1, GreetingError::Secret)),
        Some(None) => Err((2, GreetingError::Build(theirs))),
        Some(Some((me, _)))
            if to != me.server || server == me.server || usize::from(server) >= me.servers =>
        {
            Err((3, GreetingError::Number(server)))
        }
        Some(Some(_)) if versions.agree(&offered).is_none() => Err((4, GreetingError::Versions(offered))),
        Some(Some((_, found))) => Ok((Dialer { server, is_measuring }, found)),
    };
    let mut reply = vec![verdict.as_ref().map_or_else(|(code, _)| *code, |_| 0)];
    reply.extend_from_slice(&if verdict.is_ok() { theirs } else { build }.to_le_bytes());
    let proof = sign(secret, role.answers, &[opening, received, &reply]);
    reply.extend_from_slice(proof.as_ref());
    (reply, verdict.map_err(|(_, why)| why))
}

/// Checks as much as has come of magic number and version, which are the first bytes.
pub(crate) fn check_start(role: &Role, bytes: &[u8]) -> Result<(), GreetingError> {
    if role.magic.iter().zip(bytes).any(|(a, b)| a != b) {
        return Err(GreetingError::Stranger);
    }
    let version =
        bytes.get(8..12).and_then(|bytes| bytes.try_into().ok()).map_or(VERSION, u32::from_le_bytes);
    if version == VERSION { Ok(()) } else { Err(GreetingError::Version(version)) }
}

fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    SystemRandom::new()
        .fill(&mut nonce)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(nonce)
}

fn sign(secret: &[u8], role: &[u8], parts: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(role);
    parts.iter().for_each(|part| context.update(part));
    context.sign()
}

fn is_signed(secret: &[u8], role: &[u8], parts: &[&[u8]], proof: &[u8]) -> bool {
    let whole = [&[role], parts].concat().concat();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &whole, proof).is_ok()
}
