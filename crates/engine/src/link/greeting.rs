//! How two servers come to trust a connection, before any frame.
//!
//! | who | bytes | content |
//! |---|---|---|
//! | the server that is dialed | 8 + 4 | `STRATANN`, version of this greeting |
//! | | 32 | a nonce |
//! | the server that dials | 8 + 4 | the same |
//! | | 1 + 1 | its number, and the number that it means to reach |
//! | | 8 | its build of the index |
//! | | 32 + 32 | a nonce, and proof |
//! | the server that is dialed | 1 | verdict |
//! | | 8 + 32 | its own build, and proof |
//!
//! A proof is HMAC-SHA-256, under the cluster's secret, of who speaks, both nonces and all that was said before it. So both
//! sides know that the other knows the secret, and an eavesdropper cannot use what it heard again. Frames that follow are not
//! signed: where others can get between two servers, use TLS, under which all of this goes too.

use std::io::{self, Read, Write};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a nonce.
pub(super) const NONCE_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"STRATANN";
const VERSION: u32 = 1;
const PROOF_BYTES: usize = 32;
const OPENING_BYTES: usize = 12 + NONCE_BYTES;
const CLAIM_BYTES: usize = 12 + 2 + 8 + NONCE_BYTES;
const REPLY_BYTES: usize = 1 + 8;

/// What one side knows.
#[derive(Clone)]
pub(super) struct Myself<'a> {
    pub(super) server: u8,
    pub(super) servers: usize,
    pub(super) build: u64,
    pub(super) secret: &'a [u8],
}

/// How a greeting ended.
#[derive(Debug)]
pub(super) enum Failed {
    /// The connection broke, or took too long.
    Io(io::Error),
    /// It is no server of ours.
    Stranger,
    /// It speaks another version.
    Version(u32),
    /// It does not know the secret.
    Secret,
    /// It serves another build of the index.
    Build(u64),
    /// It has a number that is not expected there.
    Number(u8),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::Io(e) => write!(f, "{e}"),
            Failed::Stranger => write!(f, "it is no stratann server; check the address"),
            Failed::Version(v) => write!(
                f,
                "it greets in version {v}, this program in {VERSION}; run the same stratann everywhere"
            ),
            Failed::Secret => write!(f, "it has another secret; give all servers the same secret_file"),
            Failed::Build(b) => {
                write!(f, "it serves another build of the index ({b:016x}); give all servers the same index")
            }
            Failed::Number(n) => write!(f, "it is not the server {n} that is meant; check the list of peers"),
        }
    }
}

/// Greets the server `to` over a connection that was dialed.
pub(super) fn dial(me: &Myself<'_>, to: u8, stream: &mut (impl Read + Write)) -> Result<(), Failed> {
    let mut opening = [0; OPENING_BYTES];
    stream.read_exact(&mut opening)?;
    check_magic(&opening)?;
    let mut claim = Vec::with_capacity(CLAIM_BYTES + PROOF_BYTES);
    claim.extend_from_slice(MAGIC);
    claim.extend_from_slice(&VERSION.to_le_bytes());
    claim.extend_from_slice(&[me.server, to]);
    claim.extend_from_slice(&me.build.to_le_bytes());
    claim.extend_from_slice(&nonce()?);
    let proof = sign(me.secret, b"dials", &[&opening, &claim]);
    let said = [claim.as_slice(), proof.as_ref()].concat();
    stream.write_all(&said)?;
    let mut reply = [0; REPLY_BYTES + PROOF_BYTES];
    stream.read_exact(&mut reply)?;
    let (verdict, proof) = reply.split_at(REPLY_BYTES);
    let build = verdict[1..].try_into().map_or(0, u64::from_le_bytes);
    match verdict[0] {
        // Without the secret nobody can say more, and nothing more is believed.
        1 => Err(Failed::Secret),
        _ if !is_signed(me.secret, b"answers", &[&opening, &said, verdict], proof) => Err(Failed::Secret),
        0 => Ok(()),
        2 => Err(Failed::Build(build)),
        _ => Err(Failed::Number(to)),
    }
}

/// Greets whoever dialed. `find` gives who serves a build here, when anybody does; `build` is what is served otherwise. Gives the number of
/// the dialing server, and whom it reached.
pub(super) fn answer<'a, T>(
    secret: &[u8],
    build: u64,
    find: impl FnOnce(u64) -> Option<(Myself<'a>, T)>,
    stream: &mut (impl Read + Write),
) -> Result<(u8, T), Failed> {
    let mut opening = Vec::with_capacity(OPENING_BYTES);
    opening.extend_from_slice(MAGIC);
    opening.extend_from_slice(&VERSION.to_le_bytes());
    opening.extend_from_slice(&nonce()?);
    stream.write_all(&opening)?;
    let mut said = [0; CLAIM_BYTES + PROOF_BYTES];
    stream.read_exact(&mut said)?;
    check_magic(&said)?;
    let (claim, proof) = said.split_at(CLAIM_BYTES);
    let (server, to) = (claim[12], claim[13]);
    let theirs = claim[14..22].try_into().map_or(0, u64::from_le_bytes);
    let verdict = match is_signed(secret, b"dials", &[&opening, claim], proof).then(|| find(theirs)) {
        None => Err((1, Failed::Secret)),
        Some(None) => Err((2, Failed::Build(theirs))),
        Some(Some((me, _)))
            if to != me.server || server == me.server || usize::from(server) >= me.servers =>
        {
            Err((3, Failed::Number(server)))
        }
        Some(Some((_, whom))) => Ok((server, whom)),
    };
    let mut reply = vec![verdict.as_ref().map_or_else(|(code, _)| *code, |_| 0)];
    reply.extend_from_slice(&if verdict.is_ok() { theirs } else { build }.to_le_bytes());
    let proof = sign(secret, b"answers", &[&opening, &said, &reply]);
    reply.extend_from_slice(proof.as_ref());
    stream.write_all(&reply)?;
    verdict.map_err(|(_, why)| why)
}

fn check_magic(said: &[u8]) -> Result<(), Failed> {
    if said[..8] != *MAGIC {
        return Err(Failed::Stranger);
    }
    let version = said[8..12].try_into().map_or(0, u32::from_le_bytes);
    if version == VERSION { Ok(()) } else { Err(Failed::Version(version)) }
}

fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    SystemRandom::new()
        .fill(&mut nonce)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(nonce)
}

fn sign(secret: &[u8], who: &[u8], said: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(who);
    said.iter().for_each(|part| context.update(part));
    context.sign()
}

fn is_signed(secret: &[u8], who: &[u8], said: &[&[u8]], proof: &[u8]) -> bool {
    let whole = [&[who], said].concat().concat();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &whole, proof).is_ok()
}
