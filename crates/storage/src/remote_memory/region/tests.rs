use super::*;

#[test]
fn a_region_without_bytes_is_refused() {
    assert!(Region::open(NodeId(0), 0, &Place::Memory, &[]).err().unwrap().message.contains("0 bytes"));
}

#[test]
fn names_of_segments_stay_in_their_folder() {
    for name in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(300)] {
        let error = Region::open(NodeId(0), 4096, &Place::Shared(name.into()), &[]).err().unwrap();
        assert!(error.message.contains("segment"), "{}", error.message);
    }
}
