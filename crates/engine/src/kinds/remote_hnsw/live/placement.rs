//! Divides groups over memory nodes, by their bytes and by the traffic that is expected of them.

use stratann_core::format::region::Address;

/// A node may have an eighth more bytes than its even share, where that balances traffic.
const SLACK_PART: u64 = 8;

/// A group that is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) bytes: u64,
    /// Bytes that loads of it are expected to bring; only the proportions count.
    pub(crate) traffic: u64,
}

/// A node that groups are placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes in use.
    pub(crate) used: u64,
    /// Bytes that it has.
    pub(crate) limit: u64,
    /// Traffic besides that of groups: headers are read of the first node.
    pub(crate) traffic: u64,
}

impl Room {
    /// A node whose region is as large as it needs to be.
    pub(crate) fn unlimited(used: u64, traffic: u64) -> Room {
        Room { used, limit: u64::MAX, traffic }
    }
}

/// Node of each group, and the bytes in use of each node then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) places: Vec<Address>,
    pub(crate) used: Vec<u64>,
}

impl Division {
    fn fits(&self, rooms: &[Room]) -> bool {
        self.used.iter().zip(rooms).all(|(&used, room)| used <= room.limit)
    }

    /// The traffic of each node.
    pub(crate) fn traffic(&self, groups: &[Weight], rooms: &[Room]) -> Vec<u64> {
        let mut sums: Vec<u64> = rooms.iter().map(|room| room.traffic).collect();
        let placed = self.places.iter().zip(groups);
        placed.for_each(|(at, group)| sums[usize::from(at.node())] += group.traffic);
        sums
    }
}

/// Divides groups so that neither traffic nor bytes of the busiest node are much above the mean.
///
/// If that does not fit into the regions, traffic does not count; if that does not fit either, regions do not: the
/// result then tells the size that is needed.
pub(crate) fn divide(groups: &[Weight], rooms: &[Room]) -> Division {
    let found = place(groups, rooms);
    if found.fits(rooms) {
        return found;
    }
    divide_by_bytes(groups, rooms)
}

/// As [`divide`], where traffic does not count.
pub(crate) fn divide_by_bytes(groups: &[Weight], rooms: &[Room]) -> Division {
    let groups: Vec<Weight> = groups.iter().map(|group| Weight { traffic: 0, ..*group }).collect();
    let idle: Vec<Room> = rooms.iter().map(|room| Room { traffic: 0, ..*room }).collect();
    let found = place(&groups, &idle);
    if found.fits(rooms) {
        return found;
    }
    let unlimited: Vec<Room> = rooms.iter().map(|room| Room::unlimited(room.used, 0)).collect();
    place(&groups, &unlimited)
}

/// Each group, the heaviest first, goes to the node that is the lightest with it. The weight is the larger one of the
/// shares of all bytes and of all traffic.
fn place(groups: &[Weight], rooms: &[Room]) -> Division {
    let mut used: Vec<u64> = rooms.iter().map(|room| room.used).collect();
    let mut traffic: Vec<u64> = rooms.iter().map(|room| room.traffic).collect();
    let all_bytes = used.iter().sum::<u64>() + groups.iter().map(|group| group.bytes).sum::<u64>();
    let all_traffic = traffic.iter().sum::<u64>() + groups.iter().map(|group| group.traffic).sum::<u64>();
    let part = |own: u64, all: u64| own as f64 / all.max(1) as f64;
    let weight = |bytes: u64, traffic: u64| part(bytes, all_bytes).max(part(traffic, all_traffic));
    let share = all_bytes / rooms.len().max(1) as u64;
    let cap = share + share / SLACK_PART;
    let mut order: Vec<usize> = (0..groups.len()).collect();
    let own_weight = |&group: &usize| weight(groups[group].bytes, groups[group].traffic);
    order.sort_by(|a, b| own_weight(b).total_cmp(&own_weight(a)));
    let mut places = vec![Address::new(0, 0); groups.len()];
    for group in order {
        let Weight { bytes, traffic: more } = groups[group];
        let lightest = |most: &dyn Fn(usize) -> u64| {
            let fitting = (0..rooms.len()).filter(|&node| used[node] + bytes <= most(node));
            fitting.min_by(|&a, &b| {
                let with = |node: usize| weight(used[node] + bytes, traffic[node] + more);
                with(a).total_cmp(&with(b)).then(used[a].cmp(&used[b]))
            })
        };
        let node = lightest(&|node| rooms[node].limit.min(cap.max(rooms[node].used)))
            .or_else(|| lightest(&|node| rooms[node].limit))
            .or_else(|| (0..rooms.len()).min_by_key(|&node| used[node]))
            .unwrap_or(0);
        places[group] = Address::new(node as u8, used[node]);
        used[node] += bytes;
        traffic[node] += more;
    }
    Division { places, used }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(all: &[(u64, u64)]) -> Vec<Weight> {
        all.iter().map(|&(bytes, traffic)| Weight { bytes, traffic }).collect()
    }

    fn rooms(limits: &[u64]) -> Vec<Room> {
        limits.iter().map(|&limit| Room { used: 10, limit, traffic: 0 }).collect()
    }

    #[test]
    fn without_traffic_bytes_are_even() {
        let own = groups(&[(50, 0), (40, 0), (30, 0), (30, 0), (10, 0)]);
        let found = divide(&own, &rooms(&[u64::MAX; 2]));
        let nodes: Vec<u8> = found.places.iter().map(|at| at.node()).collect();
        assert_eq!((nodes, &found.used[..]), (vec![0, 1, 1, 0, 1], &[90, 90][..]));
        // The places of a node follow each other.
        let offsets: Vec<u64> = found.places.iter().map(|at| at.offset()).collect();
        assert_eq!(offsets, [10, 10, 50, 60, 80]);
    }

    #[test]
    fn busy_groups_are_apart_and_bytes_stay_even() {
        // Every second group is busy. By bytes alone, both go round in turn and one node has all that are busy.
        let own: Vec<Weight> =
            (0..40).map(|group| Weight { bytes: 100, traffic: [90, 1][group % 2] }).collect();
        let none = [Room::unlimited(0, 0); 2];
        let busiest = |of: &Division| of.traffic(&own, &none).into_iter().max().unwrap();
        assert_eq!(busiest(&divide_by_bytes(&own, &none)), 1800);
        let found = divide(&own, &none);
        assert_eq!((busiest(&found), &found.used[..]), (910, &[2000, 2000][..]));
        // Headers are traffic of the first node.
        let headers = [Room::unlimited(0, 180), Room::unlimited(0, 0)];
        assert_eq!(divide(&own, &headers).traffic(&own, &headers), [1001, 999]);
    }

    #[test]
    fn bytes_stay_within_their_share() {
        // The traffic of one group is more than that of all others, which cannot all go to the other node.
        let mut own = vec![Weight { bytes: 100, traffic: 1 }; 40];
        own[0].traffic = 1000;
        let found = divide(&own, &[Room::unlimited(0, 0); 2]);
        assert_eq!(found.used.iter().sum::<u64>(), 4000);
        assert!(found.used.iter().all(|&used| used <= 2000 + 2000 / SLACK_PART), "{:?}", found.used);
    }

    #[test]
    fn a_smaller_region_gets_less_and_the_smallest_size_is_told() {
        let own = groups(&[(50, 1), (50, 1), (50, 90), (50, 90)]);
        let small = divide(&own, &rooms(&[60, 500]));
        assert_eq!(small.used, [60, 160]);
        // Only a division by bytes fits here.
        let odd = groups(&[(4, 9), (5, 1), (3, 9)]);
        assert_eq!(divide(&odd, &[Room { used: 0, limit: 7, traffic: 0 }; 2]).used, [5, 7]);
        // Nothing fits: what is needed is that of even bytes.
        assert_eq!(divide(&own, &rooms(&[60, 60])).used, [110, 110]);
    }
}
