//! Where peers and executors come in, from what people write.

use bowline_link::http::endpoint::{Endpoint, EndpointError};

/// Where a hub has its broker.
pub(crate) const BROKER: &str = "/broker";

/// Where a gateway takes executors in, and an executor gateways.
pub(crate) const EXECUTOR: &str = "/executor";

/// Reads `http(s)://HOST:PORT` or `ws(s)://HOST:PORT`, with or without the path of the entrance.
pub(crate) fn parse(text: &str, entrance: &str) -> Result<Endpoint, EndpointError> {
    let text = text.trim();
    let text = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
        _ => text.to_owned(),
    };
    let endpoint = Endpoint::parse(&text)?;
    let path = endpoint.uri().path().trim_end_matches('/');
    match path.ends_with(entrance) {
        true => endpoint.resolve(path),
        false => endpoint.resolve(&format!("{path}{entrance}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_is_named_by_its_address_with_or_without_the_path() {
        for (text, want) in [
            ("http://h:1", "http://h:1/broker"),
            ("http://h:1/", "http://h:1/broker"),
            ("ws://h:1/broker", "http://h:1/broker"),
            ("WSS://h/broker/", "https://h/broker"),
            (" https://h/behind ", "https://h/behind/broker"),
        ] {
            assert_eq!(parse(text, BROKER).unwrap().to_string(), want, "{text}");
        }
        assert_eq!(
            parse("ftp://h", EXECUTOR).unwrap_err(),
            EndpointError::Scheme
        );
        assert_eq!(
            parse("h:1/broker", BROKER).unwrap_err(),
            EndpointError::Invalid
        );
    }
}
