//! A way over TCP that can be cut, and mended.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Passes bytes on between those that connect here and a server.
pub struct Way {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    /// A way to a server.
    ///
    /// # Errors
    /// No port is free.
    pub fn to(server: SocketAddr) -> io::Result<Way> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = Way { address: listener.local_addr()?, is_cut: Arc::default(), open: Arc::default() };
        let (is_cut, open) = (own.is_cut.clone(), own.open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !is_cut.load(Ordering::SeqCst)
                    && let Ok(server) = TcpStream::connect(server)
                    && pass_on(&client, &server).and(pass_on(&server, &client)).is_ok()
                {
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

    /// Passes new connections on again.
    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn streams(open: &Mutex<Vec<TcpStream>>) -> MutexGuard<'_, Vec<TcpStream>> {
    open.lock().unwrap_or_else(|e| e.into_inner())
}

fn pass_on(from: &TcpStream, into: &TcpStream) -> io::Result<()> {
    let (mut from, mut into) = (from.try_clone()?, into.try_clone()?);
    std::thread::spawn(move || {
        // The other side learns of an end.
        let _ = io::copy(&mut from, &mut into);
        let _ = into.shutdown(Shutdown::Both);
    });
    Ok(())
}
