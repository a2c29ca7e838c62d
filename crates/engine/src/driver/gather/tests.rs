use super::of_equal_bytes;

/// Clusters lie in the order of their sizes, so that doorbells in the order of addresses would be very uneven.
#[test]
fn doorbells_of_a_batch_have_about_the_same_bytes() {
    let sizes: Vec<u64> = (1..=100).rev().map(|size| size * 1000).collect();
    let numbers = of_equal_bytes(&sizes, 7);
    let mean = sizes.iter().sum::<u64>() as f64 / 7.0;
    for doorbell in 0..7 {
        let own = || numbers.iter().zip(&sizes).filter(|own| *own.0 == doorbell).map(|own| own.1);
        assert!((14..=16).contains(&own().count()));
        let bytes = own().sum::<u64>() as f64;
        assert!((0.95..1.05).contains(&(bytes / mean)), "doorbell {doorbell}: {bytes} bytes of {mean}");
    }
    assert!(numbers.iter().all(|&number| number < 7));
    assert!(of_equal_bytes(&[], 0).is_empty());
    assert_eq!(of_equal_bytes(&[5, 9], 2), [1, 0]);
}
