use super::*;

const FULL: StopRule = StopRule::by_slack(None, 0.0);
const EARLY: StopRule = StopRule::by_slack(Some(0.0), 0.2);

fn point(effort: u32, stop: StopRule, recall: f64, reads: f64) -> Point {
    Point { effort, stop, recall, reads, ..Point::default() }
}

fn curve(points: &[(u32, StopRule, f64, f64)]) -> Curve {
    Curve {
        k: 10,
        queries: 5,
        source: "rows".into(),
        kth_distance: Some(4.0),
        variant: None,
        family: None,
        resident_share: None,
        misses_aimed: None,
        points: points
            .iter()
            .map(|&(effort, stop, recall, reads)| point(effort, stop, recall, reads))
            .collect(),
        widening: Vec::new(),
    }
}

#[test]
fn the_cheapest_rule_that_reaches_is_taken() {
    let c = curve(&[
        (10, FULL, 0.8, 10.0),
        (10, EARLY, 0.7, 8.0),
        (30, FULL, 0.95, 30.0),
        (30, EARLY, 0.9, 15.0),
    ]);
    assert_eq!(c.setting(0.9).unwrap().stop, EARLY);
    assert_eq!(c.setting(0.95).unwrap(), point(30, FULL, 0.95, 30.0));
    assert_eq!(c.setting(0.99), None);
    assert_eq!(c.frontier().iter().map(|p| p.reads).collect::<Vec<_>>(), [8.0, 10.0, 15.0, 30.0]);
}

#[test]
fn a_path_that_misses_next_to_nothing_settles() {
    let of = |recalls: &[f64]| {
        let points: Vec<_> = recalls.iter().map(|&recall| (10, FULL, recall, 5.0)).collect();
        curve(&points).has_settled()
    };
    assert!(of(&[0.9, 0.999, 0.999]) && of(&[0.999, 0.99905]));
    assert!(!of(&[0.999]) && !of(&[0.9, 0.999]) && !of(&[0.98, 0.98]) && !of(&[0.998, 0.9995]));
}

#[test]
fn paths_that_are_nowhere_clearly_cheaper_are_not_useful() {
    let of = |paths: &[&[(f64, f64)]]| {
        let mut all = curve(&[]);
        for (number, path) in (0..).zip(paths) {
            let points = path
                .iter()
                .map(|&(recall, reads)| Point { path: Some(number), ..point(1, FULL, recall, reads) });
            all.points.extend(points);
        }
        all.useful_paths()
    };
    let usual: &[(f64, f64)] = &[(0.6, 5.0), (0.8, 10.0), (0.95, 20.0)];
    assert_eq!(of(&[usual]), [0]);
    // One costs a tenth less throughout, another one is clearly cheaper above.
    assert_eq!(of(&[usual, &[(0.6, 4.5), (0.8, 9.0), (0.95, 18.0)]]), [0]);
    assert_eq!(of(&[usual, &[(0.6, 9.0), (0.8, 14.0), (0.95, 15.0)]]), [0, 1]);
    // The one that covers all is enough.
    assert_eq!(of(&[usual, &[(0.6, 5.0), (0.8, 10.0), (0.95, 15.0)]]), [1]);
    // One alone reaches so far.
    assert_eq!(of(&[usual, &[(0.6, 50.0), (0.999, 100.0)]]), [0, 1]);
    // Recalls that nobody asks for, and none at all.
    assert_eq!(of(&[usual, &[(0.1, 0.1)]]), [0]);
    assert_eq!(of(&[]), [0u32; 0]);
}

#[test]
fn the_cheapest_way_that_reaches_is_taken() {
    let usual = curve(&[(10, FULL, 0.9, 10.0), (20, FULL, 0.97, 30.0)]);
    let of_changes = curve(&[(10, FULL, 0.9, 12.0), (20, FULL, 0.97, 20.0), (30, FULL, 0.99, 25.0)]);
    let curves = [usual, Curve { family: Some("changes".into()), ..of_changes }];
    let both = [None, Some("changes")];
    let chosen = |families: &[Option<&'static str>], recall| {
        let (family, point) = cheapest(&curves, families, 10, recall).unwrap();
        (family, point.reads)
    };
    assert_eq!(chosen(&both, 0.85), (None, 10.0));
    assert_eq!(chosen(&both, 0.96).0, Some("changes"));
    assert_eq!(chosen(&both[..1], 0.96).0, None);
    // One curve ends below the recall.
    assert_eq!(chosen(&both, 0.98).0, Some("changes"));
    assert_eq!(chosen(&both[..1], 0.98), (None, f64::INFINITY));
    assert_eq!(chosen(&both, 1.0), (None, f64::INFINITY));
    assert!(cheapest(&curves, &[Some("static")], 10, 0.9).is_none());
}

#[test]
fn reads_of_lists_count_where_lists_are_not_resident() {
    // The first reads many lists for few vectors, the second the other way round.
    let mut c = curve(&[(900, FULL, 0.99, 260.0), (500, EARLY, 0.99, 150.0)]);
    for (point, vectors) in c.points.iter_mut().zip([80.0, 118.0]) {
        (point.vectors, point.comparisons) = (Some(vectors), Some(30_000.0));
    }
    for (resident_share, effort) in [(None, 900), (Some(1.0), 900), (Some(0.0), 500), (Some(0.2), 500)] {
        c.resident_share = resident_share;
        assert_eq!(c.setting(0.98).unwrap().effort, effort, "{resident_share:?}");
        assert_eq!(cheapest(std::slice::from_ref(&c), &[None], 10, 0.98).unwrap().1.effort, effort);
    }
}

#[test]
fn beams_are_interpolated_by_misses() {
    let middle = curve(&[(10, FULL, 0.8, 10.0), (30, FULL, 0.95, 30.0)]).setting(0.9).unwrap();
    assert!((19..=21).contains(&middle.effort), "{middle:?}");
}

#[test]
fn margins_of_one_path_are_interpolated() {
    let rule = |margin| StopRule::by_margin(margin, 0.25);
    let mut c = curve(&[(100, rule(0.0), 0.8, 10.0), (140, rule(0.1), 0.95, 30.0)]);
    let middle = c.setting(0.9).unwrap();
    let margin = middle.stop.margin.unwrap();
    assert!((0.04..0.06).contains(&margin) && (118..=122).contains(&middle.effort), "{middle:?}");
    assert_eq!(middle.stop.idle_share, 0.25);
    // Another idle share is another path.
    c.points.push(point(90, StopRule::by_margin(0.05, 0.1), 0.92, 12.0));
    assert_eq!(c.setting(0.9).unwrap().reads, 12.0);
}

#[test]
fn the_hardest_queries_decide() {
    let mut c = curve(&[(10, FULL, 0.95, 10.0), (30, FULL, 0.97, 30.0), (50, FULL, 0.99, 50.0)]);
    for (point, hardest) in c.points.iter_mut().zip([0.85, 0.95, 0.97]) {
        (point.hardest, point.comparisons) = (Some(hardest), Some(100.0));
    }
    c.source = FROM_MIXTURE.into();
    assert_eq!(choose(std::slice::from_ref(&c), 10, 0.95).unwrap().effort, 30);
    // A lucky point is not taken.
    c.points[0].hardest = Some(0.96);
    c.points[1].hardest = Some(0.94);
    assert!(choose(std::slice::from_ref(&c), 10, 0.95).unwrap().effort > 30);
}

#[test]
fn a_path_is_left_where_others_cost_half() {
    let c = curve(&[(10, FULL, 0.8, 10.0), (30, FULL, 0.95, 30.0)]);
    let costing = |recall, reads| Point { recall, reads, ..Point::default() };
    assert!(c.is_far_cheaper(&costing(0.95, 61.0)) && !c.is_far_cheaper(&costing(0.95, 59.0)));
    assert!(c.is_far_cheaper(&costing(0.7, 21.0)) && !c.is_far_cheaper(&costing(0.96, 1000.0)));
}

#[test]
fn all_of_a_rule_is_interpolated_between_points_of_a_named_path() {
    let named = |path, effort, slack, share, recall, reads| Point {
        path: Some(path),
        ..point(effort, StopRule::by_slack(Some(slack), share), recall, reads)
    };
    let mut c = curve(&[]);
    c.points = vec![named(0, 10, 0.5, 0.2, 0.8, 10.0), named(0, 30, 1.5, 0.4, 0.95, 30.0)];
    let middle = c.setting(0.9).unwrap();
    let (slack, share) = (middle.stop.slack.unwrap(), middle.stop.share);
    assert!((0.9..1.1).contains(&slack) && (0.28..0.32).contains(&share), "{middle:?}");
    assert_eq!(middle.path, Some(0));
    // Another path, though its rule is that of a point of the first.
    c.points.push(named(1, 12, 1.5, 0.4, 0.91, 11.0));
    assert_eq!((c.setting(0.9).unwrap().effort, c.setting(0.95).unwrap().effort), (12, 30));
}

#[test]
fn what_the_curve_does_not_reach_is_searched_exactly() {
    let curves = [curve(&[(20, FULL, 0.9, 20.0)])];
    for recall in [0.95, 0.99, 0.999, 1.0] {
        assert!(choose(&curves, 10, recall).unwrap().is_exact());
        assert!(choose(&curves, 100, recall).unwrap().is_exact());
    }
    assert!(choose(&[], 10, 1.0).unwrap().is_exact() && choose(&[], 10, 0.99).is_none());
}

#[test]
fn a_recall_that_no_setting_reaches_is_named() {
    let mut c = curve(&[(10, FULL, 0.8, 10.0), (20, FULL, 0.93, 20.0), (10, EARLY, 0.7, 5.0)]);
    let of = |c: &Curve, recall| unreached(std::slice::from_ref(c), 10, recall).map(|u| (u.asked, u.reached));
    assert_eq!((of(&c, 0.9), of(&c, 0.95), of(&c, 1.0)), (None, Some((0.95, 0.93)), None));
    assert_eq!(unreached(&[], 10, 0.95), None);
    // The hardest queries decide, and the end of each path.
    for (point, hardest) in c.points.iter_mut().zip([0.9, 0.85, 0.6]) {
        point.hardest = Some(hardest);
    }
    assert_eq!((of(&c, 0.84), of(&c, 0.87)), (None, Some((0.87, 0.85))));
    let other = Curve { family: Some("changes".into()), ..c.clone() };
    assert_eq!(all_unreached(&[c, other], 0.95).len(), 1);
}

#[test]
fn a_larger_k_takes_a_longer_beam() {
    let curves = [curve(&[(20, FULL, 0.9, 20.0)])];
    assert_eq!(choose(&curves, 100, 0.9).unwrap().effort, 200);
    assert_eq!(choose(&curves, 1, 0.9).unwrap().effort, 20);
    assert!(choose(&[], 1, 0.9).is_none());
    assert_eq!(remoteness(&curves, Metric::L2, curves[0].k, &mut [25.0, 9.0, 1.0]), Some(1.5));
    for (metric, k) in [(Metric::Ip, curves[0].k), (Metric::L2, 77)] {
        assert_eq!(remoteness(&curves, metric, k, &mut [9.0]), None);
    }
    assert_eq!(remoteness(&curves, Metric::L2, curves[0].k, &mut []), None);
}

#[test]
fn points_of_older_manifests_are_read_and_written_as_they_were() {
    let old = r#"{"search_list":88,"stop":{"slack":0.5,"patience_share":0.25},"recall":0.9,"reads":12.5}"#;
    let read: Point = serde_json::from_str(old).unwrap();
    assert_eq!(read, point(88, StopRule::by_slack(Some(0.5), 0.25), 0.9, 12.5));
    assert_eq!(serde_json::to_string(&read).unwrap(), old);
}

#[test]
fn a_longer_beam_begins_where_the_last_lengthening_helped() {
    let on = |path: u32, effort: u32, recall: f64| Point {
        path: Some(path),
        hardest: Some(recall),
        ..point(effort, FULL, recall, effort.into())
    };
    let mut c = curve(&[]);
    assert_eq!((c.begin_longer(0), c.begin_longer(1), c.has_stalled()), (Some(0), Some(0), false));
    // Of twice as many clusters the short beam finds hardly more than of four.
    c.points = vec![on(0, 1, 0.4), on(0, 2, 0.6), on(0, 4, 0.7)];
    assert!(!c.has_stalled());
    c.points.extend([on(0, 8, 0.71), on(0, 16, 0.715)]);
    assert!(c.has_stalled());
    c.points.extend([on(1, 1, 0.41), on(1, 2, 0.62), on(1, 4, 0.8), on(1, 8, 0.99)]);
    assert!(!c.has_stalled() && !c.is_complete());
    assert_eq!(c.begin_longer(2), Some(4));
    c.points.extend([on(2, 4, 0.801), on(2, 8, 0.99)]);
    assert_eq!(c.begin_longer(3), None);
    c.points.push(on(2, 16, 0.9995));
    assert!(c.is_complete());
}

#[test]
fn a_curve_without_the_hardest_aims_at_fewer_misses() {
    let points = [(40, FULL, 0.9, 40.0), (80, FULL, 0.98, 80.0), (160, FULL, 1.0, 160.0)];
    let mean = Curve { queries: 200, source: FROM_MIXTURE.into(), ..curve(&points) };
    let careful = Curve { misses_aimed: Some(0.2), ..mean.clone() };
    let effort = |curve: &Curve, recall| choose(std::slice::from_ref(curve), 10, recall).unwrap().effort;
    assert_eq!(effort(&careful, 0.9), 80, "a fifth of its misses");
    assert!(effort(&mean, 0.9) < 60);
    // No miss of 2,000 neighbours may be three: half of the way from 40 misses to these, by their logarithms.
    let wanted = 1.0 - (0.02f64 * 0.0015).sqrt() / 0.2;
    assert_eq!(effort(&careful, wanted), 120);
}
