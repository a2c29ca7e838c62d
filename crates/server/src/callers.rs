//! Whose requests are answered. A page in a browser on the same machine reaches every local port: it is told apart by
//! the name in `Host`, which a page's own domain may point here, and by `Origin`.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use axum::response::Response;

use crate::request::shortened;
use crate::shared::{Rejection, no_content};

/// Names of the server, and origins whose pages may use it.
#[derive(Clone, Debug, Default)]
pub struct Callers {
    /// Names beside IP addresses and `localhost` by which clients address the server, without a port.
    pub host_names: Vec<String>,
    /// Origins of pages, such as `https://search.example`.
    pub origins: Vec<String>,
}

impl Callers {
    /// Returns the refusal of a request, or the answer to a browser that asks what a page may send.
    pub(crate) fn stops<B>(&self, request: &Request<B>) -> Option<Response> {
        let headers = request.headers();
        if let Err(refused) = self.check_hosts(request).and_then(|()| self.check_origin(headers)) {
            return Some(refused.response());
        }
        let is_preflight = request.method() == Method::OPTIONS && headers.contains_key(header::ORIGIN);
        is_preflight.then(|| {
            let mut response = no_content();
            self.admit(headers.get(header::ORIGIN), &mut response);
            let own = response.headers_mut();
            let methods = HeaderValue::from_static("GET, POST, PUT, DELETE");
            own.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            own.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("content-type"));
            response
        })
    }

    /// Lets the page of an origin that was checked read a response.
    pub(crate) fn admit(&self, origin: Option<&HeaderValue>, response: &mut Response) {
        if let Some(origin) = origin {
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("origin"));
        }
    }

    fn check_hosts<B>(&self, request: &Request<B>) -> Result<(), Rejection> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let first = hosts.next();
        if hosts.next().is_some() {
            return Err(Rejection::bad("the request has several Host headers; send one"));
        }
        match first.map(|host| host.to_str().unwrap_or("?")) {
            Some(host) => self.check_host(host)?,
            None if request.version() < axum::http::Version::HTTP_11 => {}
            None => {
                return Err(Rejection::bad(
                    "the request has no Host header; send the name or address of the server",
                ));
            }
        }
        request.uri().authority().map_or(Ok(()), |authority| self.check_host(authority.as_str()))
    }

    fn check_host(&self, text: &str) -> Result<(), Rejection> {
        let authority = Authority::try_from(text).ok().filter(|_| !text.contains('@'));
        let is_known = authority.as_ref().is_some_and(|authority| self.is_known(authority.host()));
        if is_known {
            return Ok(());
        }
        let name = authority.as_ref().map_or(text, Authority::host);
        Err(Rejection::forbidden(format!(
            "the request is for the host {:?}, which is no name of this server; address it by IP address or localhost, \
             or start it with --host-name and that name",
            shortened(name)
        )))
    }

    fn is_known(&self, host: &str) -> bool {
        let plain = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let name = plain.strip_suffix('.').unwrap_or(plain);
        plain.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.host_names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        let is_allowed =
            |origin: &HeaderValue| self.origins.iter().any(|own| own.as_bytes() == origin.as_bytes());
        match headers.get_all(header::ORIGIN).iter().find(|origin| !is_allowed(origin)) {
            None => Ok(()),
            Some(origin) => Err(Rejection::forbidden(format!(
                "pages of {:?} may not use this server; send no Origin, or start the server with --allow-origin and \
                 that origin",
                shortened(origin.to_str().unwrap_or("?"))
            ))),
        }
    }
}

/// Checks a name that an operator gives the server.
///
/// # Errors
/// A text that is no name of a host, or has a port.
pub fn host_name(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && text.chars().all(is_name) {
        true => Ok(text.trim_end_matches('.').to_ascii_lowercase()),
        false => Err("use the name of a host without a port, such as search.example".into()),
    }
}

/// Checks an origin that an operator allows. Browsers write it in small letters.
///
/// # Errors
/// A text that no browser sends as an origin.
pub fn origin(text: &str) -> Result<String, String> {
    let plain = text.trim_end_matches('/').to_ascii_lowercase();
    let host = plain.strip_prefix("https://").or(plain.strip_prefix("http://"));
    match host.map(|host| (host, Authority::try_from(host))) {
        Some((host, Ok(_))) if !host.contains('@') => Ok(plain),
        _ => Err("use SCHEME://HOST or SCHEME://HOST:PORT, such as https://search.example".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_localhost_and_own_names() {
        let callers =
            Callers { host_names: vec![host_name("Search.Example.").unwrap()], origins: Vec::new() };
        let good = [
            "127.0.0.1",
            "10.1.2.3:8700",
            "[::1]",
            "[::1]:8700",
            "localhost",
            "LOCALHOST:1",
            "localhost.:8700",
        ];
        for host in good.into_iter().chain(["search.example", "SEARCH.example:8700", "search.example."]) {
            assert!(callers.check_host(host).is_ok(), "{host}");
        }
        let bad =
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "x:y:z"];
        for host in bad.into_iter().chain(["evil.example:8700", "127.0.0.1 evil", "[::1", "localhost/x", "?"])
        {
            assert!(callers.check_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn what_an_operator_gives_is_checked() {
        assert_eq!(origin("HTTPS://Search.example:8443/").as_deref(), Ok("https://search.example:8443"));
        for text in [
            "",
            "*",
            "null",
            "search.example",
            "ftp://search.example",
            "https://",
            "https://a/b",
            "http://a@b",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
        for text in ["", "a:80", "http://a", "a b", "*"] {
            assert!(host_name(text).is_err(), "{text}");
        }
    }
}
