//! A way over TCP that can be cut, and mended, and be slow.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Bytes that are passed on at a time.
const PART: usize = 16 << 10;

/// Passes bytes on between those that connect here and a server.
pub struct Way {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    bytes_per_ms: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl Way {
    /// A way to a server.
    ///
    /// # Errors
    /// No port is free.
    pub fn to(server: SocketAddr) -> io::Result<Way> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = Way {
            address: listener.local_addr()?,
            is_cut: Arc::default(),
            open: Arc::default(),
            bytes_per_ms: Arc::new(AtomicU64::new(u64::MAX)),
            connections: Arc::default(),
        };
        let (is_cut, open, limit) = (own.is_cut.clone(), own.open.clone(), own.bytes_per_ms.clone());
        let connections = own.connections.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !is_cut.load(Ordering::SeqCst)
                    && let Ok(server) = TcpStream::connect(server)
                    && pass_on(&client, &server, &limit).and(pass_on(&server, &client, &limit)).is_ok()
                {
                    connections.fetch_add(1, Ordering::SeqCst);
                    streams(&open).extend([client, server]);
                }
            }
        });
        Ok(own)
    }

    /// Address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and every one that comes.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in streams(&self.open).drain(..) {
            // One that is closed already stays so.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Passes on so many bytes a millisecond from here on, each way of each connection.
    pub fn limit(&self, bytes_per_ms: u64) {
        self.bytes_per_ms.store(bytes_per_ms.max(1), Ordering::SeqCst);
    }

    /// Connections that were passed on.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Passes new connections on again.
    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn streams(open: &Mutex<Vec<TcpStream>>) -> MutexGuard<'_, Vec<TcpStream>> {
    open.lock().unwrap_or_else(|e| e.into_inner())
}

fn pass_on(from: &TcpStream, into: &TcpStream, limit: &Arc<AtomicU64>) -> io::Result<()> {
    let (from, into, limit) = (from.try_clone()?, into.try_clone()?, limit.clone());
    into.set_nodelay(true)?;
    std::thread::spawn(move || {
        // The other side learns of an end.
        let _ = copy(&from, &into, &limit);
        let _ = into.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut into: &TcpStream, limit: &AtomicU64) -> io::Result<()> {
    let mut bytes = vec![0; PART];
    loop {
        let count = from.read(&mut bytes)?;
        let time = Duration::from_micros(1000 * count as u64 / limit.load(Ordering::SeqCst));
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        into.write_all(&bytes[..count])?;
        if count == 0 {
            return Ok(());
        }
    }
}
