//! A connection from another server: the greeting, and the frames that follow it.
#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use ring::hmac;
use stratann_core::peer::message::{self, Refused};
use stratann_fuzz::{edits, seal};
use stratann_storage::ledger::{Ledger, Part, Reservation};
use stratann_storage::link::{Agreed, Link, LinkOptions, LinkReceiver, Versions};

const SECRET: &[u8] = b"a secret of the cluster";
const BUILD: u64 = 77;
/// Bytes of the dialed server's opening, and of the dialing server's claim without its nonce.
const OPENING: usize = 52;
const CLAIM: usize = 30;
const NONCE: usize = 32;
const REPLY: usize = 41;

struct Receiver;

impl LinkReceiver for Receiver {
    fn frame(&self, server: u8, frame: &[u8]) -> Result<(), Refused> {
        assert!(server == 1 || server == 2);
        message::decode(frame, BUILD).map(|_| ())
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        Ledger::new(Some(1 << 20)).reserve(Part::Batons, bytes)
    }

    fn up(&self, _: u8, _: Agreed) {}

    fn down(&self, _: u8) {}
}

fn link() -> &'static Link {
    static LINK: OnceLock<Link> = OnceLock::new();
    LINK.get_or_init(|| {
        let options = LinkOptions {
            server: 0,
            build: BUILD,
            listen: "127.0.0.1:0".parse().expect("an address"),
            peers: vec![String::new(); 3],
            secret: SECRET.to_vec(),
            tls: None,
            versions: Versions::default(),
            queue_bytes: 1 << 20,
            log: Arc::new(|_| {}),
        };
        Link::start(options, Arc::new(Receiver)).expect("a link")
    })
}

fuzz_target!(|data: &[u8]| {
    let (choice, data) = edits::first(data);
    let mut stream = TcpStream::connect(link().address()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.set_nodelay(true).expect("an option of a socket");
    let mut opening = [0; OPENING];
    stream.read_exact(&mut opening).expect("an opening");
    match choice % 4 {
        // Any bytes.
        0 => drop(stream.write_all(data)),
        // A claim with a valid proof.
        1 => drop(stream.write_all(&proven(&opening, data))),
        // A greeting that succeeds, and frames.
        choice => {
            // The versions are those that the opening offers.
            let versions = &opening[12..20];
            let claim = [&b"STRATANN\x02\0\0\0"[..], versions, &[1, 0], &BUILD.to_le_bytes()].concat();
            stream.write_all(&proven(&opening, &claim)).expect("a claim");
            let mut reply = [0; REPLY];
            stream.read_exact(&mut reply).expect("a reply");
            assert_eq!(reply[0], 0);
            drop(stream.write_all(&if choice == 2 { data.to_vec() } else { frames(data) }));
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    // The other side closes when it has read everything, or refuses.
    let end = stream.read_to_end(&mut Vec::new());
    let timed_out = |e: &std::io::Error| e.kind() == std::io::ErrorKind::WouldBlock;
    assert!(!end.is_err_and(|e| timed_out(&e)), "the connection was not closed");
});

/// A claim that begins with `content`, signed with the secret.
fn proven(opening: &[u8], content: &[u8]) -> Vec<u8> {
    let mut claim = content.to_vec();
    claim.resize(CLAIM + NONCE, 7);
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, SECRET));
    [b"dials", opening, &claim].into_iter().for_each(|part| context.update(part));
    claim.extend_from_slice(context.sign().as_ref());
    claim
}

/// Sealed frames of the bodies in `data`, each of which has its length in two bytes before it. Length 0 is a sign of
/// life.
fn frames(mut data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let body = if body.is_empty() { Vec::new() } else { [&BUILD.to_le_bytes(), body].concat() };
        out.extend_from_slice(&seal::frame(&body));
        data = rest;
    }
    out
}
