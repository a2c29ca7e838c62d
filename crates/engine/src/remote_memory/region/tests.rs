use std::fs;
use std::path::Path;

use super::*;

const BYTES: u64 = 200_000;

fn open(folder: &Path) -> Result<Region> {
    Region::open(NodeId(0), BYTES, &Place::File(folder.join("region")))
}

fn write(region: &mut Region, offset: u64, from: &[u8]) {
    region.execute(&mut Operation::Write { offset, from });
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    region.read(0, &mut bytes);
    bytes
}

/// Commits of a region, and its content after each.
fn commits(region: &mut Region) -> Vec<Vec<u8>> {
    let mut contents = vec![content(region)];
    for round in 0..4u8 {
        write(region, 65_530 + u64::from(round), &[round + 1; 20]);
        write(region, 199_990, &[round + 50; 10]);
        region.execute(&mut Operation::FetchAdd { offset: 8, add: 3, old: 0 });
        region.execute(&mut Operation::CompareSwap { offset: 16, expected: round.into(), new: 1, old: 0 });
        region.commit().unwrap();
        contents.push(content(region));
    }
    contents
}

#[test]
fn a_file_keeps_content_and_epoch_without_a_close() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = open(folder.path()).unwrap();
    let (facts, contents) = (region.facts(), commits(&mut region));
    assert!(facts.has_file);
    // Not committed, so not acknowledged.
    write(&mut region, 0, b"lost");
    drop(region);
    let mut region = open(folder.path()).unwrap();
    assert_eq!(region.facts(), facts);
    assert_eq!(&content(&region), contents.last().unwrap());
    write(&mut region, 100, b"more");
    region.close().unwrap();
    drop(region);
    assert_eq!(fs::metadata(folder.path().join("region.journal")).unwrap().len(), 0);
    let mut bytes = vec![0; 4];
    open(folder.path()).unwrap().read(100, &mut bytes);
    assert_eq!(bytes, b"more");
}

/// A journal that is cut at any byte gives the region after some commit, and all that were whole.
#[test]
fn a_journal_cut_at_every_byte_loses_the_last_commit_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = open(folder.path()).unwrap();
    let path = folder.path().join("region.journal");
    // Behind a record of 92 bytes.
    const PADDING: u64 = 4;
    let mut ends = vec![0];
    let mut contents = vec![content(&region)];
    for round in 0..3u8 {
        write(&mut region, 65_530, &[round + 1; 20]);
        region.execute(&mut Operation::FetchAdd { offset: 8, add: 3, old: 0 });
        region.commit().unwrap();
        ends.push(fs::metadata(&path).unwrap().len());
        contents.push(content(&region));
    }
    drop(region);
    let (image, journal) = (fs::read(folder.path().join("region")).unwrap(), fs::read(&path).unwrap());
    for cut in 0..=journal.len() {
        fs::write(folder.path().join("region"), &image).unwrap();
        fs::write(&path, &journal[..cut]).unwrap();
        let region = open(folder.path()).unwrap();
        let whole = ends.iter().rposition(|end| *end <= cut as u64 + PADDING).unwrap();
        assert!(content(&region) == contents[whole], "cut at {cut}");
    }
}

/// A write of the last record that left garbage anywhere is dropped; damage before it is named.
#[test]
fn damage_within_the_journal_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut region = open(folder.path()).unwrap();
    let contents = commits(&mut region);
    drop(region);
    let path = folder.path().join("region.journal");
    let (image, journal) = (fs::read(folder.path().join("region")).unwrap(), fs::read(&path).unwrap());
    let record = journal.len() / 4;
    for at in (0..journal.len()).step_by(5) {
        let mut damaged = journal.clone();
        damaged[at] ^= 0x10;
        fs::write(folder.path().join("region"), &image).unwrap();
        fs::write(&path, &damaged).unwrap();
        match open(folder.path()) {
            Ok(region) => {
                let found = content(&region);
                assert!(at >= 3 * record || found == contents[4], "damage at {at} was not found");
                assert!(found == contents[3] || found == contents[4]);
            }
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Corrupt);
                assert!(e.message.contains("damaged"), "{}", e.message);
            }
        }
    }
}

/// A checkpoint that was cut off at any chunk, or within one, is repeated from the journal.
#[test]
fn a_checkpoint_torn_anywhere_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (path, journal_path) = (folder.path().join("region"), folder.path().join("region.journal"));
    let mut region = open(folder.path()).unwrap();
    write(&mut region, 0, &[7; BYTES as usize]);
    region.close().unwrap();
    let contents = commits(&mut region);
    let (before, journal) = (fs::read(&path).unwrap(), fs::read(&journal_path).unwrap());
    region.close().unwrap();
    drop(region);
    let after = fs::read(&path).unwrap();
    let sums: Vec<(u64, u64)> = (0..4)
        .map(|chunk| {
            let at = after.len() - 32 + 8 * chunk as usize;
            (chunk, u64::from_le_bytes(after[at..at + 8].try_into().unwrap()))
        })
        .collect();
    // The journal as it is while the checkpoint writes: the sums are its last record.
    let with_sums = [journal.clone(), journal::sums(last_number(&journal) + 1, &sums)].concat();
    let differing: Vec<usize> = (0..before.len()).filter(|&i| before[i] != after[i]).collect();
    assert!(differing.len() > 50);
    for &cut in &differing {
        let torn = [&after[..cut], &before[cut..]].concat();
        fs::write(&path, &torn).unwrap();
        fs::write(&journal_path, &with_sums).unwrap();
        assert_eq!(&content(&open(folder.path()).unwrap()), contents.last().unwrap(), "torn at {cut}");
    }
    // Without the journal a torn chunk is named.
    let cut = 4096 + 65_536 + 4;
    fs::write(&path, [&after[..cut], &before[cut..]].concat()).unwrap();
    fs::write(&journal_path, b"").unwrap();
    let error = open(folder.path()).err().unwrap();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("chunk"), "{}", error.message);
}

fn last_number(journal: &[u8]) -> u64 {
    journal::read(journal).unwrap().1 - 1
}

#[test]
fn each_damaged_chunk_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let mut region = open(folder.path()).unwrap();
    write(&mut region, 0, &[7; BYTES as usize]);
    region.close().unwrap();
    drop(region);
    let image = fs::read(&path).unwrap();
    for at in (4096..4096 + BYTES as usize).step_by(9973) {
        let mut damaged = image.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let error = open(folder.path()).err().unwrap();
        let chunk = format!("chunk {},", (at - 4096) / 65_536);
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains(&chunk), "{}", error.message);
    }
    let mut damaged = image.clone();
    damaged[20] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(open(folder.path()).err().unwrap().message.contains("header"));
}

#[test]
fn a_file_of_another_size_or_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let region = open(folder.path()).unwrap();
    assert!(open(folder.path()).err().unwrap().message.contains("in use"));
    drop(region);
    let error = Region::open(NodeId(0), BYTES + 1, &Place::File(path.clone())).err().unwrap();
    assert!(error.message.contains(&format!("--size {BYTES}")), "{}", error.message);
    fs::write(&path, b"some text of somebody else").unwrap();
    assert!(open(folder.path()).err().unwrap().message.contains("no file of a memory node"));
    assert!(Region::open(NodeId(0), 0, &Place::Memory).err().unwrap().message.contains("0 bytes"));
}

#[test]
fn names_of_segments_stay_in_their_folder() {
    for name in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(300)] {
        let error = Region::open(NodeId(0), 4096, &Place::Shared(name.into())).err().unwrap();
        assert!(error.message.contains("segment"), "{}", error.message);
    }
}
