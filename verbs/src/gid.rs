//! The GID table: a port's addresses, and which of them to use.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, ErrorKind};
use crate::flags::open_enum;
use crate::port::Gid;

open_enum! {
    /// What packets from an entry of the table look like.
    #[doc(alias = "ibv_gid_type")]
    GidType(u32) {
        /// InfiniBand, or iWARP.
        IB = 0, "IB";
        /// RoCE version 1: Ethernet frames that no router passes on.
        ROCE_V1 = 1, "RoCE v1";
        /// RoCE version 2: UDP.
        ROCE_V2 = 2, "RoCE v2";
    }
}

/// One used entry of a port's table.
#[doc(alias = "ibv_gid_entry")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its index in the port's table, which differs between hosts and changes with addresses.
    pub index: u32,
    /// The port, from 1.
    pub port: u32,
    /// What its packets look like.
    pub gid_type: GidType,
    /// The network interface below (its kernel index), 0 where there is none.
    pub interface: u32,
}

impl GidEntry {
    pub(crate) fn from_raw(raw: &sys::ibv_gid_entry) -> Self {
        Self {
            // SAFETY: every arm of the union is 16 bytes.
            gid: Gid(unsafe { raw.gid.raw }),
            index: raw.gid_index,
            port: raw.port_num,
            gid_type: GidType::from_raw(raw.gid_type),
            interface: raw.ndev_ifindex,
        }
    }

    fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.gid.0).is_unicast_link_local()
    }
}

/// Why an entry was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidReason {
    /// It has the address that was asked for.
    Address,
    /// The first of the best kind: a RoCE v2 entry with an address that routers pass on.
    Routable,
    /// The first entry of an InfiniBand or iWARP port, where any will do.
    Only,
    /// A warning: no entry is RoCE v2, so both ends must be in one Ethernet segment.
    RoceV1,
    /// A warning: every entry is link-local, so peers beyond the link are not reached.
    LinkLocal,
}

impl GidReason {
    /// Whether connections may fail although this was the best there is.
    pub fn is_warning(self) -> bool {
        matches!(self, Self::RoceV1 | Self::LinkLocal)
    }
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "it has the address asked for",
            Self::Routable => "it is the first RoCE v2 entry with a routable address",
            Self::Only => "it is the first entry of a port that is not RoCE",
            Self::RoceV1 => {
                "no entry is RoCE v2: only peers on the same Ethernet segment are reached"
            }
            Self::LinkLocal => "every entry is link-local: only peers on the same link are reached",
        })
    }
}

/// An entry, and why this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GidChoice {
    /// The entry.
    pub entry: GidEntry,
    /// Why.
    pub reason: GidReason,
}

impl GidChoice {
    /// The best of `entries` to use when nothing is said about the address: RoCE v2 before v1, then
    /// routable before link-local, then the lowest index. Empty entries are never taken.
    ///
    /// # Errors
    /// [`ErrorKind::NoUsableGid`] when there is none.
    pub fn best(entries: &[GidEntry]) -> Result<Self, Error> {
        let rank = |entry: &&GidEntry| {
            let v1 = entry.gid_type == GidType::ROCE_V1;
            (v1, entry.is_link_local(), entry.index)
        };
        let entry = entries
            .iter()
            .filter(|entry| !entry.gid.is_zero())
            .min_by_key(rank)
            .ok_or_else(|| no_gid("the port has no address"))?;
        let reason = match entry.gid_type {
            GidType::ROCE_V1 => GidReason::RoceV1,
            GidType::ROCE_V2 if entry.is_link_local() => GidReason::LinkLocal,
            GidType::ROCE_V2 => GidReason::Routable,
            _ => GidReason::Only,
        };
        Ok(Self {
            entry: *entry,
            reason,
        })
    }

    /// The entry of `entries` with the address `ip`: RoCE v2 before v1, then the lowest index.
    ///
    /// # Errors
    /// [`ErrorKind::NoUsableGid`] names the addresses there are.
    pub fn by_address(entries: &[GidEntry], ip: IpAddr) -> Result<Self, Error> {
        let ip = ip.to_canonical();
        entries
            .iter()
            .filter(|entry| !entry.gid.is_zero() && entry.gid.ip() == ip)
            .min_by_key(|entry| (entry.gid_type == GidType::ROCE_V1, entry.index))
            .map(|entry| Self {
                entry: *entry,
                reason: GidReason::Address,
            })
            .ok_or_else(|| {
                let mut found: Vec<_> = entries.iter().map(|e| e.gid.ip().to_string()).collect();
                found.dedup();
                let found = if found.is_empty() {
                    "none".to_owned()
                } else {
                    found.join(", ")
                };
                no_gid(&format!(
                    "no entry has the address {ip}; there are: {found}"
                ))
            })
    }

    /// The entry's index, as an [`Address`](crate::Address) takes it.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for an index above 255, which no address can name.
    pub fn sgid_index(&self) -> Result<u8, Error> {
        u8::try_from(self.entry.index).map_err(|_| {
            Error::refused(
                "ibv_query_gid_table",
                ErrorKind::Limit,
                format!(
                    "entry {} cannot be named: an index has 8 bits",
                    self.entry.index
                ),
            )
        })
    }
}

fn no_gid(detail: &str) -> Error {
    Error::refused("ibv_query_gid_table", ErrorKind::NoUsableGid, detail)
        .with_hint("give the network interface below the device an address, and bring it up")
}

impl Context {
    /// The used entries of the GID tables of all ports, in one call.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where library and kernel are too old for it.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        let verb = "ibv_query_gid_table";
        let raw = self.raw_checked(verb)?;
        let mut most = 0;
        for port in 1..=self.attributes().port_count() {
            most += self.query_port(port)?.gid_table_len() as usize;
        }
        let mut entries = vec![sys::ibv_gid_entry::default(); most];
        // SAFETY: the context is open, and there is room for that many entries.
        let got = unsafe { sys::ibv_query_gid_table(raw, entries.as_mut_ptr(), most, 0) };
        match usize::try_from(got) {
            Ok(got) => Ok(entries.iter().take(got).map(GidEntry::from_raw).collect()),
            Err(_) => {
                let errno = i32::try_from(got.unsigned_abs()).unwrap_or(libc::EIO);
                Err(Error::from_errno(verb, errno))
            }
        }
    }

    /// Entry `index` of the table of port `port`.
    ///
    /// # Errors
    /// ENODATA for an empty entry, EINVAL for an index or a port that does not exist.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gid_entry(&self, port: u8, index: u32) -> Result<GidEntry, Error> {
        let verb = "ibv_query_gid_ex";
        let raw = self.raw_checked(verb)?;
        let mut entry = sys::ibv_gid_entry::default();
        // SAFETY: the context is open, and the place is valid.
        let ret = unsafe { sys::ibv_query_gid_ex(raw, port.into(), index, &mut entry, 0) };
        crate::error::from_return(verb, ret).map_err(|e| {
            e.with_detail(format!(
                "device {}, port {port}, entry {index}",
                self.name()
            ))
        })?;
        Ok(GidEntry::from_raw(&entry))
    }

    /// The entry of port `port` to use: the one with the address `ip`, or the best.
    ///
    /// # Errors
    /// As [`GidChoice::by_address`] and [`GidChoice::best`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(context: &verbs::Context) -> Result<(), verbs::Error> {
    /// let choice = context.choose_gid(1, None)?;
    /// println!("index {}: {:?}, because {:?}", choice.sgid_index()?, choice.entry, choice.reason);
    /// # Ok(())
    /// # }
    /// ```
    pub fn choose_gid(&self, port: u8, ip: Option<IpAddr>) -> Result<GidChoice, Error> {
        let mut entries = self.gid_table()?;
        entries.retain(|entry| entry.port == u32::from(port));
        let choice = match ip {
            Some(ip) => GidChoice::by_address(&entries, ip),
            None => GidChoice::best(&entries),
        }?;
        if choice.reason.is_warning() {
            tracing::warn!(
                device = self.name(), port, index = choice.entry.index, reason = %choice.reason,
                "the best GID is of little use"
            );
        }
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "fe80::1";
    const V4: &str = "::ffff:192.0.2.1";
    const V6: &str = "2001:db8::1";

    fn table(entries: &[(&str, GidType)]) -> Vec<GidEntry> {
        entries
            .iter()
            .zip(0..)
            .map(|(&(address, gid_type), index)| GidEntry {
                gid: Gid(address.parse::<Ipv6Addr>().expect("address").octets()),
                index,
                port: 1,
                gid_type,
                interface: 2,
            })
            .collect()
    }

    #[test]
    fn the_best_entry_is_roce_v2_and_routable_and_never_empty() {
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        type Table<'a> = &'a [(&'a str, GidType)];
        let cases: [(Table<'_>, u32, GidReason); 6] = [
            (&[(LINK, v2), (V4, v2)], 1, GidReason::Routable),
            (
                &[(LINK, v1), (LINK, v2), (V4, v1), (V4, v2)],
                3,
                GidReason::Routable,
            ),
            (&[(LINK, v2), (V6, v2)], 1, GidReason::Routable),
            (&[(LINK, v2)], 0, GidReason::LinkLocal),
            (&[("::", v2), ("::", v2), (V4, v2)], 2, GidReason::Routable),
            (&[(LINK, v1), (V4, v1)], 1, GidReason::RoceV1),
        ];
        for (entries, index, reason) in cases {
            let choice = GidChoice::best(&table(entries)).expect("an entry");
            assert_eq!(
                (choice.entry.index, choice.reason),
                (index, reason),
                "{entries:?}"
            );
        }
        let warned = GidChoice::best(&table(&[(LINK, v2)])).expect("an entry");
        assert!(warned.reason.is_warning());
    }

    #[test]
    fn a_table_without_an_address_is_an_error_of_its_own() {
        for entries in [&[][..], &[("::", GidType::ROCE_V2)]] {
            let error = GidChoice::best(&table(entries)).expect_err("no address");
            assert_eq!(error.kind(), ErrorKind::NoUsableGid);
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn an_address_is_found_in_either_form_and_a_missing_one_names_those_there_are() {
        let entries = table(&[
            (V4, GidType::ROCE_V1),
            (V4, GidType::ROCE_V2),
            (V6, GidType::ROCE_V2),
        ]);
        for text in ["192.0.2.1", V4] {
            let choice = GidChoice::by_address(&entries, text.parse().expect("address"));
            let choice = choice.expect("in the table");
            assert_eq!((choice.entry.index, choice.reason), (1, GidReason::Address));
        }
        let missing = "198.51.100.1".parse().expect("address");
        let error = GidChoice::by_address(&entries, missing).expect_err("not in the table");
        assert_eq!(error.kind(), ErrorKind::NoUsableGid);
        assert!(error.to_string().contains("198.51.100.1"), "{error}");
        assert!(
            error.to_string().contains("192.0.2.1, 2001:db8::1"),
            "{error}"
        );
    }

    #[test]
    fn an_index_that_no_address_can_name_is_refused() {
        let mut entry = table(&[(V4, GidType::ROCE_V2)])[0];
        let reason = GidReason::Address;
        entry.index = 255;
        assert_eq!(GidChoice { entry, reason }.sgid_index().ok(), Some(255));
        entry.index = 256;
        let error = GidChoice { entry, reason }
            .sgid_index()
            .expect_err("nine bits");
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
}
