//! A connection that ends when its client stops reading, or reads too slowly: an answer that is not read would hold its
//! memory for ever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::activity::Activity;
use crate::limits::Limits;

/// A stream whose writes fail once the client has read less than its least rate for `patience`. Reads wait without a
/// limit.
pub(crate) struct Patient {
    stream: TcpStream,
    activity: Arc<Activity>,
    patience: Duration,
    // Bytes that a client reads at least in that time.
    least_bytes: u64,
    // The end of the present look, and the bytes written since it began. `None` while nothing waits to be written.
    look: Option<(Pin<Box<Sleep>>, u64)>,
}

impl Patient {
    pub(crate) fn new(stream: TcpStream, limits: &Limits, activity: Arc<Activity>) -> Patient {
        let patience = limits.patience;
        let least_bytes = (limits.least_rate as f64 * patience.as_secs_f64()) as u64;
        Patient { stream, activity, patience, least_bytes, look: None }
    }

    fn unless_stuck(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = polled {
            if let (Some((_, bytes)), Ok(written)) = (&mut self.look, &written) {
                *bytes += *written as u64;
            }
            return Poll::Ready(written);
        }
        let patience = self.patience;
        let (end, bytes) = self.look.get_or_insert_with(|| (Box::pin(tokio::time::sleep(patience)), 0));
        while end.as_mut().poll(context).is_ready() {
            if *bytes < self.least_bytes {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            *bytes = 0;
            end.as_mut().reset(Instant::now() + patience);
        }
        Poll::Pending
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        polled
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_stuck(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.unless_stuck(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called once all is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look = None;
        self.activity.flushed();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
