//! What each state of a queue pair takes: the attributes by name, the mask by type.

use super::mask::{receives_reliably, sends_reliably};
use super::state::{QpAttributes, QpState, QpType};
use crate::ah::Address;
use crate::attributes::DeviceAttributes;
use crate::error::{Error, ErrorKind};
use crate::flags::{AccessFlags, open_enum};
use rdma_core_sys as sys;
use sys::ibv_qp_attr_mask as Mask;

open_enum! {
    /// The largest payload of a packet, as a code.
    #[doc(alias = "ibv_mtu")]
    PathMtu(u32) {
        /// 256 bytes.
        MTU_256 = sys::ibv_mtu::IBV_MTU_256.0, "256 bytes";
        /// 512 bytes.
        MTU_512 = sys::ibv_mtu::IBV_MTU_512.0, "512 bytes";
        /// 1024 bytes.
        MTU_1024 = sys::ibv_mtu::IBV_MTU_1024.0, "1024 bytes";
        /// 2048 bytes.
        MTU_2048 = sys::ibv_mtu::IBV_MTU_2048.0, "2048 bytes";
        /// 4096 bytes.
        MTU_4096 = sys::ibv_mtu::IBV_MTU_4096.0, "4096 bytes";
    }
}

impl PathMtu {
    /// The largest MTU of at most `bytes`, which are those of the smaller of both ports.
    pub fn at_most(bytes: u32) -> Option<Self> {
        (1..=5)
            .rev()
            .map(Self::from_raw)
            .find(|mtu| mtu.bytes() <= Some(bytes))
    }

    /// The size in bytes, if this version knows the code.
    pub fn bytes(self) -> Option<u32> {
        (1..=5).contains(&self.raw()).then(|| 128 << self.raw())
    }
}

/// What takes a queue pair from RESET to INIT, where it takes receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAttributes {
    /// The port of the device, from 1.
    pub port: u8,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// What the peer may do (RC and UC): only the remote flags count.
    pub access: AccessFlags,
    /// The key that datagrams for us must carry (UD). With the top bit set it needs privileges.
    pub qkey: u32,
}

impl InitAttributes {
    /// On `port`, with partition key 0, no access for the peer, and Q_Key 0.
    pub fn new(port: u8) -> Self {
        Self {
            port,
            pkey_index: 0,
            access: AccessFlags::empty(),
            qkey: 0,
        }
    }

    pub(crate) fn attributes(&self, qp_type: QpType) -> QpAttributes {
        let mut all = QpAttributes::new();
        all.set_state(QpState::INIT);
        all.set(Mask::IBV_QP_PORT).port_num = self.port;
        all.set(Mask::IBV_QP_PKEY_INDEX).pkey_index = self.pkey_index;
        if qp_type == QpType::UD {
            all.set(Mask::IBV_QP_QKEY).qkey = self.qkey;
        } else {
            all.set(Mask::IBV_QP_ACCESS_FLAGS).qp_access_flags = self.access.bits();
        }
        all
    }
}

/// What takes a connected queue pair (RC, UC) from INIT to RTR, where it receives from its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttributes {
    /// The path to the peer.
    pub address: Address,
    /// The largest payload of a packet, which both ends set to the same.
    pub path_mtu: PathMtu,
    /// The number of the peer's queue pair, 24 bits.
    pub dest_qp_number: u32,
    /// The number of the first packet, 24 bits: the peer's `sq_psn`.
    pub rq_psn: u32,
    /// Reads and atomics of the peer in flight (RC); with 0 every one fails.
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits when no receive is posted (RC), a 5-bit code: 12 is 0.64 ms.
    pub min_rnr_timer: u8,
}

impl RtrAttributes {
    /// Towards queue pair `dest_qp_number` at `address`, whose first packet has the number `rq_psn`.
    ///
    /// 1 read or atomic of the peer may be in flight, and it waits 0.64 ms for a receive.
    pub fn new(address: Address, path_mtu: PathMtu, dest_qp_number: u32, rq_psn: u32) -> Self {
        Self {
            address,
            path_mtu,
            dest_qp_number,
            rq_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }

    pub(crate) fn attributes(
        &self,
        qp_type: QpType,
        device: &DeviceAttributes,
    ) -> Result<QpAttributes, Error> {
        at_most("dest_qp_number", self.dest_qp_number, MAX_24)?;
        at_most("rq_psn", self.rq_psn, MAX_24)?;
        let mut all = QpAttributes::new();
        all.set_state(QpState::RTR);
        all.set(Mask::IBV_QP_AV).ah_attr = self.address.to_raw();
        all.set(Mask::IBV_QP_PATH_MTU).path_mtu = sys::ibv_mtu(self.path_mtu.raw());
        all.set(Mask::IBV_QP_DEST_QPN).dest_qp_num = self.dest_qp_number;
        all.set(Mask::IBV_QP_RQ_PSN).rq_psn = self.rq_psn;
        if receives_reliably(qp_type) {
            at_most("min_rnr_timer", self.min_rnr_timer.into(), 31)?;
            let most = device.max_qp_rd_atom();
            at_most(
                "max_dest_rd_atomic",
                self.max_dest_rd_atomic.into(),
                most.into(),
            )?;
            all.set(Mask::IBV_QP_MAX_DEST_RD_ATOMIC).max_dest_rd_atomic = self.max_dest_rd_atomic;
            all.set_min_rnr_timer(self.min_rnr_timer);
        }
        Ok(all)
    }
}

/// What takes a queue pair from RTR to RTS, where it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttributes {
    /// The number of our first packet, 24 bits.
    pub sq_psn: u32,
    /// How long an acknowledgement is waited for (RC): 4.096 µs · 2^`timeout`, 5 bits, 0 for ever.
    pub timeout: u8,
    /// How often an unacknowledged request is sent again (RC), 0 to 7.
    pub retry_count: u8,
    /// How often to try a receiver that is not ready (RC), 0 to 6, or 7 for ever.
    pub rnr_retry: u8,
    /// Reads and atomics of ours in flight (RC), at most what the peer takes.
    pub max_rd_atomic: u8,
}

impl RtsAttributes {
    /// With the first packet `sq_psn`.
    ///
    /// A request is given up after 6 repetitions at intervals of 67 ms or more, a receiver that is
    /// not ready never, and 1 read or atomic may be in flight.
    pub fn new(sq_psn: u32) -> Self {
        Self {
            sq_psn,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
            max_rd_atomic: 1,
        }
    }

    pub(crate) fn attributes(
        &self,
        qp_type: QpType,
        device: &DeviceAttributes,
    ) -> Result<QpAttributes, Error> {
        at_most("sq_psn", self.sq_psn, MAX_24)?;
        let mut all = QpAttributes::new();
        all.set_state(QpState::RTS);
        all.set(Mask::IBV_QP_SQ_PSN).sq_psn = self.sq_psn;
        if sends_reliably(qp_type) || receives_reliably(qp_type) {
            at_most("timeout", self.timeout.into(), 31)?;
            all.set_timeout(self.timeout);
        }
        if sends_reliably(qp_type) {
            at_most("retry_count", self.retry_count.into(), 7)?;
            at_most("rnr_retry", self.rnr_retry.into(), 7)?;
            let most = device.max_qp_init_rd_atom();
            at_most("max_rd_atomic", self.max_rd_atomic.into(), most.into())?;
            all.set_retry_count(self.retry_count)
                .set_rnr_retry(self.rnr_retry);
            all.set(Mask::IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic = self.max_rd_atomic;
        }
        Ok(all)
    }
}

const MAX_24: u32 = (1 << 24) - 1;

pub(super) fn at_most(name: &str, value: u32, most: u32) -> Result<(), Error> {
    if value <= most {
        return Ok(());
    }
    Err(Error::refused(
        "ibv_modify_qp",
        ErrorKind::InvalidArgument,
        format!("{name} {value} exceeds {most}"),
    )
    .with_hint(format!("{name} goes from 0 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Gid;

    fn device() -> DeviceAttributes {
        DeviceAttributes::from_raw(sys::ibv_device_attr {
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 8,
            ..Default::default()
        })
    }

    fn mask(bits: &[Mask]) -> i32 {
        bits.iter().fold(0, |mask, bit| mask | bit.0.cast_signed())
    }

    fn rtr() -> RtrAttributes {
        let address = Address::roce(1, 0, Gid([1; 16]));
        RtrAttributes::new(address, PathMtu::MTU_1024, 17, 5)
    }

    #[test]
    fn each_type_gets_just_the_attributes_that_its_transition_needs() {
        let init = InitAttributes::new(1);
        let connected = mask(&[
            Mask::IBV_QP_STATE,
            Mask::IBV_QP_PORT,
            Mask::IBV_QP_PKEY_INDEX,
            Mask::IBV_QP_ACCESS_FLAGS,
        ]);
        assert_eq!(init.attributes(QpType::RC).as_raw().1, connected);
        for qp_type in [QpType::UC, QpType::XRC_SEND, QpType::XRC_RECV] {
            assert_eq!(init.attributes(qp_type).as_raw().1, connected);
        }
        let datagram = mask(&[
            Mask::IBV_QP_STATE,
            Mask::IBV_QP_PORT,
            Mask::IBV_QP_PKEY_INDEX,
            Mask::IBV_QP_QKEY,
        ]);
        assert_eq!(init.attributes(QpType::UD).as_raw().1, datagram);

        let unreliable = mask(&[
            Mask::IBV_QP_STATE,
            Mask::IBV_QP_AV,
            Mask::IBV_QP_PATH_MTU,
            Mask::IBV_QP_DEST_QPN,
            Mask::IBV_QP_RQ_PSN,
        ]);
        let reliable =
            unreliable | mask(&[Mask::IBV_QP_MAX_DEST_RD_ATOMIC, Mask::IBV_QP_MIN_RNR_TIMER]);
        let got = |qp_type| {
            rtr()
                .attributes(qp_type, &device())
                .expect("valid")
                .as_raw()
                .1
        };
        assert_eq!((got(QpType::UC), got(QpType::RC)), (unreliable, reliable));
        // Of the two ends of an XRC connection one sends and the other receives.
        let ends = (got(QpType::XRC_SEND), got(QpType::XRC_RECV));
        assert_eq!(ends, (unreliable, reliable));

        let plain = mask(&[Mask::IBV_QP_STATE, Mask::IBV_QP_SQ_PSN]);
        let reliable = plain
            | mask(&[
                Mask::IBV_QP_TIMEOUT,
                Mask::IBV_QP_RETRY_CNT,
                Mask::IBV_QP_RNR_RETRY,
                Mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ]);
        let rts = RtsAttributes::new(9);
        let got = |qp_type| {
            rts.attributes(qp_type, &device())
                .expect("valid")
                .as_raw()
                .1
        };
        assert_eq!(
            [got(QpType::UD), got(QpType::UC), got(QpType::RC)],
            [plain, plain, reliable]
        );
        assert_eq!(got(QpType::XRC_SEND), reliable);
        assert_eq!(got(QpType::XRC_RECV), plain | mask(&[Mask::IBV_QP_TIMEOUT]));
    }

    #[test]
    fn a_value_that_its_field_cannot_hold_is_refused_by_name() {
        type Change = (&'static str, fn(&mut RtrAttributes, &mut RtsAttributes));
        let changes: [Change; 8] = [
            ("dest_qp_number", |rtr, _| rtr.dest_qp_number = 1 << 24),
            ("rq_psn", |rtr, _| rtr.rq_psn = 1 << 24),
            ("min_rnr_timer", |rtr, _| rtr.min_rnr_timer = 32),
            ("max_dest_rd_atomic", |rtr, _| rtr.max_dest_rd_atomic = 17),
            ("sq_psn", |_, rts| rts.sq_psn = 1 << 24),
            ("timeout", |_, rts| rts.timeout = 32),
            ("retry_count", |_, rts| rts.retry_count = 8),
            ("max_rd_atomic", |_, rts| rts.max_rd_atomic = 9),
        ];
        for (name, change) in changes {
            let (mut rtr, mut rts) = (rtr(), RtsAttributes::new(0));
            change(&mut rtr, &mut rts);
            let error = rtr
                .attributes(QpType::RC, &device())
                .and_then(|_| rts.attributes(QpType::RC, &device()))
                .expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn the_path_mtu_is_the_largest_that_fits() {
        assert_eq!(PathMtu::at_most(255), None);
        assert_eq!(PathMtu::at_most(1500), Some(PathMtu::MTU_1024));
        assert_eq!(PathMtu::at_most(4096), Some(PathMtu::MTU_4096));
        assert_eq!(PathMtu::at_most(u32::MAX), Some(PathMtu::MTU_4096));
        for raw in (0..=255).chain([u32::MAX]) {
            assert_eq!(
                PathMtu::from_raw(raw).bytes().is_some(),
                (1..=5).contains(&raw)
            );
        }
    }
}
