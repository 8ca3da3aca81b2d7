//! Where a worker listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::EngineError;

/// The address of a worker's gRPC service, written `grpc://host:port` or `unix:///absolute/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host` is a name or an IP address; IPv6 without brackets.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl Address {
    /// The authority that requests carry: proxies on the way may route by it.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } => write!(f, "grpc://{}", self.authority()),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason: &str| EngineError::InvalidAddress {
            given: text.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.strip_prefix('/') {
                Some(rest) if !rest.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
                _ => Err(invalid("the socket's path must be absolute")),
            };
        }
        let Some(rest) = text.strip_prefix("grpc://") else {
            return Err(invalid("the scheme is neither grpc nor unix"));
        };
        let authority: http::uri::Authority = rest
            .strip_suffix('/')
            .unwrap_or(rest)
            .parse()
            .map_err(|_| invalid("what follows grpc:// is no host:port"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("user names are not supported"));
        }
        let port = authority
            .port_u16()
            .filter(|port| *port != 0)
            .ok_or_else(|| invalid("the port is missing or not in 1 … 65535"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        Ok(Self::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<Address>().unwrap_err().to_string()
    }

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in [
            "grpc://worker-1:30000",
            "grpc://10.0.0.7:1",
            "grpc://[::1]:30000",
            "unix:///run/w.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn brackets_of_ipv6_belong_to_the_text_only() {
        let address = "grpc://[fe80::2]:9/".parse::<Address>().unwrap();
        assert_eq!(
            address,
            Address::Tcp {
                host: "fe80::2".to_owned(),
                port: 9
            }
        );
        assert_eq!(address.authority(), "[fe80::2]:9");
    }

    #[test]
    fn refusals_name_what_was_given_and_what_is_allowed() {
        for text in [
            "http://w:1",
            "w:1",
            "grpc://w",
            "grpc://w:0",
            "grpc://w:70000",
            "grpc://:1",
            "unix://sock",
            "unix:///",
            "grpc://a@w:1",
            "grpc://w:1/path",
            "",
        ] {
            let message = refusal(text);
            assert!(message.contains(&format!("{text:?}")), "{message}");
            assert!(
                message.contains("grpc://host:port") && message.contains("unix:///path"),
                "{message}"
            );
        }
    }
}
