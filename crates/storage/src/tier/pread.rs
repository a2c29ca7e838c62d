//! A pool of threads that call `pread`: for kernels and containers without io_uring.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::files::FileTable;
use super::{Buffer, Completion, FileId, Files, Tier, Waker};

struct Job {
    tag: u64,
    // `None` of a file that the tier does not have.
    file: Option<Arc<File>>,
    offset: u64,
    buffer: Buffer,
}

/// Threads that read for one driver thread.
pub struct PreadTier {
    // One queue per thread, filled in turn; closing them ends the threads.
    jobs: Vec<Sender<Job>>,
    // Nothing instead of a completion: somebody wants to be looked at.
    done: Receiver<Option<Completion>>,
    finished: Sender<Option<Completion>>,
    is_wakeable: bool,
    threads: Vec<JoinHandle<()>>,
    next: usize,
    in_flight: usize,
    depth: usize,
    files: FileTable,
}

/// Most threads of one tier.
pub(super) const THREADS_MAX: usize = 32;

impl PreadTier {
    /// Room for `depth` reads, by up to 32 threads.
    pub fn new(depth: usize) -> PreadTier {
        PreadTier::with_threads(depth, THREADS_MAX)
    }

    /// Room for `depth` reads, by up to `threads` threads.
    pub(super) fn with_threads(depth: usize, threads: usize) -> PreadTier {
        let depth = depth.max(1);
        let (finished, done) = channel();
        let mut jobs = Vec::new();
        let most = depth.min(threads.max(1));
        let mut threads = Vec::new();
        for _ in 0..most {
            let (sender, queue) = channel::<Job>();
            let finished = finished.clone();
            jobs.push(sender);
            threads.push(std::thread::spawn(move || {
                for Job { tag, file, offset, mut buffer } in queue {
                    let result = match file {
                        Some(file) => read_fully(&file, buffer.bytes_mut(), offset),
                        None => Err(io::ErrorKind::NotFound.into()),
                    };
                    if finished.send(Some(Completion { tag, buffer, result })).is_err() {
                        return;
                    }
                }
            }));
        }
        PreadTier {
            jobs,
            done,
            finished,
            is_wakeable: false,
            threads,
            next: 0,
            in_flight: 0,
            depth,
            files: FileTable::default(),
        }
    }

    /// As [`Tier::set_files`].
    pub(super) fn set_table(&mut self, files: FileTable) {
        self.files = files;
    }
}

/// Reads until the buffer is full or the file ends; direct reads must keep to whole pages, so a part of one ends it
/// too.
fn read_fully(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(n) => {
                have += n;
                if n % stratann_core::PAGE != 0 {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

impl Tier for PreadTier {
    fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    fn set_files(&mut self, files: &[Arc<Files>]) {
        self.files.set(files);
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.files.get(file).map(|file| file.bytes)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        assert!(self.room() > 0, "the caller asks for room first");
        let queue = &self.jobs[self.next % self.jobs.len()];
        self.next += 1;
        self.in_flight += 1;
        let file = self.files.get(file).map(|file| file.file.clone());
        queue.send(Job { tag, file, offset, buffer }).expect("threads live as long as their queues");
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut next = match wait && (self.in_flight > 0 || self.is_wakeable) {
            true => self.done.recv().ok(),
            false => self.done.try_recv().ok(),
        };
        while let Some(come) = next {
            if let Some(completion) = come {
                done.push(completion);
                self.in_flight -= 1;
            }
            next = self.done.try_recv().ok();
        }
        Ok(())
    }

    fn waker(&mut self) -> io::Result<Waker> {
        self.is_wakeable = true;
        let finished = self.finished.clone();
        Ok(Waker::new(move || drop(finished.send(None))))
    }

    fn name(&self) -> &'static str {
        "pread"
    }
}

impl Drop for PreadTier {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
