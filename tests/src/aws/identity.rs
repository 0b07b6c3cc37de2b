//! Who calls: access keys, roles, and what they may not do. Pure: time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::request::Scope;

/// Somebody with keys of their own. Calls are counted under the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The `IAM` user's name.
    pub name: String,
    /// The account it is in.
    pub account: String,
    /// The access key's id, by which calls are told apart.
    pub access_key: String,
    /// The secret key. The fake does not check signatures, so any will do.
    pub secret_key: String,
}

impl Caller {
    /// A user of `account`, with keys made from the name.
    pub fn new(name: &str, account: &str) -> Self {
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        Self {
            name: name.to_owned(),
            account: account.to_owned(),
            access_key: format!(
                "AKIA{:0>16}",
                letters.collect::<String>().to_ascii_uppercase()
            ),
            secret_key: format!("secret-of-{name}"),
        }
    }
}

/// A role to be assumed. Calls with its credentials are counted under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Its name, the last part of its ARN.
    pub name: String,
    /// The account it is in.
    pub account: String,
    /// What `AssumeRole` must bring along, if anything.
    pub external_id: Option<String>,
    /// The token that `AssumeRoleWithWebIdentity` must bring along; none: it can't be assumed that way.
    pub web_identity_token: Option<String>,
    /// How long credentials are good for.
    pub lifetime: Duration,
}

impl Role {
    /// A role of `account` without conditions, for an hour, not for web identities.
    pub fn new(name: &str, account: &str) -> Self {
        Self {
            name: name.to_owned(),
            account: account.to_owned(),
            external_id: None,
            web_identity_token: None,
            lifetime: Duration::from_hours(1),
        }
    }

    /// Its name for `roleArn`.
    pub fn arn(&self) -> String {
        format!("arn:aws:iam::{}:role/{}", self.account, self.name)
    }
}

/// Who a key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) account: String,
    pub(super) arn: String,
}

/// What `AssumeRole` hands out.
#[derive(Debug, Clone)]
pub(super) struct Temporary {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) token: String,
    pub(super) lifetime: Duration,
    pub(super) identity: Identity,
}

#[derive(Debug)]
struct Key {
    identity: Identity,
    /// Temporary ones have a token and an end.
    temporary: Option<(String, Instant)>,
}

/// Every key and role that the fake knows.
#[derive(Debug, Default)]
pub(super) struct Identities {
    keys: BTreeMap<String, Key>,
    roles: BTreeMap<String, Role>,
    denied: BTreeSet<(String, String)>,
    handed_out: u32,
}

impl Identities {
    pub(super) fn add_caller(&mut self, caller: Caller) {
        let Caller {
            name,
            account,
            access_key,
            ..
        } = caller;
        let arn = format!("arn:aws:iam::{account}:user/{name}");
        let identity = Identity { name, account, arn };
        let key = Key {
            identity,
            temporary: None,
        };
        self.keys.insert(access_key, key);
    }

    pub(super) fn add_role(&mut self, role: Role) -> String {
        let arn = role.arn();
        self.roles.insert(arn.clone(), role);
        arn
    }

    pub(super) fn role(&self, arn: &str) -> Option<&Role> {
        self.roles.get(arn)
    }

    pub(super) fn deny(&mut self, caller: &str, action: &str) {
        self.denied.insert((caller.to_owned(), action.to_owned()));
    }

    pub(super) fn allow(&mut self, caller: &str, action: &str) {
        self.denied.remove(&(caller.to_owned(), action.to_owned()));
    }

    pub(super) fn is_denied(&self, caller: &str, action: &str) -> bool {
        self.denied
            .contains(&(caller.to_owned(), action.to_owned()))
    }

    /// Ends all temporary credentials of a role.
    pub(super) fn expire(&mut self, role: &str, now: Instant) {
        for key in self
            .keys
            .values_mut()
            .filter(|key| key.identity.name == role)
        {
            if let Some((_, ends)) = &mut key.temporary {
                *ends = now;
            }
        }
    }

    /// New credentials for `role`.
    pub(super) fn assume(&mut self, role: &Role, session: &str, now: Instant) -> Temporary {
        self.handed_out += 1;
        let number = self.handed_out;
        let Role {
            name,
            account,
            lifetime,
            ..
        } = role;
        let identity = Identity {
            name: name.clone(),
            account: account.clone(),
            arn: format!("arn:aws:sts::{account}:assumed-role/{name}/{session}"),
        };
        let temporary = Temporary {
            access_key: format!("ASIA{number:016}"),
            secret_key: format!("secret-{number}"),
            token: format!("token-{number}"),
            lifetime: *lifetime,
            identity: identity.clone(),
        };
        let key = Key {
            identity,
            temporary: Some((temporary.token.clone(), now + *lifetime)),
        };
        self.keys.insert(temporary.access_key.clone(), key);
        temporary
    }

    /// Who signed, whatever else is wrong with the call.
    pub(super) fn find(&self, scope: &Scope<'_>) -> Option<&Identity> {
        self.keys.get(scope.access_key).map(|key| &key.identity)
    }

    /// Whether the credentials are good.
    pub(super) fn check(
        &self,
        scope: &Scope<'_>,
        token: Option<&str>,
        now: Instant,
    ) -> Result<(), Failure> {
        let key = self.keys.get(scope.access_key);
        let key = key.ok_or_else(|| Failure::unknown_key(scope.service))?;
        match (&key.temporary, token) {
            (None, None) => Ok(()),
            (Some((_, ends)), _) if *ends <= now => Err(Failure::expired()),
            (Some((wanted, _)), Some(token)) if wanted == token => Ok(()),
            _ => Err(Failure::unknown_key(scope.service)),
        }
    }
}
