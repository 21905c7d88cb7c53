//! Address handles: where a datagram goes.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::cq::WcSuccess;
use crate::error::{CloseError, Error, from_pointer, from_return};
use crate::owned::{Destroy, Owned, close_shared};
use crate::pd::ProtectionDomain;
use crate::port::Gid;

// SAFETY: ibv_destroy_ah returning 0 ends the use of the handle; a failure leaves it as it was.
unsafe impl Destroy for sys::ibv_ah {
    const VERB: &'static str = "ibv_destroy_ah";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_ah(object) }
    }
}

/// The global part of an address: needed on RoCE, and to leave an InfiniBand subnet.
#[doc(alias = "ibv_global_route")]
#[doc(alias = "GRH")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The peer's port.
    pub dgid: Gid,
    /// The index of our address in our port's table, which also chooses the RoCE version.
    pub sgid_index: u8,
    /// How many routers may be passed; at least 2 to pass one.
    pub hop_limit: u8,
    /// The traffic class; on RoCE v2 the DSCP in its upper six bits.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
}

impl GlobalRoute {
    /// To `dgid` from entry `sgid_index` of our port's table, over any number of routers.
    pub fn new(sgid_index: u8, dgid: Gid) -> Self {
        Self {
            dgid,
            sgid_index,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        }
    }
}

/// The path to a peer's port.
#[doc(alias = "ibv_ah_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Our port, from 1.
    pub port: u8,
    /// The peer's LID on InfiniBand, 0 on RoCE.
    pub dlid: u16,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// Which of our port's LIDs is the source, on InfiniBand.
    pub src_path_bits: u8,
    /// A code for the highest rate, 0 for the port's.
    pub static_rate: u8,
    /// The global part.
    pub route: Option<GlobalRoute>,
}

impl Address {
    /// An address on RoCE, where the GID alone says where the peer is.
    pub fn roce(port: u8, sgid_index: u8, dgid: Gid) -> Self {
        Self {
            port,
            dlid: 0,
            service_level: 0,
            src_path_bits: 0,
            static_rate: 0,
            route: Some(GlobalRoute::new(sgid_index, dgid)),
        }
    }

    /// An address inside an InfiniBand subnet.
    pub fn infiniband(port: u8, dlid: u16) -> Self {
        Self {
            port,
            dlid,
            service_level: 0,
            src_path_bits: 0,
            static_rate: 0,
            route: None,
        }
    }

    /// The address of the sender of a datagram, to answer it.
    ///
    /// `grh` is the first 40 bytes of the receive's buffer, and `port` where it came in. On RoCE
    /// the port's GID table is searched for our own address, at a system call for each entry: keep
    /// the result.
    ///
    /// # Errors
    /// The errno of the call when our address in `grh` is not in the table.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn of_sender(
        context: &Context,
        port: u8,
        completion: &WcSuccess<'_>,
        grh: &[u8; 40],
    ) -> Result<Self, Error> {
        let verb = "ibv_init_ah_from_wc";
        let raw = context.raw_checked(verb)?;
        let mut wc = *completion.as_raw();
        let mut header = MaybeUninit::<sys::ibv_grh>::uninit();
        const { assert!(size_of::<sys::ibv_grh>() == 40) };
        // SAFETY: both are 40 bytes and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(grh.as_ptr(), header.as_mut_ptr().cast(), 40) };
        let mut attributes = sys::ibv_ah_attr::default();
        // SAFETY: the context is open, completion and header are copies of ours, and the place for
        // the result is valid.
        let ret = unsafe {
            sys::ibv_init_ah_from_wc(raw, port, &mut wc, header.as_mut_ptr(), &mut attributes)
        };
        from_return(verb, ret)?;
        Ok(Self::from_raw(&attributes))
    }

    /// The address that a C struct says.
    pub fn from_raw(raw: &sys::ibv_ah_attr) -> Self {
        Self {
            port: raw.port_num,
            dlid: raw.dlid,
            service_level: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
            route: (raw.is_global != 0).then_some(GlobalRoute {
                // SAFETY: every arm of the union is 16 bytes.
                dgid: Gid(unsafe { raw.grh.dgid.raw }),
                sgid_index: raw.grh.sgid_index,
                hop_limit: raw.grh.hop_limit,
                traffic_class: raw.grh.traffic_class,
                flow_label: raw.grh.flow_label,
            }),
        }
    }

    /// The C struct.
    pub fn to_raw(&self) -> sys::ibv_ah_attr {
        let mut raw = sys::ibv_ah_attr {
            dlid: self.dlid,
            sl: self.service_level,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            port_num: self.port,
            ..Default::default()
        };
        if let Some(route) = &self.route {
            raw.is_global = 1;
            raw.grh = sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: route.dgid.0 },
                flow_label: route.flow_label,
                sgid_index: route.sgid_index,
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
            };
        }
        raw
    }
}

/// A resolved address that datagrams are sent to. Cloning gives another handle to the same one.
///
/// Keep a handle until the sends that use it have completed: some devices look the address up only
/// when they carry the request out, and then fail it.
///
/// # Example
///
/// Answering a datagram, whose sender stands in the first 40 bytes of the receive's buffer:
///
/// ```no_run
/// use verbs::*;
///
/// # fn example(qp: &QueuePair, completion: &WorkCompletion, grh: &[u8; 40], answer: &[Sge]) -> Result<(), Box<dyn std::error::Error>> {
/// let received = completion.result()?;
/// let sender = AddressHandle::of_sender(qp.pd(), 1, &received, grh)?;
/// let mut request = SendRequest::datagram(9, answer, &sender, received.src_qp(), 0x1111_1111);
/// // SAFETY: the memory of `answer` stays registered and unchanged until the completion, and
/// // `sender` is kept as long.
/// unsafe { qp.post_send(&mut request)? };
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle(Arc<Owned<sys::ibv_ah, ProtectionDomain>>);

impl AddressHandle {
    /// Resolves `address`, which on RoCE may wait for a neighbour.
    ///
    /// # Errors
    /// EINVAL for an address without the global part on RoCE, ETIMEDOUT when the neighbour does not
    /// answer.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(pd: &ProtectionDomain, address: &Address) -> Result<Self, Error> {
        let verb = "ibv_create_ah";
        let raw_pd = pd.raw_checked(verb)?;
        let mut attributes = address.to_raw();
        // SAFETY: the domain is live, and the attributes are a copy.
        let raw = unsafe { sys::ibv_create_ah(raw_pd, &mut attributes) };
        let raw = from_pointer(verb, raw).map_err(|error| {
            let no_route = address.route.is_none() && error.errno() == Some(libc::EINVAL);
            let error = error.with_detail(format!("{address:?}"));
            if no_route {
                error.with_hint("on RoCE an address needs the global part: use Address::roce")
            } else {
                error
            }
        })?;
        // SAFETY: the handle was just made, of this domain.
        Ok(unsafe { Self::from_raw(raw, pd) })
    }

    /// Takes over a handle that other code has made.
    ///
    /// # Safety
    /// - `raw` is a live address handle of `pd` that nobody else destroys.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_ah>, pd: &ProtectionDomain) -> Self {
        // SAFETY: the caller gives the handle over; it needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Self(Arc::new(owned))
    }

    /// The address of the sender of a datagram; see [`Address::of_sender`].
    ///
    /// # Errors
    /// As [`Address::of_sender`] and [`new`](Self::new).
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn of_sender(
        pd: &ProtectionDomain,
        port: u8,
        completion: &WcSuccess<'_>,
        grh: &[u8; 40],
    ) -> Result<Self, Error> {
        Self::new(
            pd,
            &Address::of_sender(pd.context(), port, completion, grh)?,
        )
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.parents()
    }

    /// Destroys the handle now.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) while clones of the handle live.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_shared(self.0, "clones of the address handle still live").map_err(
            |(error, shared)| CloseError {
                error,
                handle: Self(shared),
            },
        )
    }

    /// The C handle, for calls that this crate does not have. It must not be destroyed.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_ah {
        self.0.raw()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressHandle").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roce_address_has_its_global_part() {
        let gid = Gid([7; 16]);
        let raw = Address::roce(1, 3, gid).to_raw();
        assert_eq!((raw.is_global, raw.port_num, raw.dlid), (1, 1, 0));
        assert_eq!((raw.grh.sgid_index, raw.grh.hop_limit), (3, 64));
        assert_eq!(Address::from_raw(&raw), Address::roce(1, 3, gid));
    }

    #[test]
    fn an_infiniband_address_keeps_its_lid() {
        let address = Address::infiniband(2, 0x1234);
        let raw = address.to_raw();
        assert_eq!((raw.is_global, raw.dlid, raw.port_num), (0, 0x1234, 2));
        assert_eq!(Address::from_raw(&raw), address);
    }
}
