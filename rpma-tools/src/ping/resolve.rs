//! From what the user wrote to socket addresses.

use std::ffi::CString;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::patience::patiently;
use crate::cli::address::{Host, Target};
use crate::failure::Failure;
use crate::stop::Stop;

/// The addresses of a target, at least one. The look-up of a name takes at most `limit`.
pub(super) fn addresses(
    target: &Target,
    port: u16,
    limit: Duration,
    stop: &Stop,
) -> Result<Vec<SocketAddr>, Failure> {
    if let Some(address) = target.literal() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    match &target.host {
        Host::V4(address) => Ok(vec![SocketAddr::new(IpAddr::V4(*address), port)]),
        Host::V6 { address, scope } => {
            let scope = scope.as_deref().map_or(Ok(0), interface_index)?;
            Ok(vec![SocketAddr::V6(SocketAddrV6::new(
                *address, port, 0, scope,
            ))])
        }
        Host::Name(name) => by_name(name, port, limit, stop),
    }
}

fn by_name(
    name: &str,
    port: u16,
    limit: Duration,
    stop: &Stop,
) -> Result<Vec<SocketAddr>, Failure> {
    let asked = (name.to_owned(), port);
    // The system's resolver takes no deadline; it keeps its thread when it is slower than that.
    let found = patiently(Instant::now() + limit, stop, move || {
        asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    });
    let hint = "check the name, or give the address itself";
    match found {
        Ok(Ok(mut found)) if !found.is_empty() => {
            for address in &mut found {
                address.set_ip(address.ip().to_canonical());
            }
            Ok(found)
        }
        Ok(Ok(_)) => {
            Err(Failure::failed(format!("the host name {name} has no address")).with_hint(hint))
        }
        Ok(Err(error)) => Err(Failure::failed(format!(
            "cannot look up the host name {name}: {error}"
        ))
        .with_hint(hint)),
        Err(gave_up) => Err(Failure::failed(format!(
            "the look-up of the host name {name} {gave_up}"
        ))
        .with_hint(hint)),
    }
}

fn interface_index(scope: &str) -> Result<u32, Failure> {
    if let Ok(number) = scope.parse::<u32>() {
        return Ok(number);
    }
    let unknown = || {
        Failure::failed(format!("this machine has no network interface {scope}"))
            .with_hint("ip link lists the interfaces")
    };
    let name = CString::new(scope).map_err(|_| unknown())?;
    // SAFETY: `name` is a string that ends in zero and lives through the call, which only reads it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(unknown()),
        index => Ok(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<Vec<SocketAddr>, Failure> {
        let target = Target::parse(text).unwrap();
        addresses(&target, 7204, Duration::from_secs(20), &Stop::default())
    }

    #[test]
    fn a_literal_is_its_own_address() {
        assert_eq!(
            resolve("192.0.2.1").unwrap(),
            ["192.0.2.1:7204".parse().unwrap()]
        );
        assert_eq!(resolve("::1").unwrap(), ["[::1]:7204".parse().unwrap()]);
        assert_eq!(
            resolve("::ffff:192.0.2.1").unwrap(),
            ["192.0.2.1:7204".parse().unwrap()]
        );
    }

    #[test]
    fn an_interface_becomes_its_number() {
        let Ok(found) = resolve("fe80::1%lo").as_deref().map(<[_]>::to_vec) else {
            panic!("every machine has the interface lo");
        };
        let SocketAddr::V6(address) = found[0] else {
            panic!("{found:?}")
        };
        assert_ne!(address.scope_id(), 0);
        assert!(
            resolve("fe80::1%nosuchif0")
                .unwrap_err()
                .sentence()
                .contains("nosuchif0")
        );
    }

    #[test]
    fn a_request_to_stop_ends_a_look_up() {
        let stop = Stop::default();
        stop.request();
        let target = Target::parse("name.invalid").unwrap();
        assert!(addresses(&target, 1, Duration::from_secs(20), &stop).is_err());
    }
}
