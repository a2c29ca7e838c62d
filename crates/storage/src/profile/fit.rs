//! Fits a straight line.

/// Computes the line `fixed + slope × x` with the least sum of squared relative errors at the points `(x, y)`, both
/// terms 0 or more; x and y are above 0. Errors are relative, because small sizes are measured as precisely as large
/// ones, and used more often.
pub(super) fn line(points: &[(f64, f64)]) -> (f64, f64) {
    // With u = 1 / y and v = x / y the line has fixed · u + slope · v = 1 at every point.
    let sum = |f: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(x, y)| f(1.0 / y, x / y)).sum::<f64>();
    let (u, v) = (sum(&|u, _| u), sum(&|_, v| v));
    let (uu, uv, vv) = (sum(&|u, _| u * u), sum(&|u, v| u * v), sum(&|_, v| v * v));
    let determinant = uu * vv - uv * uv;
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    // A single size gives no slope.
    if determinant <= 1e-9 * uu * vv {
        return (ratio(u, uu), 0.0);
    }
    let (fixed, slope) = ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant);
    match (fixed < 0.0, slope < 0.0) {
        (true, _) => (0.0, ratio(v, vv)),
        (_, true) => (ratio(u, uu), 0.0),
        _ => (fixed, slope),
    }
}

/// Rounds to the nearest power of √2, and keeps 0: equal machines then have equal figures, for all that a busy moment
/// adds to one of them.
pub(super) fn rounded(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return x;
    }
    let halves = (2.0 * x.log2()).round() as i32;
    let odd = if halves.rem_euclid(2) == 1 { std::f64::consts::SQRT_2 } else { 1.0 };
    2f64.powi(halves.div_euclid(2)) * odd
}

/// The middle of measurements; of an even number the upper one. 0 of none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_to_coarse_steps() {
        for (x, expected) in [
            (1.0, 1.0),
            (1.1, 1.0),
            (1.3, 2f64.sqrt()),
            (384.0, 362.038),
            (0.02, 0.0221),
            (0.0, 0.0),
            (-1.0, -1.0),
        ] {
            assert!((rounded(x) - expected).abs() <= 1e-3 * expected.abs(), "{x}: {}", rounded(x));
            assert_eq!(rounded(rounded(x)), rounded(x));
        }
        assert!(rounded(f64::NAN).is_nan());
    }

    #[test]
    fn one_disturbed_pass_does_not_count() {
        assert_eq!(median([3.0, 900.0, 4.0].into_iter()), 4.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    #[track_caller]
    fn check(points: &[(f64, f64)], fixed: f64, slope: f64) {
        let found = line(points);
        assert!((found.0 - fixed).abs() < 1e-6 && (found.1 - slope).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_line_is_found_and_never_falls() {
        check(&[(1.0, 12.0), (2.0, 14.0), (8.0, 26.0)], 10.0, 2.0);
        check(&[(1.0, 4.0), (2.0, 8.0)], 0.0, 4.0);
        // A negative fixed part or slope is noise.
        check(&[(1.0, 1.0), (2.0, 4.0)], 0.0, 1.2);
        let (fixed, slope) = line(&[(1.0, 5.0), (2.0, 4.0)]);
        assert!(slope == 0.0 && (4.0..5.0).contains(&fixed));
        check(&[(4.0, 3.0)], 3.0, 0.0);
        check(&[], 0.0, 0.0);
    }
}
