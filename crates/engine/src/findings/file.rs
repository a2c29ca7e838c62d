//! Compares a file with the manifest.

use std::io::Read;
use std::path::Path;

use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::hex;
use stratann_storage::{Error, Progress, Result, input};
use xxhash_rust::xxh3::Xxh3;

use crate::findings::{Finding, Report};

/// Reads a file in pieces, gives them to `each`, and compares length and checksum with the manifest.
pub(crate) fn check_file(
    folder: &Path,
    name: &str,
    entry: &FileEntry,
    each: &mut dyn FnMut(&[u8]),
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let path = folder.join(name);
    let finding = |what: String| Finding { file: name.into(), what, ..Finding::default() };
    let opened = input::open_regular(&path, 0).and_then(|file| Ok((file.metadata()?.len(), file)));
    // No more is read than belongs there.
    let (length, mut file) = match opened {
        Ok((length, file)) => (length, file.take(entry.bytes)),
        Err(e) => {
            report.found(finding(format!("it cannot be opened: {e}")));
            return Ok(());
        }
    };
    let (mut hash, mut bytes, mut buffer) = (Xxh3::new(), 0u64, vec![0u8; 1 << 20]);
    loop {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let have = match fill(&mut file, &mut buffer) {
            Ok(have) => have,
            Err(e) => {
                let what = format!("reading it failed: {e}");
                report.found(Finding { offset: Some(bytes), ..finding(what) });
                return Ok(());
            }
        };
        hash.update(&buffer[..have]);
        each(&buffer[..have]);
        bytes += have as u64;
        progress.advance(have as u64);
        if have < buffer.len() {
            break;
        }
    }
    report.files += 1;
    report.bytes += bytes;
    if length != entry.bytes {
        report.found(finding(format!("it has {length} bytes, the manifest says {}", entry.bytes)));
    } else if hex(hash.digest()) != entry.xxh3 {
        report.found(finding("its checksum does not match the manifest".into()));
    }
    Ok(())
}

fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}
