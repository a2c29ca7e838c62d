//! The end of a log, read before the engine reads it: the engine cuts a log at the first byte that it does not expect.
//!
//! A batch in a log file, numbers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 1, 4, 8 | 1; items; sequence number |
//! | 1, 1, 1, 8, 2, 4, 4 | of each item: 2; type of value; 0; keyspace; bytes of key; bytes of value, twice |
//! | … | its key, its value |
//! | 1, 8, 4 | 3; xxh3 of all items; `FJL` and 3 |
//!
//! Zeros follow the last batch.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use stratann_storage::input;
use xxhash_rust::xxh3::Xxh3;

use crate::rows::engine::LogEnd;
use crate::rows::key::{KEY_BYTES_MAX, Key};

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const ITEM_BYTES: usize = 21;
const PIECE_BYTES: usize = 64 << 10;
/// Longest value that is wanted of a log.
const WANTED_BYTES_MAX: usize = 64;

/// Reads where the log files of a database end, and the last value of a key in them.
pub(super) fn end_of_log(folder: &Path, key: &Key) -> io::Result<LogEnd> {
    let mut end = LogEnd::default();
    for path in log_files(folder)? {
        let of_file = end_of_file(&path, key.as_bytes())?;
        end.last = of_file.last.or(end.last);
        end.is_cut |= of_file.is_cut;
        end.bytes += of_file.bytes;
        end.whole = of_file.whole;
    }
    Ok(end)
}

/// Removes what follows the last whole batch. The engine does so too, but for rests of batches on which it gives up.
pub(super) fn cut_log(end: &LogEnd) -> io::Result<()> {
    let Some((path, bytes)) = end.whole.as_ref().filter(|_| end.is_cut) else {
        return Ok(());
    };
    let file = File::options().write(true).open(path)?;
    file.set_len(*bytes)?;
    file.sync_all()
}

/// Removes all batches. The engine begins another file at 64 MB, but counts what this process wrote alone: the log of
/// processes that write little would grow for ever. An empty file stays: without one the engine would count its
/// sequence numbers from 0 on.
pub(super) fn empty_log(folder: &Path) -> io::Result<()> {
    let mut files = log_files(folder)?;
    let newest = files.pop();
    for path in files {
        std::fs::remove_file(path)?;
    }
    let Some(newest) = newest else { return Ok(()) };
    let file = File::options().write(true).open(newest)?;
    file.set_len(0)?;
    file.sync_all()
}

/// Log files of a database, the oldest first.
fn log_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let number =
            path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let Some(number) = number.filter(|_| path.extension().is_some_and(|ending| ending == "jnl")) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn end_of_file(path: &Path, key: &[u8]) -> io::Result<LogEnd> {
    let mut file = BufReader::with_capacity(PIECE_BYTES, input::open_regular(path, 0)?);
    let mut end = LogEnd::default();
    let mut at = 0;
    loop {
        match read_batch(&mut file, key) {
            Ok(Some(value)) => end.last = value.or(end.last),
            Ok(None) => break,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e),
        }
        at = file.stream_position()?;
    }
    end.whole = Some((path.to_path_buf(), at));
    end.bytes = at;
    file.seek(SeekFrom::Start(at))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 || end.is_cut {
            return Ok(end);
        }
        end.is_cut = piece[..count].iter().any(|byte| *byte != 0);
    }
}

/// Reads a batch, and the value of a key in it; `None` for bytes that are no whole batch.
#[allow(clippy::option_option, reason = "a batch without the key is a batch")]
fn read_batch(file: &mut impl Read, key: &[u8]) -> io::Result<Option<Option<Vec<u8>>>> {
    let [tag, count @ ..] = read::<5>(file)?;
    if tag != START {
        return Ok(None);
    }
    read::<8>(file)?;
    let mut sum = Xxh3::new();
    let mut wanted = None;
    for _ in 0..u32::from_le_bytes(count) {
        let item = read::<ITEM_BYTES>(file)?;
        let key_bytes = usize::from(u16::from_le_bytes([item[11], item[12]]));
        let value_bytes = u32::from_le_bytes([item[17], item[18], item[19], item[20]]) as usize;
        if item[0] != ITEM || key_bytes > KEY_BYTES_MAX {
            return Ok(None);
        }
        sum.update(&item);
        let mut own_key = vec![0; key_bytes];
        file.read_exact(&mut own_key)?;
        sum.update(&own_key);
        let mut left = value_bytes;
        let mut piece = vec![0; left.min(PIECE_BYTES)];
        while left > 0 {
            let count = left.min(PIECE_BYTES);
            file.read_exact(&mut piece[..count])?;
            sum.update(&piece[..count]);
            left -= count;
        }
        if own_key == key && value_bytes <= WANTED_BYTES_MAX {
            wanted = Some(piece);
        }
    }
    let end = read::<13>(file)?;
    let is_whole = end[0] == END && end[1..9] == sum.digest().to_le_bytes() && &end[9..] == b"FJL\x03";
    Ok(is_whole.then_some(wanted))
}

fn read<const BYTES: usize>(file: &mut impl Read) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}
