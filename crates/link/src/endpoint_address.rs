//! Addresses of brokers and executors, as written by operators.

use crate::http::endpoint::{EndpointError, HttpEndpoint};

/// Path of a hub's broker endpoint.
pub const BROKER_PATH: &str = "/broker";

/// Path of an executor endpoint, at a gateway or at an executor.
pub const EXECUTOR_PATH: &str = "/executor";

/// Parses `http(s)://HOST:PORT` or `ws(s)://HOST:PORT`, with or without the endpoint path.
///
/// # Errors
/// The text is no address.
pub fn parse_endpoint(text: &str, endpoint_path: &str) -> Result<HttpEndpoint, EndpointError> {
    let text = text.trim();
    let text = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
        _ => text.to_owned(),
    };
    let endpoint = HttpEndpoint::parse(&text)?;
    let path = endpoint.uri().path().trim_end_matches('/');
    match path.ends_with(endpoint_path) {
        true => endpoint.resolve(path),
        false => endpoint.resolve(&format!("{path}{endpoint_path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_path_is_added_if_missing() {
        for (text, want) in [
            ("http://h:1", "http://h:1/broker"),
            ("http://h:1/", "http://h:1/broker"),
            ("ws://h:1/broker", "http://h:1/broker"),
            ("WSS://h/broker/", "https://h/broker"),
            (" https://h/behind ", "https://h/behind/broker"),
        ] {
            assert_eq!(
                parse_endpoint(text, BROKER_PATH).unwrap().to_string(),
                want,
                "{text}"
            );
        }
        assert_eq!(
            parse_endpoint("ftp://h", EXECUTOR_PATH).unwrap_err(),
            EndpointError::Scheme
        );
        assert_eq!(
            parse_endpoint("h:1/broker", BROKER_PATH).unwrap_err(),
            EndpointError::Invalid
        );
    }
}
