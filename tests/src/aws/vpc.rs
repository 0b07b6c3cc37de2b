//! Address ranges of a VPC, for which the API refuses targets elsewhere.

use std::net::IpAddr;

use super::target_group::VPC;

/// A range as `10.0.0.0/8` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Any address of it.
    pub address: IpAddr,
    /// How many leading bits all have in common.
    pub prefix: u8,
}

impl Range {
    /// Whether `address` is in it. Families don't mix.
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |ours: u128, theirs: u128, bits: u8| {
            let differing =
                (ours ^ theirs).checked_shr(u32::from(bits.saturating_sub(self.prefix)));
            differing.unwrap_or_default() == 0
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same(u32::from(ours).into(), u32::from(theirs).into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.into(), theirs.into(), 128),
            _ => false,
        }
    }
}

/// A VPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vpc {
    /// `vpc-…`.
    pub id: String,
    /// What it consists of.
    pub ranges: Vec<Range>,
}

impl Default for Vpc {
    /// With the test cluster's pods and some private and documentation ranges for tests without a cluster.
    fn default() -> Self {
        let ranges: [(IpAddr, u8); 4] = [
            ([198, 18, 0, 0].into(), 15),
            ([10, 0, 0, 0].into(), 8),
            ([0xfd00, 0, 0, 0, 0, 0, 0, 0].into(), 8),
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0].into(), 32),
        ];
        Self {
            id: VPC.to_owned(),
            ranges: ranges
                .map(|(address, prefix)| Range { address, prefix })
                .to_vec(),
        }
    }
}

impl Vpc {
    /// Whether a target may have this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_ends_where_its_prefix_says() {
        let vpc = Vpc::default();
        for (address, is_inside) in [
            ("198.18.0.7", true),
            ("198.19.255.255", true),
            ("198.20.0.0", false),
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("fdff::1", true),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(
                vpc.contains(address.parse().unwrap()),
                is_inside,
                "{address}"
            );
        }
        let all = Range {
            address: [0, 0, 0, 0].into(),
            prefix: 0,
        };
        assert!(all.contains([255, 0, 0, 1].into()));
    }
}
