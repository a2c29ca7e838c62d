//! Price of a message between two threads of this machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use crate::budget::cpu_us;
use crate::{Error, Result};

/// Round trips of each length in a round, and rounds, of which the cheapest counts.
const TRIPS: usize = 100;
const ROUNDS: usize = 5;
const SHORT: usize = 64;
const LONG: usize = 64 << 10;

/// Nanoseconds of a short message over the loopback interface for both sides, and of each byte more.
///
/// Processor time counts, not time by the clock: other programs make a message wait, but hardly dearer. The cheapest
/// of a few rounds is disturbed least.
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
            for _ in 0..ROUNDS * TRIPS {
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
        let mut least = [f64::INFINITY; 2];
        for (least, length) in least.iter_mut().zip([SHORT, LONG]) {
            for _ in 0..ROUNDS {
                let (started, started_us) = (Instant::now(), cpu_us());
                for _ in 0..TRIPS {
                    stream.write_all(&buffer[..length])?;
                    stream.read_exact(&mut buffer[..length])?;
                }
                // A system that does not count processor time leaves the clock.
                let ns = match cpu_us().saturating_sub(started_us) {
                    0 => started.elapsed().as_nanos() as f64,
                    us => us as f64 * 1000.0,
                };
                *least = least.min(ns / (2 * TRIPS) as f64);
            }
        }
        Ok(least)
    };
    let [short, long] = time().map_err(failed)?;
    let _ = echo.join();
    Ok((short, ((long - short) / (LONG - SHORT) as f64).max(0.0)))
}
