//! A call as it arrives: parameters of the query protocol, and who signed for which service.

use std::collections::BTreeMap;

/// The form's fields.
#[derive(Debug, Default)]
pub(super) struct Params(BTreeMap<String, String>);

impl FromIterator<(String, String)> for Params {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

impl Params {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// `Names.member.1`, `Names.member.2`, … in that order.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        (1..)
            .map_while(|index| self.get(&format!("{name}.member.{index}")))
            .collect()
    }

    /// The `Id`s and `Port`s of `Targets.member.N`.
    pub(super) fn targets(&self) -> Vec<(&str, Option<&str>)> {
        (1..)
            .map_while(|index| {
                let id = self.get(&format!("Targets.member.{index}.Id"))?;
                Some((id, self.get(&format!("Targets.member.{index}.Port"))))
            })
            .collect()
    }
}

/// What a `SigV4` signature is made for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scope<'a> {
    pub(super) access_key: &'a str,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// Reads `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/SERVICE/aws4_request, SignedHeaders=…, Signature=…`.
pub(super) fn scope(authorization: &str) -> Option<Scope<'_>> {
    let fields = authorization.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let find = |name| {
        fields
            .split(',')
            .find_map(|field| field.trim().strip_prefix(name))
    };
    find("Signature=").filter(|signature| signature.len() == 64)?;
    let mut parts = find("Credential=")?.split('/');
    let (access_key, _date) = (parts.next()?, parts.next()?);
    let (region, service) = (parts.next()?, parts.next()?);
    (parts.next() == Some("aws4_request")).then_some(Scope {
        access_key,
        region,
        service,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_at_the_first_gap() {
        let fields = [
            ("Names.member.1", "a"),
            ("Names.member.2", "b"),
            ("Names.member.4", "d"),
            ("Targets.member.1.Id", "10.0.0.1"),
            ("Targets.member.1.Port", "80"),
            ("Targets.member.2.Id", "10.0.0.2"),
        ];
        let params: Params = fields
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(params.list("Names"), ["a", "b"]);
        assert_eq!(
            params.targets(),
            [("10.0.0.1", Some("80")), ("10.0.0.2", None)]
        );
    }

    #[test]
    fn scope_is_read_from_a_signed_header_only() {
        let signature = "0".repeat(64);
        let header = format!(
            "AWS4-HMAC-SHA256 Credential=AKIA1/20260101/eu-central-1/sts/aws4_request, SignedHeaders=host, Signature={signature}"
        );
        let (access_key, region, service) = ("AKIA1", "eu-central-1", "sts");
        let wanted = Scope {
            access_key,
            region,
            service,
        };
        assert_eq!(scope(&header), Some(wanted));
        assert_eq!(scope(&header.replace("Signature=0", "Signature=")), None);
        assert_eq!(scope(&header.replace("aws4_request", "aws5")), None);
        assert_eq!(scope("Bearer x"), None);
    }
}
