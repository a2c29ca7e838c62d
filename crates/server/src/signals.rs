//! The signals SIGINT (Ctrl-C) and SIGTERM.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: a supervisor.
    Terminate,
}

/// Calls `act` for every signal, from a thread of its own.
///
/// # Errors
/// Errors of the operating system.
pub fn watch_signals(act: impl Fn(Signal) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = runtime.block_on(async {
        io::Result::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    })?;
    let watch = async move {
        loop {
            let received = tokio::select! {
                _ = interrupt.recv() => Signal::Interrupt,
                _ = terminate.recv() => Signal::Terminate,
            };
            act(received);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(watch))?;
    Ok(())
}
