//! Time of a message between two processes of this machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use crate::{Error, Result};

/// Messages of each length.
const ROUNDS: usize = 200;
const SHORT: usize = 64;
const LONG: usize = 64 << 10;

/// Nanoseconds of a short message over the loopback interface, and of each byte more: the medians of a few hundred.
///
/// # Errors
/// A machine without that interface.
pub fn loopback_prices() -> Result<(f64, f64)> {
    let failed = |e: std::io::Error| {
        Error::bad_input(format!(
            "messages cannot be timed over the loopback interface: {e}; give the prices of a message and of a byte"
        ))
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = vec![0u8; LONG];
        for length in [SHORT, LONG] {
            for _ in 0..ROUNDS {
                stream.read_exact(&mut buffer[..length])?;
                stream.write_all(&buffer[..length])?;
            }
        }
        Ok(())
    });
    let time = || -> std::io::Result<[f64; 2]> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut buffer = vec![0u8; LONG];
        let mut medians = [0.0; 2];
        for (median, length) in medians.iter_mut().zip([SHORT, LONG]) {
            let mut times = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let started = Instant::now();
                stream.write_all(&buffer[..length])?;
                stream.read_exact(&mut buffer[..length])?;
                times.push(started.elapsed().as_nanos() as f64 / 2.0);
            }
            times.sort_by(f64::total_cmp);
            *median = times[ROUNDS / 2];
        }
        Ok(medians)
    };
    let [short, long] = time().map_err(failed)?;
    let _ = echo.join();
    Ok((short, ((long - short) / (LONG - SHORT) as f64).max(0.0)))
}
