//! The devices of this machine.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cm::Deadline;
use cm::verbs::{Context, PortAttributes, PortState};

use crate::error::Error;
use crate::memory::Registrar;

/// An RDMA device, found by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    context: Context,
}

impl Device {
    /// The device that has the local address `ip`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchAddress`](crate::ErrorKind::NoSuchAddress) when none has it (a loopback
    /// or wildcard address never belongs to one), [`NoDevice`](crate::ErrorKind::NoDevice),
    /// [`PortDown`](crate::ErrorKind::PortDown).
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn local(ip: IpAddr) -> Result<Self, Error> {
        Self::local_at(SocketAddr::new(ip, 0))
    }

    /// The device that has the local address `addr`, whose port does not matter: for a link-local
    /// address, which no device can be found by without its scope.
    ///
    /// # Errors
    /// As [`local`](Self::local).
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn local_at(addr: SocketAddr) -> Result<Self, Error> {
        Self::usable(cm::device_of_local(addr)?)
    }

    /// The device that leads to `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchAddress`](crate::ErrorKind::NoSuchAddress) when none does,
    /// [`TimedOut`](crate::ErrorKind::TimedOut) after `timeout`.
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn remote(peer: SocketAddr, timeout: Duration) -> Result<Self, Error> {
        Self::usable(cm::device_of_remote(peer, Deadline::after(timeout))?)
    }

    /// All devices, usable or not.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice) when there is none.
    pub fn list() -> Result<Vec<Self>, Error> {
        let devices = cm::devices()?;
        Ok(devices
            .into_iter()
            .map(|context| Self { context })
            .collect())
    }

    fn usable(context: Context) -> Result<Self, Error> {
        let device = Self { context };
        device.active_port()?;
        Ok(device)
    }

    /// The first port that is up.
    fn active_port(&self) -> Result<PortAttributes, Error> {
        for port in 1..=self.context.attributes().port_count() {
            let attributes = self.context.query_port(port)?;
            if attributes.state() == PortState::ACTIVE {
                return Ok(attributes);
            }
        }
        Ok(self.context.active_port(1)?)
    }

    /// The kernel's name, such as `mlx5_0` or `rxe0`.
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// The longest message, in bytes: what one operation can move.
    ///
    /// # Errors
    /// [`ErrorKind::PortDown`](crate::ErrorKind::PortDown) when no port is up.
    pub fn max_message_size(&self) -> Result<u32, Error> {
        Ok(self.active_port()?.max_message_size())
    }

    /// Whether it can bring in pages of memory when it needs them, for what reliable connections write
    /// and read. Memory that cannot be pinned, such as files of DAX file systems, can be registered
    /// with such devices only.
    ///
    /// SoftRoCE, which says that it can since Linux 7, is not counted: it misplaces bytes.
    ///
    /// # Errors
    /// The refused query.
    #[doc(alias = "rpma_utils_ibv_context_is_odp_capable")]
    pub fn is_odp_capable(&self) -> Result<bool, Error> {
        Ok(Registrar::of(&self.context)?.pages_on_demand())
    }

    /// The IP addresses of its ports (on RoCE), without link-local ones.
    ///
    /// # Errors
    /// The refused query.
    pub fn ip_addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let mut addresses = Vec::new();
        for port in 1..=self.context.attributes().port_count() {
            for (_, gid) in self.context.gids(port)? {
                let ip = gid.ip();
                let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
                if !link_local && !addresses.contains(&ip) {
                    addresses.push(ip);
                }
            }
        }
        Ok(addresses)
    }

    /// The open device, for everything that this crate does not have.
    pub fn context(&self) -> &Context {
        &self.context
    }
}
