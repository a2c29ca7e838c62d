//! A server over HTTP whose replies do not end, hardly begin, or are not what they should be.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Reply to a client, and its time.
pub enum Reply {
    /// The whole reply.
    Whole(Vec<u8>),
    /// The first part, then the second again and again, as fast as the client takes it.
    Endless(Vec<u8>, Vec<u8>),
    /// Parts of the reply, with a pause before each: long enough for a total time to pass, too short for a silence.
    Dribble(Vec<u8>, Vec<u8>),
}

impl Reply {
    /// A whole response with a body.
    pub fn of(status: &str, body: &str) -> Reply {
        let length = body.len();
        Reply::Whole(
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
                .into_bytes(),
        )
    }

    /// The head of a response in chunks, and a chunk of so many bytes.
    pub fn chunks(status: &str, bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let head = format!("HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n");
        (head.into_bytes(), format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes)).into_bytes())
    }
}

/// Runs until the test ends.
pub struct Hostile {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

impl Hostile {
    /// Answers each request by its first line, such as `GET /v1/status HTTP/1.1`.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Hostile> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = Hostile { address: listener.local_addr()?, sent: Arc::default() };
        let (answer, sent) = (Arc::new(answer), own.sent.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (answer, sent) = (answer.clone(), sent.clone());
                // The client may hang up at any time.
                std::thread::spawn(move || drop(serve(client, &*answer, &sent)));
            }
        });
        Ok(own)
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that clients have taken.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

fn serve(mut client: TcpStream, answer: &dyn Fn(&str) -> Reply, sent: &AtomicU64) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_string();
    let mut send = |bytes: &[u8]| -> io::Result<()> {
        client.write_all(bytes)?;
        sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    };
    let (first, again, pause) = match answer(&line) {
        Reply::Whole(bytes) => {
            send(&bytes)?;
            // What the client still sends is read: a reset would overtake the reply.
            client.shutdown(std::net::Shutdown::Write)?;
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        Reply::Endless(first, again) => (first, again, Duration::ZERO),
        Reply::Dribble(first, again) => (first, again, Duration::from_millis(100)),
    };
    send(&first)?;
    loop {
        std::thread::sleep(pause);
        send(&again)?;
    }
}
