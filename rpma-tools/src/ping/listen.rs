//! Where a server listens: one endpoint per local address.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rpma::{ConnectionConfig, ConnectionRequest, Device, Endpoint, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::library;
use super::{diagnose, resolve};
use crate::cli::ping::ServerOptions;
use crate::failure::Failure;
use crate::stop::Stop;

/// How long the look-up of a host name may take.
const LOOK_UP: Duration = Duration::from_secs(10);

/// One local address that is listened on.
#[derive(Debug)]
pub(super) struct Listening {
    endpoint: Endpoint,
    pub(super) peer: Peer,
    pub(super) device: Device,
    pub(super) address: SocketAddr,
    /// The largest message of the device, in bytes.
    pub(super) max_size: u64,
}

impl Listening {
    fn open(address: SocketAddr) -> Result<Self, Failure> {
        let doing = format!("cannot listen on {address}");
        let early = |error: rpma::Error| diagnose::explain(library(&doing, &error));
        let device = Device::local_at(address).map_err(early)?;
        let peer = Peer::new(&device).map_err(early)?;
        let max_size = u64::from(device.max_message_size().map_err(early)?);
        let endpoint = Endpoint::listen(&peer, address).map_err(|error| library(&doing, &error))?;
        Ok(Self {
            address: endpoint.local_addr(),
            endpoint,
            peer,
            device,
            max_size,
        })
    }
}

/// What a server listens on, and what it could not listen on.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) open: Vec<Listening>,
    pub(super) failed: Vec<Failure>,
}

impl Listeners {
    /// Listens on the address that was asked for, or on every address that a device has. One of
    /// several that cannot be listened on is no reason to fail.
    pub(super) fn open(options: &ServerOptions, stop: &Stop) -> Result<Self, Failure> {
        let (mut open, mut failed) = (Vec::<Listening>::new(), Vec::new());
        for mut address in local_addresses(options, stop)? {
            if let (0, Some(first)) = (address.port(), open.first()) {
                // Any free port, but the same one everywhere.
                address.set_port(first.address.port());
            }
            match Listening::open(address) {
                Ok(listening) => open.push(listening),
                Err(failure) => failed.push(failure),
            }
        }
        if open.is_empty() && !failed.is_empty() {
            return Err(failed.swap_remove(0));
        }
        Ok(Self { open, failed })
    }

    /// Waits for requests, one per address at most, with the place of the address in the list.
    pub(super) fn requests(
        &self,
        config: &ConnectionConfig,
        timeout: Duration,
    ) -> Vec<(&Listening, Result<ConnectionRequest, rpma::Error>)> {
        let mut fds: Vec<_> = self
            .open
            .iter()
            .map(|listening| PollFd::from_borrowed_fd(listening.endpoint.as_fd(), PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // An interrupted wait is a short one. Whatever else may be wrong with a descriptor, the
        // attempt to take a request says in its own words.
        if poll(&mut fds, Some(&timeout)).is_err() {
            return Vec::new();
        }
        let ready = fds.iter().map(|fd| !fd.revents().is_empty());
        self.open
            .iter()
            .zip(ready)
            .filter(|(_, ready)| *ready)
            .filter_map(|(listening, _)| {
                let request = listening
                    .endpoint
                    .try_next_connection_request(config)
                    .transpose()?;
                Some((listening, request))
            })
            .collect()
    }
}

fn local_addresses(options: &ServerOptions, stop: &Stop) -> Result<Vec<SocketAddr>, Failure> {
    if let Some(target) = &options.target {
        return resolve::addresses(target, options.port, LOOK_UP, stop);
    }
    let devices = Device::list()
        .map_err(|error| diagnose::explain(library("cannot list the RDMA devices", &error)))?;
    let addresses: Vec<_> = devices
        .iter()
        .flat_map(|device| device.ip_addresses().unwrap_or_default())
        .map(|ip| SocketAddr::new(ip, options.port))
        .collect();
    if addresses.is_empty() {
        return Err(diagnose::explain(
            Failure::failed("no RDMA device of this machine has an IP address")
                .with_hint("give the device's network interface an address"),
        ));
    }
    Ok(addresses)
}
