//! Changing a queue pair that runs, and stopping its send queue for what cannot be changed while it does.

use rdma_core_sys as sys;
use sys::ibv_qp_attr_mask as Mask;

use super::QueuePair;
use super::mask::Step;
use super::state::{QpAttributes, QpState, QpType};
use super::transition::at_most;
use crate::ah::Address;
use crate::attributes::DeviceAttributes;
use crate::error::Error;
use crate::flags::{AccessFlags, open_enum};

open_enum! {
    /// Where a connection stands between its path and the alternate one.
    #[doc(alias = "ibv_mig_state")]
    PathMigration(u32) {
        /// On the path that is set; it does not change to another by itself.
        MIGRATED = sys::ibv_mig_state::IBV_MIG_MIGRATED.0, "migrated";
        /// To be armed once the peer is, too.
        REARM = sys::ibv_mig_state::IBV_MIG_REARM.0, "to be armed";
        /// Changes to the alternate path when the path fails.
        ARMED = sys::ibv_mig_state::IBV_MIG_ARMED.0, "armed";
    }
}

/// The path that a connection may change to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlternatePath {
    /// The path to the peer.
    pub address: Address,
    /// The port of the device, from 1.
    pub port: u8,
    /// The index of the partition key in that port's table.
    pub pkey_index: u16,
    /// How long an acknowledgement is waited for: 4.096 µs · 2^`timeout`, 5 bits, 0 for ever.
    pub timeout: u8,
}

/// What may be changed while a queue pair is in RTS or goes back to it; `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtsChange {
    /// What the peer may do (not UD): only the remote flags count.
    pub access: Option<AccessFlags>,
    /// How long the peer waits when no receive is posted (RC), a 5-bit code: 12 is 0.64 ms.
    pub min_rnr_timer: Option<u8>,
    /// The key that datagrams for us must carry (UD).
    pub qkey: Option<u32>,
    /// Another path (not UD).
    pub alternate_path: Option<AlternatePath>,
    /// Whether to change to it (not UD).
    pub path_migration: Option<PathMigration>,
}

/// What may be changed in SQD, with the send queue at rest; `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SqdChange {
    /// The port of the device (RC), where it has
    /// [`CHANGE_PHY_PORT`](crate::DeviceCapFlags::CHANGE_PHY_PORT).
    pub port: Option<u8>,
    /// The index of the partition key in the port's table.
    pub pkey_index: Option<u16>,
    /// The path to the peer (not UD).
    pub address: Option<Address>,
    /// How long an acknowledgement is waited for (RC): 4.096 µs · 2^`timeout`, 5 bits, 0 for ever.
    pub timeout: Option<u8>,
    /// How often an unacknowledged request is sent again (RC), 0 to 7.
    pub retry_count: Option<u8>,
    /// How often to try a receiver that is not ready (RC), 0 to 6, or 7 for ever.
    pub rnr_retry: Option<u8>,
    /// Reads and atomics of ours in flight (RC).
    pub max_rd_atomic: Option<u8>,
    /// Reads and atomics of the peer in flight (RC).
    pub max_dest_rd_atomic: Option<u8>,
    /// What else may be changed in RTS as well.
    pub rts: RtsChange,
}

impl RtsChange {
    fn set(&self, all: &mut QpAttributes) -> Result<(), Error> {
        if let Some(access) = self.access {
            all.set(Mask::IBV_QP_ACCESS_FLAGS).qp_access_flags = access.bits();
        }
        if let Some(code) = self.min_rnr_timer {
            at_most("min_rnr_timer", code.into(), 31)?;
            all.set_min_rnr_timer(code);
        }
        if let Some(qkey) = self.qkey {
            all.set(Mask::IBV_QP_QKEY).qkey = qkey;
        }
        if let Some(path) = self.alternate_path {
            at_most("timeout of alternate_path", path.timeout.into(), 31)?;
            let raw = all.set(Mask::IBV_QP_ALT_PATH);
            raw.alt_ah_attr = path.address.to_raw();
            raw.alt_port_num = path.port;
            raw.alt_pkey_index = path.pkey_index;
            raw.alt_timeout = path.timeout;
        }
        if let Some(state) = self.path_migration {
            all.set(Mask::IBV_QP_PATH_MIG_STATE).path_mig_state = sys::ibv_mig_state(state.raw());
        }
        Ok(())
    }

    /// On the way of `step`, which ends in RTS.
    pub(super) fn attributes(&self, qp_type: QpType, step: Step) -> Result<QpAttributes, Error> {
        let mut all = QpAttributes::new();
        all.set_state(QpState::RTS);
        self.set(&mut all)?;
        step.check(qp_type, &all)?;
        Ok(all)
    }
}

impl SqdChange {
    pub(super) fn attributes(
        &self,
        qp_type: QpType,
        device: &DeviceAttributes,
    ) -> Result<QpAttributes, Error> {
        // Without the state: SoftRoCE of Linux 6.12 begins to drain anew when it is told SQD again.
        let mut all = QpAttributes::new();
        if let Some(port) = self.port {
            all.set(Mask::IBV_QP_PORT).port_num = port;
        }
        if let Some(index) = self.pkey_index {
            all.set(Mask::IBV_QP_PKEY_INDEX).pkey_index = index;
        }
        if let Some(address) = self.address {
            all.set(Mask::IBV_QP_AV).ah_attr = address.to_raw();
        }
        if let Some(timeout) = self.timeout {
            at_most("timeout", timeout.into(), 31)?;
            all.set_timeout(timeout);
        }
        if let Some(count) = self.retry_count {
            at_most("retry_count", count.into(), 7)?;
            all.set_retry_count(count);
        }
        if let Some(count) = self.rnr_retry {
            at_most("rnr_retry", count.into(), 7)?;
            all.set_rnr_retry(count);
        }
        if let Some(count) = self.max_rd_atomic {
            let most = device.max_qp_init_rd_atom();
            at_most("max_rd_atomic", count.into(), most.into())?;
            all.set(Mask::IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic = count;
        }
        if let Some(count) = self.max_dest_rd_atomic {
            let most = device.max_qp_rd_atom();
            at_most("max_dest_rd_atomic", count.into(), most.into())?;
            all.set(Mask::IBV_QP_MAX_DEST_RD_ATOMIC).max_dest_rd_atomic = count;
        }
        self.rts.set(&mut all)?;
        Step::InSqd.check(qp_type, &all)?;
        Ok(all)
    }
}

/// To SQD; with an event for the end of what is under way.
pub(super) fn to_sqd(notify: bool) -> QpAttributes {
    let mut all = QpAttributes::new();
    all.set_state(QpState::SQD);
    if notify {
        all.set(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY)
            .en_sqd_async_notify = 1;
    }
    all
}

impl QueuePair {
    /// Changes a queue pair in RTS, which goes on meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) names what is out of range
    /// or not to be set for this type; EINVAL from another state.
    pub fn change_rts(&self, change: &RtsChange) -> Result<(), Error> {
        self.modify(&change.attributes(self.qp_type(), Step::ToRts)?)
    }

    /// From RTS to SQD: requests that have begun are ended, all others wait. With `notify` an
    /// [`SQ_DRAINED`](crate::AsyncEventKind::SQ_DRAINED) event says when nothing is under way any
    /// more; [`QpAttributes::is_draining`] of a query says it, too.
    ///
    /// # Errors
    /// EINVAL from another state than RTS.
    pub fn to_sqd(&self, notify: bool) -> Result<(), Error> {
        self.modify(&to_sqd(notify))
    }

    /// Changes a queue pair in SQD, once it has drained.
    ///
    /// # Errors
    /// As [`change_rts`](Self::change_rts), in another state than SQD.
    pub fn change_sqd(&self, change: &SqdChange) -> Result<(), Error> {
        let attributes = change.attributes(self.qp_type(), self.context().attributes())?;
        let state = self.state();
        if state != QpState::SQD {
            // SoftRoCE of Linux 6.12 looks at no state where none is to be set.
            return Err(
                Error::from_errno("ibv_modify_qp", libc::EINVAL).with_detail(format!(
                    "queue pair {} is in {state}, not in {}",
                    self.number(),
                    QpState::SQD
                )),
            );
        }
        self.modify(&attributes)
    }

    /// From SQD back to RTS, once it has drained: the requests that waited are carried out.
    ///
    /// # Errors
    /// As [`change_rts`](Self::change_rts), from another state than SQD, and on some devices while
    /// it drains.
    pub fn resume(&self, change: &RtsChange) -> Result<(), Error> {
        self.modify(&change.attributes(self.qp_type(), Step::ToRts)?)
    }

    /// From SQE, where the failure of a request has left the send queue (UC, UD), back to RTS. The
    /// requests behind the failed one were flushed.
    ///
    /// # Errors
    /// As [`change_rts`](Self::change_rts), from another state than SQE, and for RC, which goes to
    /// ERR instead.
    pub fn recover(&self, change: &RtsChange) -> Result<(), Error> {
        self.modify(&change.attributes(self.qp_type(), Step::Recover)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::port::Gid;

    fn device() -> DeviceAttributes {
        DeviceAttributes::from_raw(sys::ibv_device_attr {
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 8,
            ..Default::default()
        })
    }

    type Choice = (u32, fn(&mut SqdChange));

    /// The bits are C's, written out: the table must not be tested against itself.
    fn choices() -> [Choice; 13] {
        [
            (0x8, |c| c.rts.access = Some(AccessFlags::REMOTE_READ)),
            (0x10, |c| c.pkey_index = Some(3)),
            (0x20, |c| c.port = Some(2)),
            (0x40, |c| c.rts.qkey = Some(5)),
            (0x80, |c| c.address = Some(address())),
            (0x200, |c| c.timeout = Some(14)),
            (0x400, |c| c.retry_count = Some(6)),
            (0x800, |c| c.rnr_retry = Some(5)),
            (0x2000, |c| c.max_rd_atomic = Some(8)),
            (0x4000, |c| c.rts.alternate_path = Some(path())),
            (0x8000, |c| c.rts.min_rnr_timer = Some(12)),
            (0x2_0000, |c| c.max_dest_rd_atomic = Some(16)),
            (0x4_0000, |c| {
                c.rts.path_migration = Some(PathMigration::ARMED)
            }),
        ]
    }

    fn address() -> Address {
        Address::roce(1, 0, Gid([1; 16]))
    }

    fn path() -> AlternatePath {
        AlternatePath {
            address: Address::roce(2, 4, Gid([2; 16])),
            port: 2,
            pkey_index: 1,
            timeout: 9,
        }
    }

    /// The kernel's table of what may be set: for each type to RTS, from SQE, and within SQD.
    const TABLE: [(QpType, u32, Option<u32>, u32); 5] = [
        (
            QpType::RC,
            0x8 | 0x4000 | 0x8000 | 0x4_0000,
            None,
            0x8 | 0x10
                | 0x20
                | 0x80
                | 0x200
                | 0x400
                | 0x800
                | 0x2000
                | 0x4000
                | 0x8000
                | 0x2_0000
                | 0x4_0000,
        ),
        (
            QpType::UC,
            0x8 | 0x4000 | 0x4_0000,
            Some(0x8),
            0x8 | 0x10 | 0x80 | 0x4000 | 0x4_0000,
        ),
        (QpType::UD, 0x40, Some(0x40), 0x10 | 0x40),
        (
            QpType::XRC_SEND,
            0x8 | 0x4000 | 0x4_0000,
            None,
            0x8 | 0x10 | 0x20 | 0x80 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x4000 | 0x4_0000,
        ),
        (
            QpType::XRC_RECV,
            0x8 | 0x4000 | 0x8000 | 0x4_0000,
            None,
            0x8 | 0x10 | 0x20 | 0x80 | 0x200 | 0x4000 | 0x8000 | 0x2_0000 | 0x4_0000,
        ),
    ];

    #[test]
    fn each_choice_is_taken_just_where_the_kernels_table_has_it() {
        const IN_RTS: u32 = 0x8 | 0x40 | 0x4000 | 0x8000 | 0x4_0000;
        for (qp_type, to_rts, recover, in_sqd) in TABLE {
            for (bit, choose) in choices() {
                let mut change = SqdChange::default();
                choose(&mut change);
                let check =
                    |allowed: u32, state: u32, result: Result<QpAttributes, Error>| match result {
                        Ok(attributes) => {
                            assert!(allowed & bit != 0, "{qp_type} {bit:#x} is taken");
                            let mask = attributes.as_raw().1.cast_unsigned();
                            assert_eq!(mask, bit | state, "{qp_type}");
                        }
                        Err(error) => {
                            assert!(allowed & bit == 0, "{qp_type} {bit:#x}: {error}");
                            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                        }
                    };
                check(in_sqd, 0, change.attributes(qp_type, &device()));
                if IN_RTS & bit != 0 {
                    check(to_rts, 1, change.rts.attributes(qp_type, Step::ToRts));
                    let recovered = change.rts.attributes(qp_type, Step::Recover);
                    check(recover.unwrap_or(0), 1, recovered);
                }
            }
            // All that is taken, at once.
            let mut change = SqdChange::default();
            for (_, choose) in choices().iter().filter(|(bit, _)| in_sqd & bit != 0) {
                choose(&mut change);
            }
            let attributes = change
                .attributes(qp_type, &device())
                .expect("all are taken");
            assert_eq!(attributes.as_raw().1.cast_unsigned(), in_sqd);
        }
    }

    #[test]
    fn each_value_gets_into_its_field() {
        let mut change = SqdChange::default();
        let rc = TABLE[0].3;
        for (_, choose) in choices().iter().filter(|(bit, _)| rc & bit != 0) {
            choose(&mut change);
        }
        let attributes = change.attributes(QpType::RC, &device()).expect("valid");
        let raw = attributes.as_raw().0;
        assert_eq!((raw.pkey_index, raw.port_num), (3, 2));
        assert_eq!((raw.timeout, raw.retry_cnt, raw.rnr_retry), (14, 6, 5));
        assert_eq!((raw.max_rd_atomic, raw.max_dest_rd_atomic), (8, 16));
        assert_eq!(raw.qp_access_flags, AccessFlags::REMOTE_READ.bits());
        assert_eq!(raw.min_rnr_timer, 12);
        assert_eq!(Address::from_raw(&raw.ah_attr), address());
        assert_eq!(Address::from_raw(&raw.alt_ah_attr), path().address);
        let alternate = (raw.alt_port_num, raw.alt_pkey_index, raw.alt_timeout);
        assert_eq!(alternate, (2, 1, 9));
        assert_eq!(raw.path_mig_state.0, PathMigration::ARMED.raw());
        let datagrams = RtsChange {
            qkey: Some(5),
            ..Default::default()
        };
        let attributes = datagrams.attributes(QpType::UD, Step::Recover);
        assert_eq!(attributes.expect("valid").as_raw().0.qkey, 5);
    }

    #[test]
    fn what_is_not_taken_is_named() {
        let change = SqdChange {
            port: Some(1),
            timeout: Some(1),
            ..Default::default()
        };
        let error = change.attributes(QpType::UC, &device()).expect_err("UC");
        let text = error.to_string();
        assert!(text.contains("port, timeout cannot be set"), "{text}");
        assert!(text.contains("UC") && text.contains("SQD"), "{text}");
        for (name, choose) in [
            ("timeout", (|c| c.timeout = Some(32)) as fn(&mut SqdChange)),
            ("retry_count", |c| c.retry_count = Some(8)),
            ("rnr_retry", |c| c.rnr_retry = Some(8)),
            ("max_rd_atomic", |c| c.max_rd_atomic = Some(9)),
            ("max_dest_rd_atomic", |c| c.max_dest_rd_atomic = Some(17)),
            ("min_rnr_timer", |c| c.rts.min_rnr_timer = Some(32)),
            ("alternate_path", |c| {
                let mut long = path();
                long.timeout = 32;
                c.rts.alternate_path = Some(long);
            }),
        ] {
            let mut change = SqdChange::default();
            choose(&mut change);
            let error = change.attributes(QpType::RC, &device()).expect_err(name);
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn the_event_is_asked_for_only_if_it_is_wanted() {
        let quiet = to_sqd(false);
        assert_eq!(quiet.as_raw().1, 1);
        let loud = to_sqd(true);
        assert_eq!(loud.as_raw().1, 0x5);
        assert_eq!(loud.as_raw().0.en_sqd_async_notify, 1);
        assert_eq!(quiet.state(), Some(QpState::SQD));
    }
}
