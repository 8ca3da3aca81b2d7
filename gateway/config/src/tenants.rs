//! The file of `--tenant-rate-limit-config`: what single tenants may use.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::error::ConfigError;
use crate::file;
use crate::layers::clip;
use crate::limits::PriorityClass;

const FLAG: &str = "--tenant-rate-limit-config";

/// The most that a weight may be.
const MOST_WEIGHT: u32 = 1000;

/// How a tenant of the file is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TenantKey {
    /// The SHA-256 of its API key.
    Auth([u8; 32]),
    /// The value of its tenant header.
    Header(String),
    /// All that have neither.
    Anonymous,
}

/// A file that was read. Serde writes where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantFile {
    path: PathBuf,
    pub(crate) default_policy: TenantPolicy,
    pub(crate) tenants: IndexMap<TenantKey, TenantPolicy>,
}

/// What is said of one tenant, or of all others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantPolicy {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_concurrent_requests: Option<u64>,
    pub weight: Option<u32>,
    pub max_class: Option<PriorityClass>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKeys {
    #[serde(default)]
    default_policy: TenantPolicy,
    #[serde(default)]
    tenants: Vec<Value>,
}

impl TenantFile {
    pub(crate) fn read(path: &str) -> Result<Self, ConfigError> {
        let example = "`default_policy`, `tenants` or both";
        let map = file::read(FLAG, Path::new(path), example)?;
        let keys: FileKeys = typed("", Value::Object(map))?;
        check_weight("default_policy", keys.default_policy)?;
        let mut tenants = IndexMap::new();
        for (index, entry) in keys.tenants.into_iter().enumerate() {
            let place = format!("tenants[{index}]");
            let (key, policy) = tenant(&place, entry)?;
            if tenants.insert(key, policy).is_some() {
                return Err(ConfigError::new(format!(
                    "{place}.tenant_key names a tenant that stands above already; give each tenant once"
                )));
            }
        }
        Ok(Self {
            path: PathBuf::from(path),
            default_policy: keys.default_policy,
            tenants,
        })
    }

    /// One that is recognised by its header.
    pub(crate) fn header_tenant(&self) -> Option<&str> {
        self.tenants.keys().find_map(|key| match key {
            TenantKey::Header(name) => Some(name.as_str()),
            TenantKey::Auth(_) | TenantKey::Anonymous => None,
        })
    }

    pub(crate) fn has_classes(&self) -> bool {
        let mut policies = self.tenants.values().chain([&self.default_policy]);
        policies.any(|policy| policy.max_class.is_some())
    }
}

impl Serialize for TenantFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.path.serialize(serializer)
    }
}

impl TenantPolicy {
    /// With what `rest` says where this says nothing.
    pub(crate) fn or(self, rest: Self) -> Self {
        Self {
            requests_per_minute: self.requests_per_minute.or(rest.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.or(rest.tokens_per_minute),
            max_concurrent_requests: self.max_concurrent_requests.or(rest.max_concurrent_requests),
            weight: self.weight.or(rest.weight),
            max_class: self.max_class.or(rest.max_class),
        }
    }
}

fn tenant(place: &str, mut entry: Value) -> Result<(TenantKey, TenantPolicy), ConfigError> {
    let key = entry
        .as_object_mut()
        .and_then(|fields| fields.shift_remove("tenant_key"));
    let key = key.as_ref().and_then(Value::as_str).unwrap_or_default();
    let Some(key) = TenantKey::parse(key) else {
        return Err(ConfigError::new(format!(
            "{place}.tenant_key must be `auth:` and the SHA-256 of the API key in hex, `header:` and the value of the \
             tenant header, or `anonymous`, got `{}`",
            clip(key)
        )));
    };
    let policy = typed(place, entry)?;
    check_weight(place, policy)?;
    Ok((key, policy))
}

fn typed<T: for<'de> Deserialize<'de>>(place: &str, value: Value) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let parts = [place, path.as_str()].into_iter();
        let name: Vec<&str> = parts.filter(|part| !part.is_empty() && *part != ".").collect();
        let name = name.join(".");
        ConfigError::new(format!("{name}: {}", clip(&error.inner().to_string())))
    })
}

fn check_weight(place: &str, policy: TenantPolicy) -> Result<(), ConfigError> {
    match policy.weight {
        Some(weight) if !(1..=MOST_WEIGHT).contains(&weight) => Err(ConfigError::new(format!(
            "{place}.weight must be a whole number from 1 to {MOST_WEIGHT}, got {weight}"
        ))),
        _ => Ok(()),
    }
}

impl TenantKey {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => (text == "anonymous").then_some(Self::Anonymous),
            Some(("auth", digits)) => digest(digits).map(Self::Auth),
            Some(("header", name)) => (!name.is_empty()).then(|| Self::Header(name.to_owned())),
            Some(_) => None,
        }
    }
}

fn digest(digits: &str) -> Option<[u8; 32]> {
    let is_hex = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut digest = [0; 32];
    for (index, byte) in digest.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(digits.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    is_hex.then_some(digest)
}
