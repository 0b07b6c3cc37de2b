//! Kubernetes quantities (`100m`, `1.5`, `16Mi`, `1e3`), only as far as comparing two of them needs.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A quantity's value in its base unit.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Quantity(f64);

impl Quantity {
    /// Whether it counts: the kubelet's `QoS` rules ignore zeroes.
    pub(super) fn is_positive(self) -> bool {
        self.0 > 0.0
    }

    fn parse(text: &str) -> Option<Self> {
        let unit_start = text
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_start);
        let (times, divided_by) = match unit {
            "" => (1.0, 1.0),
            // Divided, not multiplied by 0.001: the nearest double is then the same as that of "0.1".
            "n" => (1.0, 1e9),
            "u" => (1.0, 1e6),
            "m" => (1.0, 1e3),
            "k" => (1e3, 1.0),
            "M" => (1e6, 1.0),
            "G" => (1e9, 1.0),
            "T" => (1e12, 1.0),
            "P" => (1e15, 1.0),
            "E" => (1e18, 1.0),
            "Ki" => (1024.0, 1.0),
            "Mi" => (1_048_576.0, 1.0),
            "Gi" => (1_073_741_824.0, 1.0),
            "Ti" => (1_099_511_627_776.0, 1.0),
            "Pi" => (1_125_899_906_842_624.0, 1.0),
            "Ei" => (1_152_921_504_606_846_976.0, 1.0),
            exponent if exponent.starts_with(['e', 'E']) => return text.parse().ok().map(Self),
            _ => return None,
        };
        number
            .parse::<f64>()
            .ok()
            .map(|number| Self(number * times / divided_by))
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrNumber;

        impl Visitor<'_> for StringOrNumber {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text)
                    .ok_or_else(|| E::custom(format_args!("{text:?} is not a quantity")))
            }

            // Numbers occur in manifests that people write; the API server itself sends strings.
            #[expect(
                clippy::cast_precision_loss,
                reason = "an amount above 2^53 needs no exact comparison"
            )]
            fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number as f64))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number))
            }
        }

        deserializer.deserialize_any(StringOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_are_equal_however_they_are_spelt() {
        for (one, other) in [
            ("\"100m\"", "\"0.1\""),
            ("\"300m\"", "0.3"),
            ("\"1\"", "\"1000m\""),
            ("1", "\"1\""),
            ("\"1Gi\"", "\"1073741824\""),
            ("\"1Gi\"", "\"1024Mi\""),
            ("\"1k\"", "\"1e3\""),
            ("\"2E\"", "\"2e18\""),
        ] {
            let parse = |json| serde_json::from_str::<Quantity>(json).unwrap();
            assert_eq!(parse(one), parse(other), "{one} {other}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for json in ["\"\"", "\"1x\"", "\"Mi\"", "\"lots\"", "true"] {
            assert!(serde_json::from_str::<Quantity>(json).is_err(), "{json}");
        }
    }
}
